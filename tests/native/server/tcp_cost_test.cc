// What the way to servers costs over TCP, counted.
#include <doctest/doctest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <vector>

#include "tests/native/server/raw_server.h"

namespace byteps_like::testing {
namespace {

tcp_info InfoOf(const Stream& stream) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  REQUIRE(::getsockopt(stream.fds().front(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
  return info;
}

constexpr uint32_t kPushed = 512u << 10;

// The lengths of the segments in which a partition arrives.
std::vector<uint32_t> SegmentsOfPush(RawServer& server, uint64_t key, Bytes& memory) {
  Engine::Request request;
  request.tensor = server.engine().Declare(DType::kUInt8, {{key, 0, kPushed, 0}});
  request.address = memory.data();
  request.last_part = 1;
  REQUIRE(server.engine().Submit(request).ok());
  std::vector<uint32_t> lengths;
  for (uint32_t got = 0; got < kPushed; got += lengths.back()) {
    const auto frame = server.link().Receive();
    REQUIRE(frame.has_value());
    lengths.push_back(frame->header.length);
  }
  return lengths;
}

}  // namespace

TEST_CASE("tcp: segments fill the sends that they need") {
  CHECK(FillingSends(kDefaultSegment) == 2 * kSendBytes);
  CHECK(FillingSends(kSendBytes) == kSendBytes);
  CHECK(FillingSends(kSendBytes - 64) == kSendBytes - 64);
  Bytes memory(kPushed);
  RawServer server("tcp");
  std::vector<uint32_t> expected(8, kSendBytes);
  expected.push_back(kPushed - 8 * kSendBytes);
  CHECK(SegmentsOfPush(server, 1, memory) == expected);  // and the receiver's window grows
  const uint32_t before = InfoOf(server.link().stream()).tcpi_data_segs_in;
  CHECK(SegmentsOfPush(server, 2, memory) == expected);
  const tcp_info after = InfoOf(server.link().stream());
  // One each, where a packet is as long as a send, and where the window ends.
  if (after.tcpi_rcv_mss >= kSendBytes) CHECK(after.tcpi_data_segs_in - before <= expected.size() + 2);
}

}  // namespace byteps_like::testing
