// libFuzzer target (`make fuzz`): the header parser, and a link that receives arbitrary bytes in arbitrary pieces.
//
// An input is a byte of options, then the bytes of the stream. Checksums would stop the fuzzer at the first header, so
// most options repair them.
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "csrc/base/fd.h"
#include "csrc/kernels/kernels.h"
#include "csrc/transport/links/link.h"
#include "csrc/wire/bytes.h"
#include "csrc/wire/frame.h"
#include "tests/fuzz/fuzzing.h"

namespace byteps_like {
namespace {

using fuzzing::Require;

enum Option : uint8_t {
  kRepairHeaders = 1,
  kRepairPayloads = 2,
  kTinyReads = 4,
  kRedirect = 8,
  kRefuse = 16,
  kLet = 32,
};

constexpr size_t kLengthAt = 40, kPayloadCrcAt = 48, kHeaderCrcAt = 60;

void Repair(std::vector<std::byte>& bytes, uint8_t options) {
  for (size_t at = 0; at + kHeaderBytes <= bytes.size();) {
    std::byte* header = bytes.data() + at;
    PutLittle(header, kFrameMagic);
    const size_t length = std::min<size_t>(GetLittle<uint32_t>(header + kLengthAt), bytes.size() - at - kHeaderBytes);
    if ((options & kRepairPayloads) != 0) {
      PutLittle(header + kPayloadCrcAt, kernels::Crc32c(0, header + kHeaderBytes, length));
    }
    PutLittle(header + kHeaderCrcAt, kernels::Crc32c(0, header, kHeaderCrcAt));
    at += kHeaderBytes + length;
  }
}

void CheckParser(const std::vector<std::byte>& bytes) {
  if (bytes.size() < kHeaderBytes) return;
  const std::span<const std::byte, kHeaderBytes> in(bytes.data(), kHeaderBytes);
  auto header = DecodeHeader(in);
  if (!header.ok()) {
    Require(header.status().code() == Code::kCorrupt && !header.status().message().empty());
    return;
  }
  std::byte again[kHeaderBytes];
  EncodeHeader(*header, again);
  Require(std::memcmp(again, bytes.data(), kHeaderBytes) == 0);
  Require(header->length <= kMaxPayload && header->total <= kMaxPartition && header->offset <= kMaxOffset);
}

// Gives the input in pieces, then ends.
class InputStream final : public Stream {
 public:
  InputStream(const std::vector<std::byte>& bytes, bool tiny)
      : bytes_(bytes), tiny_(tiny), event_(::eventfd(0, EFD_NONBLOCK)) {}

  Result<size_t> Read(std::byte* data, size_t size) override {
    if (at_ == bytes_.size()) return Status(Code::kClosed, "end of input");
    const size_t piece = tiny_ ? 1 + at_ % 37 : size;
    const size_t count = std::min({size, piece, bytes_.size() - at_});
    std::memcpy(data, bytes_.data() + at_, count);
    at_ += count;
    return count;
  }
  Result<size_t> Write(std::span<const iovec>) override { return size_t{0}; }
  std::vector<int> fds() const override { return {event_.get()}; }
  void Shutdown() override {}
  std::string peer() const override { return "fuzzer"; }

 private:
  const std::vector<std::byte>& bytes_;
  const bool tiny_;
  const Fd event_;
  size_t at_ = 0;
};

// Gives each payload memory of exactly its size, so that the address sanitizer sees a byte too many.
class Handler final : public LinkHandler {
 public:
  Handler(EventLoop& loop, uint8_t options) : loop_(loop), options_(options) {}

  std::byte* PlaceFor(Link& link, const Header& header) override {
    Require(header.length > 0 && header.length <= kMaxPayload);
    if ((options_ & kRefuse) != 0 && header.key % 2 == 1) return nullptr;
    let_ = (options_ & kLet) != 0 && header.key % 4 == 0;
    place_ = let_ ? nullptr : std::make_unique_for_overwrite<std::byte[]>(header.length);
    if ((options_ & kRedirect) != 0) {
      loop_.Post([this, &link, length = header.length] {
        auto other = std::make_unique_for_overwrite<std::byte[]>(length);
        if (!closed_ && length_ == length && link.Redirect(other.get())) place_ = std::move(other);
      });
    }
    length_ = header.length;
    return let_ ? kAnywhere : place_.get();
  }
  void OnFrame(Link&, const Header& header, std::byte* payload) override {
    const bool anywhere = let_ && place_ == nullptr && header.length != 0;
    Require(anywhere ? payload != nullptr && payload != kAnywhere
                     : payload == (header.length == 0 ? nullptr : place_.get()));
    Require(kernels::Crc32c(0, payload, header.length) == header.payload_crc);
    length_ = 0;
  }
  bool NextFrame(Link&, Outgoing&) override { return false; }
  void OnSent(Link&, const Header&) override {}
  void OnClosed(Link&, const Status& why) override {
    Require(!closed_ && !why.ok());
    closed_ = true;
    loop_.Stop();
  }

 private:
  EventLoop& loop_;
  const uint8_t options_;
  std::unique_ptr<std::byte[]> place_;
  bool let_ = false;  // the payload at hand goes where the link likes
  uint32_t length_ = 0;
  bool closed_ = false;
};

}  // namespace
}  // namespace byteps_like

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace byteps_like;  // NOLINT
  if (size == 0) return 0;
  const uint8_t options = data[0];
  std::vector<std::byte> bytes(size - 1);
  std::copy(data + 1, data + size, reinterpret_cast<uint8_t*>(bytes.data()));
  if ((options & kRepairHeaders) != 0) Repair(bytes, options);
  CheckParser(bytes);
  EventLoop loop;
  Handler handler(loop, options);
  auto link = MakeLink(loop, std::make_unique<InputStream>(bytes, (options & kTinyReads) != 0), handler);
  link->Start();
  loop.Run();
  return 0;
}
