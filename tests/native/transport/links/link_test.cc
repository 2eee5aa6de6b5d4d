// Links on every transport: whole frames, order, closing, and the rules of link.h.
#include <doctest/doctest.h>

#include <random>

#include "csrc/kernels/kernels.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {
namespace {

// Two ends of a link on one loop each.
struct Linked {
  explicit Linked(const std::string& url) : Linked(MakeStreams(url)) {}
  explicit Linked(StreamPair streams)
      : client(client_thread, std::move(streams.client)), server(server_thread, std::move(streams.server)) {}
  LoopThread client_thread, server_thread;
  Peer client, server;
};

Header HeaderWithCrc(size_t size, uint32_t crc) {
  Header header = Push(1, Bytes(size)).header;
  header.payload_crc = crc;
  return header;
}

Status WriteHeader(Stream& stream, const Header& header) {
  std::byte bytes[kHeaderBytes];
  EncodeHeader(header, bytes);
  return WriteFull(stream, bytes, In(5));
}

}  // namespace

TEST_CASE("link: frames of many sizes arrive whole and in order, both ways") {
  const size_t sizes[] = {
      0, 1, 63, 64, 65, 4095, 4096, 16384, 65536, 65537, 262144, 3000001 / kSlow, kMaxPayload / kSlow};
  for (const std::string& url : TestedUrls()) {
    CAPTURE(url);
    Linked linked(url);
    uint32_t count = 0;
    std::vector<Bytes> blocks;
    for (const size_t size : sizes) {
      blocks.push_back(Pattern(size, count));
      linked.client.Send(Push(count, blocks.back()));
      linked.server.Send(Push(count, blocks.back()));
      ++count;
    }
    for (Peer* peer : {&linked.client, &linked.server}) {
      REQUIRE(peer->WaitFrames(count));
      REQUIRE(peer->Wait([&] { return peer->sent == count; }));
      for (uint32_t i = 0; i < count; ++i) {
        CHECK(peer->received[i].header.key == i);
        CHECK(peer->received[i].payload == blocks[i]);
      }
      CHECK(peer->Wait([&] { return peer->why.ok(); }));
    }
  }
}

TEST_CASE("link: many small frames, and the counters are exact") {
  constexpr uint32_t kFrames = 5000;
  for (const std::string& url : TestedUrls()) {
    CAPTURE(url);
    Linked linked(url);
    size_t payload = 0;
    for (uint32_t i = 0; i < kFrames; ++i) {
      linked.client.Send(Push(i, Pattern(i % 200, i)));
      payload += i % 200;
    }
    REQUIRE(linked.server.WaitFrames(kFrames));
    for (uint32_t i = 0; i < kFrames; ++i) {
      REQUIRE(linked.server.received[i].header.key == i);
      REQUIRE(linked.server.received[i].payload == Pattern(i % 200, i));
    }
    const LinkCounters in = linked.server.link().counters();
    CHECK(in.frames_received == kFrames);
    CHECK(in.payload_received == payload);
    CHECK(in.bytes_received == payload + kFrames * kHeaderBytes);
    REQUIRE(linked.client.Wait([&] { return linked.client.sent == kFrames; }));
    const LinkCounters out = linked.client.link().counters();
    CHECK(out.frames_sent == kFrames);
    CHECK(out.payload_sent == payload);
    CHECK(out.bytes_sent == in.bytes_received);
    CHECK(out.frames_received == 0);
  }
}

