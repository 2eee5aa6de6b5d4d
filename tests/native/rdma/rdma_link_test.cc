// What only links of rdma have: places that are offered, registered memory, several queue pairs and rails.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <future>

#include "tests/native/rdma/rdma_fixture.h"

namespace byteps_like::testing {
namespace {

void Fill(const Memory& memory, uint32_t seed) {
  const Bytes pattern = Pattern(memory.bytes().size(), seed);
  std::copy(pattern.begin(), pattern.end(), memory.data());
}

bool Same(const Memory& a, const Memory& b, size_t offset, size_t bytes) {
  return std::equal(a.data() + offset, a.data() + offset + bytes, b.data() + offset);
}

std::string Url(const std::string& query = "") { return FreshUrl("rdma", query); }

}  // namespace

TEST_CASE("rdma link: payloads are written straight to where they were offered a place") {
  if (NoRdma()) return;
  RdmaPair pair(Url());
  Fill(pair.from, 1);
  REQUIRE(pair.server.Offer(pair.to.data(), kTotal));
  REQUIRE(pair.server.Offer(pair.to.data(), kTotal));  // the same: the peer hears nothing
  pair.server.Send(Push(9, {}));                       // the offers are there before this is
  REQUIRE(pair.client.WaitFrames(1));
  const std::pair<uint32_t, uint32_t> segments[] = {
      {0, 128u << 10}, {1'000'001, 300'001}, {3u << 20, 1u << 20}, {500'000, 5000}};
  uint64_t placed = 0;
  for (const auto& [offset, bytes] : segments) {
    pair.client.Send(Segment(offset, bytes, kTotal));
    placed += bytes;
  }
  REQUIRE(pair.server.WaitFrames(4));
  for (const auto& [offset, bytes] : segments) CHECK(Same(pair.from, pair.to, offset, bytes));
  CHECK(pair.server.last_payload == pair.to.data() + 500'000);
  CHECK(pair.server.link().counters().payload_placed == placed);
  CHECK(pair.server.link().counters().payload_received == placed);
  CHECK(pair.server.link().counters().offers_sent == 1);
}

TEST_CASE("rdma link: an offer is replaced, withdrawn, and refused for memory that is not registered") {
  if (NoRdma()) return;
  RdmaPair pair(Url());
  Fill(pair.from, 2);
  Bytes elsewhere(100'000);
  CHECK_FALSE(pair.server.Offer(elsewhere.data(), elsewhere.size()));
  CHECK_FALSE(pair.server.Offer(pair.to.data() + 1, kTotal));  // its end is not in it
  size_t frames = 0;
  const auto send = [&] {
    pair.server.Send(Push(9, {}));
    REQUIRE(pair.client.WaitFrames(frames + 1));
    pair.client.Send(Segment(0, 100'000, kTotal));
    REQUIRE(pair.server.WaitFrames(++frames));
    CHECK(Same(pair.from, pair.to, 0, 100'000));
    std::fill_n(pair.to.data(), kTotal, std::byte{0});
    return pair.server.link().counters().payload_placed;
  };
  CHECK(send() == 0);
  REQUIRE(pair.server.Offer(pair.to.data(), 50'000));  // too small for the segment
  CHECK(send() == 0);
  REQUIRE(pair.server.Offer(pair.to.data(), kTotal));
  CHECK(send() == 100'000);
  CHECK_FALSE(pair.server.Offer(nullptr, 0));
  CHECK(send() == 100'000);
  REQUIRE(pair.server.Offer(pair.to.data(), kTotal));
  CHECK(send() == 200'000);
  CHECK(pair.server.link().counters().offers_sent == 4);
}

TEST_CASE("rdma link: an offer of memory that has gone and come back is told anew") {
  if (NoRdma()) return;
  RdmaPair pair(Url());
  Fill(pair.from, 7);
  for (uint64_t time : {1, 2}) {
    REQUIRE(pair.server.Offer(pair.to.data(), kTotal));
    pair.server.Send(Push(9, {}));
    REQUIRE(pair.client.WaitFrames(time));
    pair.client.Send(Segment(0, 100'000, kTotal));
    REQUIRE(pair.server.WaitFrames(time));
    CHECK(Same(pair.from, pair.to, 0, 100'000));
    CHECK(pair.server.link().counters().payload_placed == time * 100'000);
    std::fill_n(pair.to.data(), kTotal, std::byte{0});
    {
      const RegisteredMemory gone = std::move(pair.to.registered);
    }
    pair.to.registered = RegisteredMemory(pair.to.data(), kTotal);
  }
}

TEST_CASE("rdma link: frames of all sizes keep their order over several queue pairs and rails") {
  if (NoRdma()) return;
  std::vector<std::string> urls = {Url("?qps=3"), Url("?mtu=1024&ack_timeout=16")};
  const auto devices = RdmaDevices();
  if (devices.size() >= 4) urls.push_back("rdma://" + devices[1].host + "," + devices[3].host + ":0?qps=2");
  for (const std::string& url : urls) {
    CAPTURE(url);
    RdmaPair pair(url);
    Fill(pair.from, 3);
    REQUIRE(pair.server.Offer(pair.to.data(), kTotal));
    size_t count = 0;
    uint32_t offset = 0;
    for (const uint32_t bytes : {0u, 10u, 4000u, 1u << 20, 64u, 300'000u, 5u, 200'000u, 3968u, 3969u, 1u << 20}) {
      pair.client.Send(Segment(offset, bytes, kTotal));
      pair.server.Send(Push(100 + count++, Pattern(bytes, bytes)));  // from memory that is not registered, to slots
      offset += bytes;
    }
    REQUIRE(pair.server.WaitFrames(count));
    REQUIRE(pair.client.WaitFrames(count));
    CHECK(Same(pair.from, pair.to, 0, offset));
    uint64_t expected = 0;
    for (size_t i = 0; i < count; ++i) {
      CHECK(pair.server.received[i].header.offset == expected);
      CHECK(pair.client.received[i].header.key == 100 + i);
      CHECK(pair.client.received[i].payload ==
            Pattern(pair.client.received[i].header.length, pair.client.received[i].header.length));
      expected += pair.server.received[i].header.length;
    }
    REQUIRE(pair.client.Wait([&] { return pair.client.sent == count; }));
  }
}

TEST_CASE("rdma link: once kept, payloads may change") {
  if (NoRdma()) return;
  RdmaPair pair(Url());
  Fill(pair.from, 4);
  Memory copy(kTotal);
  Fill(copy, 4);
  REQUIRE(pair.server.Offer(pair.to.data(), kTotal));
  pair.server.Send(Push(9, {}));
  REQUIRE(pair.client.WaitFrames(1));
  for (uint32_t i = 0; i < 4; ++i) pair.client.Send(Segment(i << 20, 1u << 20, kTotal));
  REQUIRE(pair.client.Wait([&] { return pair.client.sent > 0; }));
  pair.client_thread.Do([&] {
    pair.client.link().Keep();
    for (uint32_t i = 0; i < 4; ++i) {  // those that it has asked for
      if (pair.client.asked > i) std::fill_n(pair.from.data() + (size_t{i} << 20), 1u << 20, std::byte{0});
    }
  });
  REQUIRE(pair.server.WaitFrames(4));
  CHECK(Same(copy, pair.to, 0, kTotal));
}

TEST_CASE("rdma link: what waits behind a full window is kept whole, whatever was sent before it") {
  if (NoRdma()) return;
  RdmaPair pair(Url());
  Fill(pair.from, 6);
  Memory copy(kTotal);
  Fill(copy, 6);
  REQUIRE(pair.server.Offer(pair.to.data(), kTotal));
  pair.server.Send(Push(9, {}));
  REQUIRE(pair.client.WaitFrames(1));
  std::promise<void> gate;
  pair.server_thread.loop().Post([opened = gate.get_future().share()] { opened.wait(); });
  constexpr uint32_t kMiddle = rdma::kWindow - 2;  // the first one takes two messages
  pair.client.Send(Segment(0, 1u << 20, kTotal));
  for (uint32_t i = 0; i < kMiddle; ++i) pair.client.Send(Push(100 + i, Pattern(rdma::kEagerPayload, i)));
  pair.client.Send(Segment(1u << 20, 1u << 20, kTotal));
  REQUIRE(pair.client.Wait([&] { return pair.client.sent == kMiddle + 1; }));
  pair.client_thread.Do([&] {
    REQUIRE(pair.client.asked == kMiddle + 2);
    pair.client.link().Keep();
    std::fill_n(pair.from.data() + (1u << 20), 1u << 20, std::byte{0});
  });
  gate.set_value();
  REQUIRE(pair.server.WaitFrames(kMiddle + 2));
  CHECK(Same(copy, pair.to, 0, 2u << 20));
}

TEST_CASE("rdma link: once Close has returned, nothing lands any more") {
  if (NoRdma()) return;
  RdmaPair pair(Url());
  Fill(pair.from, 5);
  REQUIRE(pair.server.Offer(pair.to.data(), kTotal));
  pair.server.Send(Push(9, {}));
  REQUIRE(pair.client.WaitFrames(1));
  for (uint32_t i = 0; i < 40; ++i) pair.client.Send(Segment((i % 4) << 20, 1u << 20, kTotal));
  REQUIRE(pair.server.WaitFrames(2));
  pair.server_thread.Do([&] {
    pair.server.link().Close(Status(Code::kStalled, "enough"));
    std::fill_n(pair.to.data(), kTotal, std::byte{0});
  });
  REQUIRE(pair.client.WaitClosed());
  CHECK(pair.client.why.code() == Code::kPeerLost);
  CHECK(std::all_of(pair.to.data(), pair.to.data() + kTotal, [](std::byte byte) { return byte == std::byte{0}; }));
}

// Nobody's device maps it here; a processor that touched it would die of it.
TEST_CASE("rdma link: memory of another device is never read or written by the processor") {
  if (NoRdma()) return;
  void* const nothing = ::mmap(nullptr, kTotal, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* const place = static_cast<std::byte*>(nothing);
  DmaBuf dma_buf;
  dma_buf.fd.Reset(::memfd_create("no dma-buf", MFD_CLOEXEC));
  const RegisteredMemory registered(place, kTotal, std::move(dma_buf));
  RdmaPair pair(Url());
  CHECK_FALSE(pair.server.Offer(place, kTotal));
  pair.client.send_from = place;
  pair.client.Send(Segment(0, 1u << 20, kTotal));
  REQUIRE(pair.client.WaitClosed());
  CHECK(pair.client.why.code() == Code::kInvalid);
  CHECK(pair.client.why.message().find("memory of another device") != std::string::npos);
  ::munmap(nothing, kTotal);
}

TEST_CASE("rdma link: device and GID are as asked for, or it is said why not") {
  if (NoRdma()) return;
  const auto devices = RdmaDevices();
  if (devices.size() < 4) return;
  auto listener = Listen("rdma://" + devices[1].host + ":0?device=" + devices[1].device);
  REQUIRE_MESSAGE(listener.ok(), listener.status().message());
  const std::string url = (*listener)->url() + "?device=" + devices[0].device;
  std::unique_ptr<Stream> accepted;
  std::thread accept([&] {
    auto stream = (*listener)->Accept(In(10));
    if (stream.ok()) accepted = std::move(*stream);
  });
  auto stream = Connect(url + "&gid=1", In(10));
  accept.join();
  CHECK_MESSAGE(stream.ok(), stream.status().message());
  REQUIRE(accepted != nullptr);
  CHECK(accepted->peer().starts_with("rdma " + devices[0].host));
  CHECK(Connect((*listener)->url() + "?device=nothing0", In(1)).status().code() == Code::kInvalid);
  const Status other = Connect((*listener)->url() + "?gid=0", In(5)).status();
  CHECK(other.message().find("not the address of this end; GIDs of that address: 1 (RoCE v2)") != std::string::npos);
  const Status wrong = Listen("rdma://" + devices[1].host + ":0?device=" + devices[2].device).status();
  CHECK(wrong.message().find(devices[1].device) != std::string::npos);
}

}  // namespace byteps_like::testing
