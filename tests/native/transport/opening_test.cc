// What first bytes tell, and when.
#include "csrc/transport/entrance/opening.h"

#include <doctest/doctest.h>

#include <string>

namespace byteps_like::testing {
namespace {

using namespace std::string_literals;

std::optional<Opening> Of(std::string_view first) { return OpeningOf(std::as_bytes(std::span(first))); }

std::string Number(size_t value, size_t bytes) {
  std::string text;
  while (bytes-- > 0) text += static_cast<char>(value >> (8 * bytes) & 0xFF);
  return text;
}
std::string Counted(const std::string& content, size_t bytes) { return Number(content.size(), bytes) + content; }

// A record with a ClientHello that offers these protocols; none: without that extension.
std::string ClientHello(const std::vector<std::string>& protocols) {
  std::string names;
  for (const std::string& name : protocols) names += Counted(name, 1);
  std::string extensions = Number(0, 2) + Counted(Counted("\0"s + Counted("localhost", 2), 2), 2);
  if (!protocols.empty()) extensions += Number(16, 2) + Counted(Counted(names, 2), 2);
  const std::string body = "\x03\x03"s + std::string(32, 'r') + Counted(std::string(32, 's'), 1) +
                           Counted("\x13\x01"s, 2) + Counted("\0"s, 1) + Counted(extensions, 2);
  return "\x16\x03\x01"s + Counted("\x01"s + Counted(body, 3), 2);
}

// It is known at this length and not before, and more bytes change nothing.
void CheckKnownAt(const std::string& first, size_t length, Opening opening) {
  CAPTURE(first);
  for (size_t size = 0; size < length; ++size) CHECK_FALSE(Of(first.substr(0, size)).has_value());
  for (size_t size = length; size <= first.size(); ++size) CHECK(Of(first.substr(0, size)) == opening);
}

}  // namespace

TEST_CASE("opening: each kind is known as soon as it can be") {
  const std::string zmtp = "\xFF"s + std::string(8, '\0') + "\x7F\x03";
  CheckKnownAt("BPLH\2", 1, Opening::kLink);
  CheckKnownAt("nonsense", 1, Opening::kLink);
  CheckKnownAt("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n and frames", 24, Opening::kCalls);
  CheckKnownAt("GET /metrics HTTP/1.1\r\n", 4, Opening::kMetrics);
  CheckKnownAt("HEAD / HTTP/1.1\r\n", 5, Opening::kMetrics);
  CheckKnownAt(zmtp, 10, Opening::kDoor);
  CheckKnownAt("GEt /", 3, Opening::kLink);
  CheckKnownAt("PRI * HTTP/3.0\r\n", 12, Opening::kLink);
  CheckKnownAt("\xFF" + std::string(12, 'x'), 10, Opening::kLink);
}

TEST_CASE("opening: TLS is for calls if its client offers HTTP/2, and a link's otherwise") {
  for (const auto& [hello, opening] : {std::pair{ClientHello({"h2"}), Opening::kCalls},
                                       {ClientHello({"grpc-exp", "h2"}), Opening::kCalls},
                                       {ClientHello({"http/1.1"}), Opening::kLink},
                                       {ClientHello({"h22"}), Opening::kLink},
                                       {ClientHello({}), Opening::kLink}}) {
    CheckKnownAt(hello, hello.size(), opening);
  }
}

TEST_CASE("opening: lengths that lie are nobody's, whatever is cut off or changed") {
  const std::string hello = ClientHello({"h2"});
  CHECK(Of("\x16\x03\x01\xFF\xFF"s) == Opening::kLink);  // longer than a ClientHello may be
  for (size_t at = 3; at < hello.size(); ++at) {
    for (const int value : {0, 1, 0x7F, 0xFF}) {
      std::string changed = hello;
      changed[at] = static_cast<char>(value);
      const auto opening = Of(changed + std::string(kOpeningBytes, 'x'));
      CHECK(opening.has_value());
    }
  }
}

}  // namespace byteps_like::testing