TEST_CASE("link: ping-pong with random sizes loses no wake-up") {
  for (const std::string& scheme : TestedSchemes()) {
    CAPTURE(scheme);
    // RDMA is usually an emulated device in an emulated machine.
    const uint32_t rounds = (scheme == "shm" ? 100'000 : scheme == "rdma" ? 1'000 : 10'000) / kSlow;
    Linked linked(FreshUrl(scheme));
    std::minstd_rand random(1);
    const Bytes block = Pattern(20'000, 1);
    std::atomic<uint32_t> done{0};
    linked.server.SetOnFrame([&](Link&, const Header& header, std::byte* payload) {
      linked.server.Send(Push(header.key, Bytes(payload, payload + header.length)));
    });
    const auto next = [&] {
      const size_t size = random() % 8 == 0 ? random() % block.size() : random() % 100;
      linked.client.Send(Push(done, Bytes(block.begin(), block.begin() + static_cast<ptrdiff_t>(size))));
    };
    std::mutex mutex;
    std::condition_variable over;
    linked.client.SetOnFrame([&](Link&, const Header& header, std::byte* payload) {
      CHECK(header.key == done);
      CHECK(std::equal(payload, payload + header.length, block.begin()));
      if (++done < rounds) return next();
      std::lock_guard lock(mutex);
      over.notify_one();
    });
    next();
    std::unique_lock lock(mutex);
    CHECK(over.wait_until(lock, In(60), [&] { return done == rounds; }));
  }
}

TEST_CASE("link: two links on one loop, one flooded, both served in turn") {
  constexpr size_t kFrames = 100;
  const Bytes block = Pattern(256 << 10, 1);
  for (const std::string& scheme : TestedSchemes()) {
    CAPTURE(scheme);
    LoopThread clients, servers;
    StreamPair first = MakeStreams(FreshUrl(scheme)), second = MakeStreams(FreshUrl(scheme));
    Peer flood(clients, std::move(first.client)), flooded(servers, std::move(first.server));
    Peer quiet(clients, std::move(second.client)), answer(servers, std::move(second.server));
    std::atomic<size_t> arrived{0}, before{kFrames};  // of the flood: in all, and when the small frame came
    std::atomic<bool> whole{true};
    flooded.SetOnFrame([&](Link&, const Header& header, std::byte* payload) {
      whole = whole && std::equal(block.begin(), block.end(), payload, payload + header.length);
      ++arrived;
    });
    answer.SetOnFrame([&](Link&, const Header&, std::byte*) {
      before = arrived.load();
      answer.Send(Push(1, {}));
    });
    clients.Do([&] {  // the small frame behind the whole flood
      for (size_t i = 0; i < kFrames; ++i) flood.Send(Push(i, block));
      quiet.Send(Push(0, Pattern(10, 1)));
    });
    REQUIRE(quiet.WaitFrames(1));
    CHECK(before < kFrames);
    REQUIRE(flood.Wait([&] { return flood.sent == kFrames; }));
    const auto limit = In(20);
    while (arrived < kFrames && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(arrived == kFrames);
    CHECK(whole);
  }
}

TEST_CASE("link: goodbye makes an orderly end, without one the peer is lost") {
  for (const std::string& url : TestedUrls()) {
    CAPTURE(url);
    for (const bool polite : {true, false}) {
      CAPTURE(polite);
      Linked linked(url);
      linked.client.Send(Push(1, Pattern(100'000, 1)));
      Message goodbye;
      goodbye.header.type = FrameType::kGoodbye;
      if (polite) linked.client.Send(std::move(goodbye));
      const size_t frames = polite ? 2 : 1;
      REQUIRE(linked.client.Wait([&] { return linked.client.sent == frames; }));
      linked.client.Close(Status(Code::kClosed, "done"));
      REQUIRE(linked.client.WaitClosed());
      REQUIRE(linked.server.WaitClosed());
      CHECK(linked.client.why.message() == "done");
      CHECK(linked.server.received.size() == frames);
      CHECK(linked.server.why.code() == (polite ? Code::kClosed : Code::kPeerLost));
      linked.client.Close(Status(Code::kInvalid, "again"));
      CHECK(linked.client.closed == 1);
    }
  }
}

TEST_CASE("link: garbage, a wrong checksum and an unexpected frame close it as corrupt") {
  const Bytes payload = Pattern(100'000, 1);
  const uint32_t crc = kernels::Crc32c(0, payload.data(), payload.size());
  const auto feed = [&](const std::function<void(Stream&)>& write, bool refuse, const char* what) {
    CAPTURE(what);
    LoopThread thread;
    StreamPair streams = MakeStreams(FreshUrl("shm"));
    Peer server(thread, std::move(streams.server));
    thread.Do([&] { server.refuse = refuse; });
    write(*streams.client);
    REQUIRE(server.WaitClosed());
    CHECK(server.why.code() == Code::kCorrupt);
    CHECK(server.why.message().find(what) != std::string::npos);
    CHECK(server.received.empty());
  };
  feed([&](Stream& stream) { CHECK(WriteFull(stream, payload, In(5)).ok()); }, false, "magic");
  feed(
      [&](Stream& stream) {
        CHECK(WriteHeader(stream, HeaderWithCrc(payload.size(), crc ^ 1)).ok());
        CHECK(WriteFull(stream, payload, In(5)).ok());
      },
      false, "checksum");
  feed([&](Stream& stream) { CHECK(WriteHeader(stream, HeaderWithCrc(8, crc)).ok()); }, true, "not expected");
}

TEST_CASE("link: a payload under way is redirected with what has come") {
  const Bytes payload = Pattern(300'000, 1);
  LoopThread thread;
  StreamPair streams = MakeStreams(FreshUrl("tcp"));
  Peer server(thread, std::move(streams.server));
  Bytes elsewhere(payload.size());
  std::byte* arrived = nullptr;
  server.SetOnFrame([&](Link&, const Header&, std::byte* place) { arrived = place; });
  thread.Do([&] { CHECK_FALSE(server.link().Redirect(elsewhere.data())); });  // nothing is under way
  const uint32_t crc = kernels::Crc32c(0, payload.data(), payload.size());
  REQUIRE(WriteHeader(*streams.client, HeaderWithCrc(payload.size(), crc)).ok());
  REQUIRE(WriteFull(*streams.client, std::span(payload).first(150'000), In(5)).ok());
  const auto limit = In(5);
  while (server.link().counters().bytes_received < 150'064 && Clock::now() < limit) std::this_thread::yield();
  thread.Do([&] { CHECK(server.link().Redirect(elsewhere.data())); });
  REQUIRE(WriteFull(*streams.client, std::span(payload).subspan(150'000), In(5)).ok());
  for (bool done = false; !done && Clock::now() < limit;) thread.Do([&] { done = arrived != nullptr; });
  CHECK(arrived == elsewhere.data());
  CHECK(elsewhere == payload);
}

TEST_CASE("link: a payload that may go anywhere lies in the link's own memory, also when it is sent there half way") {
  const Bytes payload = Pattern(300'000, 1);
  LoopThread thread;
  StreamPair streams = MakeStreams(FreshUrl("tcp"));
  Peer server(thread, std::move(streams.server));
  Bytes arrived;
  server.SetOnFrame([&](Link&, const Header& header, std::byte* place) {
    CHECK(place != kAnywhere);
    arrived.assign(place, place + header.length);
  });
  const uint32_t crc = kernels::Crc32c(0, payload.data(), payload.size());
  for (const bool at_once : {true, false}) {
    thread.Do([&] { server.anywhere = at_once, arrived.clear(); });
    REQUIRE(WriteHeader(*streams.client, HeaderWithCrc(payload.size(), crc)).ok());
    REQUIRE(WriteFull(*streams.client, std::span(payload).first(150'000), In(5)).ok());
    const auto limit = In(5);
    while (server.link().counters().bytes_received % (300'064) < 150'064 && Clock::now() < limit)
      std::this_thread::yield();
    for (int i = 0; i < 2; ++i) thread.Do([&] { CHECK(server.link().Redirect(kAnywhere)); });  // and there it stays
    REQUIRE(WriteFull(*streams.client, std::span(payload).subspan(150'000), In(5)).ok());
    for (bool done = false; !done && Clock::now() < limit;) thread.Do([&] { done = !arrived.empty(); });
    CHECK(arrived == payload);
  }
}

TEST_CASE("link: closed inside OnFrame, and destroyed inside OnClosed") {
  for (const std::string& url : TestedUrls()) {
    CAPTURE(url);
    LoopThread thread;
    StreamPair streams = MakeStreams(url);
    Peer client(thread, std::move(streams.client));
    Peer server(thread, std::move(streams.server));
    int frames = 0;
    thread.Do([&] { server.destroy_when_closed = true; });
    server.SetOnFrame([&](Link& link, const Header&, std::byte*) {
      ++frames;
      link.Kick();
      link.Close(Status(Code::kStalled, "enough"));
      link.Close(Status(Code::kInvalid, "too late"));
    });
    for (uint32_t i = 0; i < 10; ++i) client.Send(Push(i, Pattern(10, i)));
    REQUIRE(server.WaitClosed());
    CHECK(server.why.code() == Code::kStalled);
    CHECK(server.closed == 1);
    CHECK(frames == 1);
    REQUIRE(client.WaitClosed());
    CHECK(client.why.code() == Code::kPeerLost);
  }
}

TEST_CASE("link: close before start, and a link that is never started") {
  StreamPair streams = MakeStreams(FreshUrl("shm"));
  LoopThread thread;
  struct Ignoring : LinkHandler {
    std::byte* PlaceFor(Link&, const Header&) override { return nullptr; }
    void OnFrame(Link&, const Header&, std::byte*) override {}
    bool NextFrame(Link&, Outgoing&) override { return false; }
    void OnSent(Link&, const Header&) override {}
    void OnClosed(Link&, const Status& status) override { why = status; }
    Status why;
  } handler;
  std::unique_ptr<Link> link, other;
  thread.Do([&] {
    link = MakeLink(thread.loop(), std::move(streams.client), handler);
    other = MakeLink(thread.loop(), std::move(streams.server), handler);
    link->Close(Status(Code::kRefused, "no"));
    link->Start();
    CHECK(handler.why.ok());  // never inside Close
  });
  thread.Do([] {});
  thread.Do([&] {
    CHECK(handler.why.code() == Code::kRefused);
    link.reset();
    other.reset();
  });
}

}  // namespace byteps_like::testing
