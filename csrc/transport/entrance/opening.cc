#include "csrc/transport/entrance/opening.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace byteps_like {
namespace {

using namespace std::string_view_literals;

constexpr auto kHttp2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"sv;
constexpr std::string_view kHttp1[] = {"GET ", "HEAD "};
// ZMTP's signature (RFC 37): 0xFF, eight bytes of padding, 0x7F.
constexpr size_t kZmtpSignature = 10;
constexpr char kZmtpBegin = '\xFF', kZmtpEnd = '\x7F';

// TLS (RFC 8446, RFC 7301).
constexpr auto kHandshakeRecord = "\x16\x03"sv;
constexpr size_t kRecordHeader = 5, kLengthAt = 3;
constexpr uint8_t kClientHello = 1;
constexpr size_t kRandom = 32;
constexpr uint16_t kAlpn = 16;
constexpr auto kHttp2Protocol = "h2"sv;

// Takes numbers and pieces from the front. After one that is not all there everything is empty.
class Cursor {
 public:
  explicit Cursor(std::string_view left) : left_(left) {}

  bool empty() const { return left_.empty(); }
  uint32_t Number(size_t bytes) {
    uint32_t number = 0;
    for (const char byte : Piece(bytes)) number = number << 8 | static_cast<uint8_t>(byte);
    return number;
  }
  std::string_view Piece(size_t bytes) {
    if (bytes > left_.size()) return left_ = {};
    const std::string_view piece = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return piece;
  }
  std::string_view Counted(size_t bytes_of_length) { return Piece(Number(bytes_of_length)); }

 private:
  std::string_view left_;
};

bool OffersHttp2(std::string_view client_hello) {
  Cursor hello(client_hello);
  if (hello.Number(1) != kClientHello) return false;
  hello.Piece(3 + 2 + kRandom);  // its length, the version
  hello.Counted(1);              // session
  hello.Counted(2);              // cipher suites
  hello.Counted(1);              // compression
  for (Cursor extensions(hello.Counted(2)); !extensions.empty();) {
    const uint32_t type = extensions.Number(2);
    const std::string_view content = extensions.Counted(2);
    if (type != kAlpn) continue;
    for (Cursor names(Cursor(content).Counted(2)); !names.empty();) {
      if (names.Counted(1) == kHttp2Protocol) return true;
    }
  }
  return false;
}

// Whether `first` begins with `whole`; nothing: it may do so yet.
std::optional<bool> BeginsWith(std::string_view first, std::string_view whole) {
  const size_t both = std::min(first.size(), whole.size());
  if (first.substr(0, both) != whole.substr(0, both)) return false;
  if (both < whole.size()) return std::nullopt;
  return true;
}

std::optional<Opening> InTls(std::string_view first) {
  Cursor header(first.substr(std::min(first.size(), kLengthAt)));
  if (first.size() < kRecordHeader) return std::nullopt;
  const size_t length = header.Number(2);
  if (kRecordHeader + length > kOpeningBytes) return Opening::kLink;
  if (first.size() < kRecordHeader + length) return std::nullopt;
  return OffersHttp2(first.substr(kRecordHeader, length)) ? Opening::kCalls : Opening::kLink;
}

std::optional<Opening> InZmtp(std::string_view first) {
  if (first.size() < kZmtpSignature) return std::nullopt;
  return first[kZmtpSignature - 1] == kZmtpEnd ? Opening::kDoor : Opening::kLink;
}

}  // namespace

std::optional<Opening> OpeningOf(std::span<const std::byte> bytes) {
  const std::string_view first(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (first.empty()) return std::nullopt;
  if (const auto tls = BeginsWith(first, kHandshakeRecord); tls != false) {
    return tls == true ? InTls(first) : std::nullopt;
  }
  if (first.front() == kZmtpBegin) return InZmtp(first);
  bool may = false;
  const auto is = [&](std::string_view whole) {
    const auto begins = BeginsWith(first, whole);
    may = may || !begins;
    return begins == true;
  };
  if (is(kHttp2)) return Opening::kCalls;
  if (std::any_of(std::begin(kHttp1), std::end(kHttp1), is)) return Opening::kMetrics;
  return may ? std::nullopt : std::optional(Opening::kLink);
}

Result<Opening> OpeningNamed(std::string_view name) {
  constexpr std::pair<std::string_view, Opening> kNames[] = {
      {"link", Opening::kLink}, {"calls", Opening::kCalls}, {"metrics", Opening::kMetrics}, {"door", Opening::kDoor}};
  for (const auto& [known, opening] : kNames) {
    if (known == name) return opening;
  }
  return Status(Code::kInvalid, "no connection is called \"" + std::string(name) + "\"");
}

}  // namespace byteps_like
