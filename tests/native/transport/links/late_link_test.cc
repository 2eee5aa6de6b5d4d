// A server whose device is told late that its results have arrived.
#include "tests/native/transport/links/late_link.h"

#include <doctest/doctest.h>

#include <cstring>

#include "tests/native/server/test_server.h"

namespace byteps_like::testing {
namespace {

constexpr uint64_t kKey = 7;
constexpr size_t kValues = 1024;

void Contribute(RawLink& link, uint32_t rank, uint32_t round, int32_t value) {
  const std::vector<int32_t> values(kValues, value);
  std::vector<std::byte> payload(kValues * 4);
  std::memcpy(payload.data(), values.data(), payload.size());
  link.Send(PushHeader(rank, kKey, round, kValues * 4), payload);
}

// The sum, if all of the result is that.
int32_t SumOf(RawLink& link) {
  const auto message = link.Receive();
  REQUIRE(message.has_value());
  REQUIRE(message->header.type == FrameType::kResult);
  std::vector<int32_t> values(kValues);
  REQUIRE(message->payload.size() == kValues * 4);
  std::memcpy(values.data(), message->payload.data(), message->payload.size());
  CHECK(values == std::vector<int32_t>(kValues, values.front()));
  return values.front();
}

}  // namespace

// What the rank answers tells that it has the result. The news that it was sent comes rounds later, when the same
// memory holds another result.
TEST_CASE("ranks go on when they have the result, however late the server's device hears that it has sent it") {
  static const bool used = (UseLate(), true);
  REQUIRE(used);
  TestServer server(2, 0, {}, "late");
  RawLink first = server.Connect(0), second = server.Connect(1);
  late.kept = 0;
  for (int32_t round = 0; round < 12; ++round) {
    late.held = round < 5 || round > 6;
    Contribute(first, 0, static_cast<uint32_t>(round), round);
    Contribute(second, 1, static_cast<uint32_t>(round), 100 * round);
    CHECK(SumOf(first) == 101 * round);
    CHECK(SumOf(second) == 101 * round);
  }
  late.held = false;
  CHECK(late.kept > 0);
  CHECK(server.failures == 0);
}

}  // namespace byteps_like::testing
