// What goes first: on a worker's links, on a server's way out, and between workers. The other end takes frames one by
// one, or not at all, so every order is exact.
#include <doctest/doctest.h>

#include <string>

#include "collectives/exchange/exchange_outbox.h"
#include "server/server.h"
#include "tests/native/server/cluster_fixture.h"
#include "tests/native/server/raw_worker.h"

namespace byteps_like::testing {
namespace {

constexpr uint32_t kSegment = 4096;

// An engine whose servers are the test's: one link each, that nobody reads but the test.
class OwnServers {
 public:
  explicit OwnServers(uint32_t links, size_t credit) {
    const Credentials credentials{"job", std::string(32, 's'), 1};
    EngineOptions options;
    options.credentials = credentials;
    options.segment_bytes = kSegment;
    options.credit_bytes = credit;
    options.bounce_bytes = 0;
    options.on_event = [](Code, const std::string&, bool) {};
    std::vector<ShardAddress> shards;
    std::vector<std::unique_ptr<Listener>> listeners;
    for (uint32_t link = 0; link < links; ++link) {
      auto listener = Listen(FreshUrl("inproc"));
      if (!listener.ok()) throw std::runtime_error(listener.status().message());
      shards.push_back({0, link, {(*listener)->url()}});
      listeners.push_back(std::move(*listener));
    }
    std::thread accept([&] {
      for (auto& listener : listeners) {
        auto stream = listener->Accept(In(5));
        if (stream.ok() && ServerHandshake(**stream, credentials, In(5)).ok()) links_.emplace_back(std::move(*stream));
      }
    });
    auto engine = Engine::Start(options, shards);
    accept.join();
    if (!engine.ok() || links_.size() != links) throw std::runtime_error("no engine");
    engine_ = std::move(*engine);
  }

  Engine& engine() { return *engine_; }

  // `parts` partitions of `bytes` on `link`, with keys from `key` on.
  uint32_t Declare(uint64_t key, uint32_t parts, uint32_t bytes, uint32_t link) {
    std::vector<PartitionSpec> specs;
    for (uint32_t part = 0; part < parts; ++part) specs.push_back({key + part, uint64_t{part} * bytes, bytes, link});
    memory_.emplace_back(size_t{parts} * bytes);
    return engine_->Declare(DType::kUInt8, specs);
  }
  void Submit(uint32_t tensor, uint32_t parts, int32_t priority) {
    auto operation = engine_->Submit(
        {.tensor = tensor, .address = memory_[tensor].data(), .last_part = parts, .priority = priority});
    REQUIRE(operation.ok());
  }

  Header Next(uint32_t link) {
    auto frame = links_[link].Receive();
    REQUIRE(frame.has_value());
    return frame->header;
  }
  void Answer(uint32_t link, Header header) {  // with the result of just this segment
    header.type = FrameType::kResult;
    links_[link].Send(header, Bytes(header.length));
  }

 private:
  std::vector<RawLink> links_;
  std::deque<Bytes> memory_;
  std::unique_ptr<Engine> engine_;
};

std::string Name(const Header& header) {
  return std::to_string(header.key) + "@" + std::to_string(header.offset / kSegment);
}

}  // namespace

TEST_CASE("priority: of what waits for credit the most urgent goes before the rest of what was begun") {
  OwnServers servers(2, 2 * kSegment);
  const uint32_t low = servers.Declare(1, 1, 4 * kSegment, 0), high = servers.Declare(10, 1, 2 * kSegment, 0);
  const uint32_t mark = servers.Declare(20, 1, 64, 1);
  servers.Submit(low, 1, 0);
  const Header first = servers.Next(0), second = servers.Next(0);
  CHECK(Name(first) == "1@0");
  CHECK(Name(second) == "1@1");
  servers.Submit(high, 1, 5);
  servers.Submit(mark, 1, 0);
  servers.Next(1);  // what was submitted before it is in the queue now
  servers.Answer(0, first);
  const Header third = servers.Next(0);
  CHECK(Name(third) == "10@0");
  CHECK(third.priority == 5);
  servers.Answer(0, second);
  CHECK(Name(servers.Next(0)) == "10@1");
  servers.Answer(0, third);
  CHECK(Name(servers.Next(0)) == "1@2");
}

TEST_CASE("priority: credit that less urgent ones have used up holds up nobody") {
  OwnServers servers(1, 2 * kSegment);
  const uint32_t low = servers.Declare(1, 1, 4 * kSegment, 0), high = servers.Declare(10, 1, 4 * kSegment, 0);
  servers.Submit(low, 1, 0);
  Header nothing = servers.Next(0);
  servers.Next(0);
  servers.Submit(high, 1, 5);
  nothing.length = 0;  // a sign of life that lands no byte: nothing comes back, and nothing is lent
  for (int i = 0; i < 20 && servers.engine().counters().frames_sent < 4; ++i) {
    servers.Answer(0, nothing);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(servers.engine().counters().frames_sent == 4);
  CHECK(Name(servers.Next(0)) == "10@0");
  CHECK(Name(servers.Next(0)) == "10@1");
}

TEST_CASE("priority: each link has its own credit and order") {
  OwnServers servers(2, kSegment);
  const uint32_t low = servers.Declare(1, 1, 4 * kSegment, 0), high = servers.Declare(10, 1, kSegment, 1);
  servers.Submit(low, 1, 0);
  CHECK(Name(servers.Next(0)) == "1@0");
  servers.Submit(high, 1, 1);
  CHECK(Name(servers.Next(1)) == "10@0");
}

TEST_CASE("priority: the highest first, of equals the oldest, of one call the last partition") {
  OwnServers servers(1, 1 << 20);
  const uint32_t plug = servers.Declare(1, 1, 8 << 20, 0);  // more than the link takes
  servers.engine().SetCredit(16 << 20);
  servers.Submit(plug, 1, 100);
  std::vector<std::string> order, expected;
  for (uint32_t tensor = 1; tensor < 4; ++tensor) servers.Declare(10 * tensor, 3, kSegment, 0);
  servers.Submit(1, 3, 0);
  servers.Submit(2, 3, 7);
  servers.Submit(3, 3, 0);
  while (order.size() < 9)
    if (const Header header = servers.Next(0); header.key != 1) order.push_back(Name(header));
  for (const int key : {22, 21, 20, 12, 11, 10, 32, 31, 30}) expected.push_back(std::to_string(key) + "@0");
  CHECK(order == expected);
}

TEST_CASE("priority: credit and segment take effect from the next segment on") {
  OwnServers servers(1, kSegment);
  const uint32_t tensor = servers.Declare(1, 1, 1 << 20, 0);
  servers.Submit(tensor, 1, 0);
  const Header first = servers.Next(0);
  CHECK(first.length == kSegment);
  servers.engine().SetSegment(100'000);
  servers.engine().SetCredit(150'000);
  CHECK(servers.engine().segment_bytes() == 100'000 / 64 * 64);
  servers.Answer(0, first);
  for (const uint32_t offset : {kSegment, kSegment + 99'968}) {
    const Header header = servers.Next(0);
    CHECK(header.offset == offset);
    CHECK(header.length == 99'968);
  }
}

TEST_CASE("priority: a server sends results in the order of their priorities, and a segment is what preempts") {
  Server::Options options;
  options.job = "job";
  options.secret = std::string(32, 's');
  options.urls = {FreshUrl("shm")};
  auto server = Server::Start(std::move(options));
  REQUIRE(server.ok());
  (*server)->SetWorld({.epoch = 1, .workers = NumbersOf(2), .member = ServerNumberOf(0)});
  RawLink slow = RawLink::Connect((*server)->urls().front(), 0), quick = RawLink::Connect((*server)->urls().front(), 1);
  const auto push = [&](RawLink& link, uint32_t rank, uint64_t key, uint32_t total, int32_t priority) {
    for (uint32_t offset = 0; offset < total; offset += kSegment) {
      Header header = PushHeader(rank, key, 0, total);
      header.priority = priority;
      header.offset = offset;
      header.length = std::min(kSegment, total - offset);
      link.Send(header);
    }
  };
  constexpr uint32_t kPlug = 4 << 20;  // more than the link takes: `slow` does not read
  const auto sum = [&](uint64_t key, uint32_t total, int32_t priority) {
    push(slow, 0, key, total, priority);
    push(quick, 1, key, total, priority);
    for (uint32_t landed = 0; landed < total;) landed += quick.Receive()->header.length;  // all of it is summed
  };
  sum(1, kPlug, 10);
  sum(2, 2 * kSegment, 0);
  sum(3, 2 * kSegment, 5);
  sum(4, 2 * kSegment, 0);
  sum(5, 2 * kSegment, 20);
  std::vector<uint64_t> order;
  uint32_t plugged = 0, before = 0;
  while (order.size() < 8) {
    const auto message = slow.Receive();
    REQUIRE(message.has_value());
    CHECK(message->header.length == kSegment);  // as the contributions came
    if (message->header.key == 1) {
      plugged += kSegment;
      if (order.empty()) before = plugged;
    } else {
      order.push_back(message->header.key);
    }
  }
  CHECK(order == std::vector<uint64_t>{5, 5, 3, 3, 2, 2, 4, 4});
  CHECK(before < kPlug);  // 5 went between two segments of 1
  CHECK(plugged == kPlug);
}

TEST_CASE("priority: between workers class goes first, then priority, then age, and control before all") {
  struct Owner final : Sender {
    void OnSent(Outbound&) override {}
    void Launch(Flow&, bool) override {}
  } owner;
  Outbox outbox(0, 1);
  Flow flow;
  flow.cleared = true;
  const Bytes data(3 * kSegment);
  std::deque<SendMessage> messages;
  std::deque<Outbound> outs;
  const auto queue = [&](uint32_t tag, TrafficClass traffic, int32_t priority) {
    SendMessage& message = messages.emplace_back();
    message.tag = tag;
    message.data = data.data();
    message.length = message.ready = 2 * kSegment;
    message.traffic = traffic;
    message.priority = priority;
    message.segment_bytes = kSegment;
    Outbound& out = outs.emplace_back();
    out.message = &message;
    out.flow = &flow;
    out.owner = &owner;
    outbox.Queue(out);
  };
  const auto next = [&] {
    Outgoing outgoing;
    return outbox.Next(outgoing) ? static_cast<int>(outgoing.header.root) : -1;
  };
  queue(1, TrafficClass::kBulk, 100);
  queue(2, TrafficClass::kGradient, 0);
  CHECK(next() == 2);
  queue(3, TrafficClass::kGradient, 7);
  queue(4, TrafficClass::kGradient, 7);
  CHECK(next() == 3);
  queue(5, TrafficClass::kPointToPoint, -1);
  queue(6, TrafficClass::kAllToAll, -9);
  std::vector<int> order;
  for (int tag = next(); tag >= 0; tag = next()) order.push_back(tag);
  CHECK(order == std::vector<int>{6, 6, 5, 5, 3, 4, 4, 2, 1, 1});
  queue(7, TrafficClass::kControl, 100);
  Header abort;
  abort.type = FrameType::kAbort;
  abort.root = 99;
  outbox.Control(abort);
  CHECK(next() == 99);
  CHECK(next() == 7);
}

}  // namespace byteps_like::testing
