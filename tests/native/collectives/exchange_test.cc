// Messages between ranks: matched, bounded, ordered by class, and failed on all ranks at once.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <future>
#include <random>

#include "collectives/host/host_side.h"
#include "tests/native/collectives/mesh_fixture.h"

namespace byteps_like::testing {
namespace {

std::vector<uint32_t> Group(uint32_t size) {
  std::vector<uint32_t> ranks(size);
  for (uint32_t rank = 0; rank < size; ++rank) ranks[rank] = rank;
  return ranks;
}

using Calls = std::vector<std::unique_ptr<TestCall>>;

// Each rank of the group sends `length` bytes to each other one.
std::unique_ptr<TestCall> AllToAll(Ranks& ranks, uint32_t rank, CallId id, const std::vector<uint32_t>& group,
                                   size_t length, const std::string& what) {
  auto call = std::make_unique<TestCall>(ranks[rank], id, group, what);
  for (const uint32_t peer : group) {
    if (peer == rank) continue;
    call->Receive(peer, rank, length);
    call->Send(peer, peer, Pattern(length, rank * 100 + peer));
  }
  return call;
}

void CheckAllToAll(TestCall& call, uint32_t rank, const std::vector<uint32_t>& group, size_t length) {
  size_t which = 0;
  for (const uint32_t peer : group) {
    if (peer != rank) CHECK(call.received(which++) == Pattern(length, peer * 100 + rank));
  }
}

}  // namespace

TEST_CASE("exchange: messages of all sizes between all ranks, over every transport") {
  for (const std::string scheme : {"inproc", "shm", "tcp", "chaos+tcp"}) {
    CAPTURE(scheme);
    Ranks ranks(3, scheme, scheme.starts_with("chaos") ? "?seed=1&delay_ms=1&stall=0.01&stall_ms=1" : "");
    uint32_t number = 0;
    for (const size_t length : {0, 1, 100, 65536, 65537, 500'000, 3'000'000 / int(kSlow)}) {
      CAPTURE(length);
      Calls calls;
      for (uint32_t rank = 0; rank < 3; ++rank) {
        calls.push_back(AllToAll(ranks, rank, {1, number}, Group(3), length, "all_to_all"));
        calls.back()->Begin();
      }
      for (uint32_t rank = 0; rank < 3; ++rank) {
        REQUIRE(calls[rank]->Wait());
        CHECK(calls[rank]->status().ok());
        CheckAllToAll(*calls[rank], rank, Group(3), length);
      }
      ++number;
    }
  }
}

TEST_CASE("exchange: whole segments of a prefix that is ready are sent, the rest when it is") {
  Ranks ranks(2, "shm");
  TestCall to(ranks[1], {1, 0}, Group(2), "x"), from(ranks[0], {1, 0}, Group(2), "x");
  to.Receive(0, 0, 200'000);
  from.Send(1, 0, Pattern(200'000, 1));
  from.send(0).segment_bytes = 40'000;
  from.send(0).ready = 90'000;
  to.Begin();
  from.Begin();
  for (const auto limit = In(5); Clock::now() < limit;) {
    uint64_t received = 0;
    ranks[1].Do([&] { received = to.receive(0).received; });
    if (received == 80'000) break;
  }
  ranks[0].Do([&] {
    CHECK(from.send(0).sent == 80'000);
    from.send(0).ready = 200'000;
    ranks[0].core.Advance(from.send(0));
  });
  REQUIRE(to.Wait());
  CHECK(to.received(0) == Pattern(200'000, 1));
}

TEST_CASE("exchange: what comes early is kept within the limit, and the rest waits for the call to begin") {
  Ranks ranks(2, "tcp");
  Calls senders;
  constexpr uint32_t kCalls = 60;  // of 60 KB: more than may be kept
  for (uint32_t number = 0; number < kCalls; ++number) {
    senders.push_back(std::make_unique<TestCall>(ranks[0], CallId{1, number}, Group(2), "x"));
    senders.back()->Send(1, 0, Pattern(60'000, number));
    senders.back()->Begin();
  }
  TestCall large(ranks[0], {2, 0}, Group(2), "large");
  large.Send(1, 0, Pattern(5'000'000, 1));
  large.Begin();
  uint64_t held = 0;
  const auto limit = In(5);
  while (held < kEagerBytes - 60'000 && Clock::now() < limit) ranks[1].Do([&] { held = ranks[1].core.held(0); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ranks[1].Do([&] { held = ranks[1].core.held(0); });
  CHECK(held <= kEagerBytes);
  CHECK(held > kEagerBytes - 60'000);
  CHECK_FALSE(large.done());
  CHECK(ranks[1].mesh->counters(0).payload_received < kEagerBytes + 10'000);
  TestCall wanted(ranks[1], {2, 0}, Group(2), "large");  // a call that begins out of order isn't held up
  wanted.Receive(0, 0, 5'000'000);
  wanted.Begin();
  REQUIRE(wanted.Wait());
  CHECK(wanted.received(0) == Pattern(5'000'000, 1));
  for (uint32_t number = kCalls; number-- > 0;) {
    TestCall receiver(ranks[1], {1, number}, Group(2), "x");
    receiver.Receive(0, 0, 60'000);
    receiver.Begin();
    REQUIRE(receiver.Wait());
    CHECK(receiver.received(0) == Pattern(60'000, number));
  }
  for (auto& sender : senders) CHECK(sender->Wait());
}

TEST_CASE("exchange: a receiver that has no place now gets its bytes when it asks again") {
  Ranks ranks(2, "shm");
  TestCall to(ranks[1], {1, 0}, Group(2), "x"), from(ranks[0], {1, 0}, Group(2), "x");
  to.refuse = true;
  to.Receive(0, 0, 700'000);
  from.Send(1, 0, Pattern(700'000, 1));
  to.Begin();
  from.Begin();
  REQUIRE(from.Wait());
  CHECK_FALSE(to.done());
  to.refuse = false;
  ranks[1].Do([&] { ranks[1].core.Retry(to.receive(0)); });
  REQUIRE(to.Wait());
  CHECK(to.received(0) == Pattern(700'000, 1));
}

TEST_CASE("exchange: a receive that is posted while its payload comes is not forgotten") {
  Ranks ranks(2, "chaos+tcp", "?rate=1e6");
  TestCall to(ranks[1], {1, 0}, Group(2), "x"), from(ranks[0], {1, 0}, Group(2), "x");
  from.Send(1, 0, Pattern(60'000, 1));
  to.Receive(0, 0, 60'000);
  from.Begin();
  uint64_t held = 0;
  const auto limit = In(5);
  while (held == 0 && Clock::now() < limit) ranks[1].Do([&] { held = ranks[1].core.held(0); });
  to.Begin();
  REQUIRE(to.Wait());
  CHECK(to.received(0) == Pattern(60'000, 1));
}

TEST_CASE("exchange: a higher class overtakes at the next segment") {
  Ranks ranks(2, "chaos+tcp", "?rate=50e6");
  TestCall bulk(ranks[0], {1, 0}, Group(2), "bulk"), bulk_in(ranks[1], {1, 0}, Group(2), "bulk");
  TestCall small(ranks[0], {2, 0}, Group(2), "small"), small_in(ranks[1], {2, 0}, Group(2), "small");
  bulk_in.Receive(0, 0, 20'000'000);
  bulk.Send(1, 0, Pattern(20'000'000, 1), TrafficClass::kBulk);
  small_in.Receive(0, 0, 1000);
  small.Send(1, 0, Pattern(1000, 2), TrafficClass::kPointToPoint);
  bulk_in.Begin();
  small_in.Begin();
  bulk.Begin();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  small.Begin();
  REQUIRE(small_in.Wait());
  CHECK_FALSE(bulk_in.done());
  REQUIRE(bulk_in.Wait(20));
}

TEST_CASE("exchange: any order of calls on several lanes ends, 200 times") {
  constexpr uint32_t kSize = 4, kLanes = 3, kCallsEach = 4;
  const std::vector<std::vector<uint32_t>> groups = {{0, 1, 2, 3}, {0, 2, 3}, {1, 3}};
  std::minstd_rand random(7);
  Ranks ranks(kSize, "shm");
  for (uint32_t round = 0; round < 200 / kSlow; ++round) {
    const size_t length = round % 3 == 0 ? 200'000 : random() % 70'000;
    std::vector<Calls> calls(kSize);
    for (uint32_t rank = 0; rank < kSize; ++rank) {
      std::vector<uint32_t> order;
      for (uint32_t i = 0; i < kLanes * kCallsEach; ++i) order.push_back(i);
      std::shuffle(order.begin(), order.end(), random);
      for (const uint32_t i : order) {
        const auto& group = groups[i % kLanes];
        if (std::find(group.begin(), group.end(), rank) == group.end()) continue;
        const CallId id{i % kLanes + 1, round * kCallsEach + i / kLanes};
        calls[rank].push_back(AllToAll(ranks, rank, id, group, length, "all_to_all"));
      }
    }
    for (uint32_t rank = 0; rank < kSize; ++rank) {
      ranks[rank].mesh->loop().Post([&, rank] {
        for (auto& call : calls[rank]) call->BeginOnLoop();
      });
    }
    for (uint32_t rank = 0; rank < kSize; ++rank) {
      for (auto& call : calls[rank]) {
        REQUIRE(call->Wait());
        REQUIRE(call->status().ok());
        CheckAllToAll(*call, rank, call->ranks, length);
      }
    }
  }
}

TEST_CASE("exchange: a mismatch is told to all ranks with both descriptions, and the next call is fine") {
  for (const bool late : {false, true}) {
    Ranks ranks(3, "inproc");
    Calls calls;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      calls.push_back(std::make_unique<TestCall>(ranks[rank], CallId{0xAB, 0}, Group(3), rank == 1 ? "left" : "right"));
      if (rank == 0) calls[0]->Send(1, 0, Pattern(10, 1));
      if (rank == 1) calls[1]->Receive(0, 0, 10);
      if (rank != 0) calls[rank]->Receive(rank - 1, 1, 10);
    }
    for (const uint32_t rank : late ? std::vector<uint32_t>{0, 2, 1} : std::vector<uint32_t>{1, 2, 0}) {
      calls[rank]->Begin();
      if (late) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    for (uint32_t rank = 0; rank < 3; ++rank) {
      if (rank == 0 && !calls[0]->Wait(2)) continue;
      REQUIRE(calls[rank]->Wait());
      // Rank 0 only sends: it may be done before it is told.
      if (rank == 0 && calls[0]->status().ok()) continue;
      CHECK(calls[rank]->status().code() == Code::kMismatch);
      for (const char* part : {"\"left\"", "\"right\"", "rank 0", "rank 1", "call 0", "group ab"}) {
        CHECK(calls[rank]->status().message().find(part) != std::string::npos);
      }
    }
    Calls next;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      next.push_back(AllToAll(ranks, rank, {0xAB, 1}, Group(3), 1000, "all_to_all"));
      next.back()->Begin();
    }
    for (uint32_t rank = 0; rank < 3; ++rank) {
      REQUIRE(next[rank]->Wait());
      CHECK(next[rank]->status().ok());
    }
  }
}

TEST_CASE("exchange: a message of another length is a mismatch") {
  Ranks ranks(2, "shm");
  TestCall from(ranks[0], {1, 0}, Group(2), "x"), to(ranks[1], {1, 0}, Group(2), "x");
  from.Send(1, 0, Pattern(100, 1));
  from.Receive(1, 0, 1);
  to.Receive(0, 0, 80);
  from.Begin();
  to.Begin();
  for (TestCall* call : {&from, &to}) {
    REQUIRE(call->Wait());
    CHECK(call->status().code() == Code::kMismatch);
    CHECK(call->status().message().find("sends 100 bytes where 80 are expected") != std::string::npos);
  }
}

TEST_CASE("exchange: a peer that fails a call without a reason fails it") {
  for (const uint32_t number : {0u, 256u, 77u}) {
    Rank rank(FreshUrl("inproc"));
    Refuser refuser(number);
    const std::vector<std::vector<std::string>> urls{rank.mesh->urls(), refuser.mesh->urls()};
    rank.core.Prepare(WorldOf(0, urls));
    rank.mesh->SetWorld(WorldOf(0, urls));
    refuser.mesh->SetWorld(WorldOf(1, urls));
    TestCall call(rank, {1, 0}, {0, 1}, "all_reduce");
    call.Send(1, 0, Bytes(64));
    call.Receive(1, 1, 64);
    call.Begin();
    REQUIRE(call.Wait());
    CHECK(call.status().code() == Code::kCorrupt);
    CHECK(call.status().message() == RankName(1) + " failed the call without a reason");
  }
}

TEST_CASE("exchange: a dead peer fails its calls on all ranks within a second, linked or not, and later ones at once") {
  for (const std::string scheme : {"inproc", "shm", "tcp"}) {
    CAPTURE(scheme);
    Ranks ranks(4, scheme);
    Calls calls;  // a chain 3 -> 2 -> 1 -> 0, where 3 will not send
    for (uint32_t rank = 0; rank < 3; ++rank) {
      calls.push_back(std::make_unique<TestCall>(ranks[rank], CallId{1, 0}, Group(4), "chain"));
      calls.back()->Receive(rank + 1, 0, 1000);
      calls.back()->Begin();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto begin = Clock::now();
    ranks[3].Die();
    for (uint32_t rank = 0; rank < 3; ++rank) {
      REQUIRE(calls[rank]->Wait());
      CHECK(Clock::now() - begin < std::chrono::seconds(1));
      CHECK(calls[rank]->status().code() == Code::kPeerLost);
      CHECK(calls[rank]->status().message().find("rank 3 (host x, pid 1) is gone") != std::string::npos);
    }
    TestCall later(ranks[2], {1, 1}, Group(4), "later");
    later.Begin();
    CHECK(later.done());
    CHECK(later.status().code() == Code::kPeerLost);
    TestCall without(ranks[2], {2, 0}, {0, 2}, "without"), other(ranks[0], {2, 0}, {0, 2}, "without");
    without.Send(0, 0, Pattern(100, 1));
    other.Receive(2, 0, 100);
    without.Begin();
    other.Begin();
    REQUIRE(other.Wait());
    CHECK(other.status().ok());
  }
}

TEST_CASE("exchange: who was told of a lost peer fails later calls of the group by itself, and no other group's") {
  Ranks ranks(3, "tcp");  // 2 has links with 0 only
  TestCall first(ranks[0], {1, 4}, Group(3), "gather"), told(ranks[2], {1, 4}, Group(3), "gather");
  TestCall ahead(ranks[2], {1, 5}, Group(3), "gather");
  first.Receive(1, 0, 1000);
  told.Receive(0, 0, 1000);
  ahead.Receive(0, 0, 1000);
  first.Begin();
  told.Begin();
  ahead.Begin();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ranks[1].Die();
  TestCall later(ranks[2], {1, 6}, Group(3), "gather");
  later.Receive(0, 0, 1000);
  for (TestCall* call : {&first, &told, &ahead}) REQUIRE(call->Wait());
  later.Begin();
  REQUIRE(later.Wait());
  for (TestCall* call : {&first, &told, &ahead, &later}) {
    CHECK(call->status().code() == Code::kPeerLost);
    CHECK(call->status().message().find("rank 1 (host x, pid 1) is gone") != std::string::npos);
  }
  TestCall without(ranks[2], {2, 0}, {0, 2}, "without"), other(ranks[0], {2, 0}, {0, 2}, "without");
  without.Send(0, 0, Pattern(100, 1));
  other.Receive(2, 0, 100);
  without.Begin();
  other.Begin();
  REQUIRE(other.Wait());
  CHECK(other.status().ok());
}

TEST_CASE("exchange: a peer that leaves in order takes nothing with it that was sent") {
  Ranks ranks(2, "tcp");
  TestCall from(ranks[0], {1, 0}, Group(2), "x");
  from.Send(1, 0, Pattern(1000, 1));
  from.Begin();
  REQUIRE(from.Wait());
  std::atomic<bool> said{false};
  ranks[0].mesh->loop().Post([&] { ranks[0].mesh->Goodbye([&] { said = true; }); });
  for (const auto limit = In(5); !said && Clock::now() < limit;) std::this_thread::yield();
  CHECK(said);
  TestCall to(ranks[1], {1, 0}, Group(2), "x");
  to.Receive(0, 0, 1000);
  to.Begin();
  REQUIRE(to.Wait());
  CHECK(to.status().ok());
  CHECK(to.received(0) == Pattern(1000, 1));
  TestCall more(ranks[1], {1, 1}, Group(2), "y");
  more.Receive(0, 0, 1000);
  more.Begin();
  REQUIRE(more.Wait());
  CHECK(more.status().code() == Code::kPeerLost);
  CHECK(more.status().message().find("has left") != std::string::npos);
}

TEST_CASE("exchange: who gives a call up tells the others, and memory may go at once") {
  Ranks ranks(3, "chaos+shm", "?rate=20e6");
  Calls calls;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    calls.push_back(AllToAll(ranks, rank, {1, 0}, Group(3), 4'000'000, "big"));
    calls.back()->Begin();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ranks[1].Do([&] {
    ranks[1].core.Abort(*calls[1], Status(Code::kTimeout, "rank 1 waited too long"));
    calls[1]->OnFailed(Status(Code::kTimeout, "rank 1 waited too long"));
  });
  for (uint32_t rank = 0; rank < 3; ++rank) {
    REQUIRE(calls[rank]->Wait());
    CHECK(calls[rank]->status().message() == "rank 1 waited too long");
    calls[rank].reset();
  }
  for (uint32_t rank = 0; rank < 3; ++rank) {
    calls[rank] = AllToAll(ranks, rank, {1, 1}, Group(3), 10'000, "next");
    calls[rank]->Begin();
  }
  for (uint32_t rank = 0; rank < 3; ++rank) {
    REQUIRE(calls[rank]->Wait());
    CHECK(calls[rank]->status().ok());
  }
}

TEST_CASE("exchange: who has not begun is named") {
  Ranks ranks(3, "inproc");
  TestCall elsewhere(ranks[2], {9, 0}, {0, 2}, "broadcast float32[3]");
  elsewhere.Send(0, 0, Pattern(8, 1));
  elsewhere.Begin();
  REQUIRE(elsewhere.Wait());
  TestCall call(ranks[0], {1, 0}, Group(3), "x");
  call.Receive(1, 0, 10);
  call.Receive(2, 0, 10);
  call.Begin();
  std::string text;
  for (const auto limit = In(5); text.find("last heard") == std::string::npos && Clock::now() < limit;) {
    ranks[0].Do([&] { text = ranks[0].core.Silent(call); });
  }
  CHECK(text.find("rank 1 (host x, pid 1) has not begun this call") != std::string::npos);
  CHECK(text.find("rank 2 (host x, pid 1) has not begun this call (last heard of in: broadcast float32[3])") !=
        std::string::npos);
}

TEST_CASE("exchange: who has begun is asked for a sign of life, and named if it gives none") {
  Ranks ranks(3, "inproc");
  TestCall call(ranks[0], {1, 0}, Group(3), "x"), alive(ranks[1], {1, 0}, Group(3), "x");
  call.Receive(1, 0, 10);  // from a rank that has begun, and sends nothing
  alive.Receive(0, 0, 10);
  call.Begin();
  alive.Begin();
  TestCall stuck(ranks[2], {1, 0}, Group(3), "x");
  stuck.Receive(0, 0, 10);
  stuck.Begin();
  const auto silent = [&](bool probe) {
    std::string text;
    ranks[0].Do([&] {
      if (probe) ranks[0].core.Probe(call);
      text = ranks[0].core.Silent(call);
    });
    return text;
  };
  const auto until = [&](const std::string& text) {
    const auto limit = In(5);
    while (silent(false) != text && Clock::now() < limit) std::this_thread::yield();
    CHECK(silent(false) == text);
  };
  CHECK(silent(true).find(RankName(1)) != std::string::npos);
  until("");  // both have answered
  std::promise<void> held, go;
  std::thread busy([&] {
    ranks[2].Do([&] {
      held.set_value();
      go.get_future().wait();
    });
  });
  held.get_future().wait();
  silent(true);
  until(RankName(2) + " has not answered since its last message");
  go.set_value();
  busy.join();
  until("");
}

TEST_CASE("exchange: lengths and offsets over 4 GiB") {
  const uint64_t length = 5ull << 30;
  Outbox outbox(0, 1);
  Flow flow;
  flow.to = 1;
  flow.cleared = true;
  SendMessage message;
  // Addresses without memory behind them: the outbox computes them and reads nothing.
  void* const addresses = ::mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(addresses != MAP_FAILED);
  message.data = static_cast<const std::byte*>(addresses);
  message.length = message.ready = length;
  message.segment_bytes = kMaxPayload;
  struct Owner : Sender {
    void OnSent(Outbound&) override {}
    void Launch(Flow&, bool) override {}
  } owner;
  Outbound out;
  out.message = &message;
  out.flow = &flow;
  out.owner = &owner;
  outbox.Queue(out);
  uint64_t sum = 0;
  for (Outgoing next; outbox.Next(next); next = Outgoing{}) {
    std::byte bytes[kHeaderBytes];
    EncodeHeader(next.header, bytes);
    auto header = DecodeHeader(bytes);
    REQUIRE(header.ok());
    CHECK(header->offset == sum);
    CHECK(next.payload == message.data + sum);
    CHECK(MessageLength(*header) == length);
    sum += header->length;
    outbox.OnSent(next.header);
  }
  CHECK(sum == length);
  CHECK(message.sent == length);
  ::munmap(addresses, length);
}

TEST_CASE("exchange: the calls that are over are remembered in little room") {
  LaneHistory history;
  std::minstd_rand random(1);
  std::vector<uint32_t> order(1000);
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  for (auto at = order.begin(); at != order.end(); at += 50) std::shuffle(at, at + 50, random);
  for (const uint32_t call : order) {
    CHECK_FALSE(history.Over(call));
    history.Add(call);
    CHECK(history.Over(call));
  }
  CHECK(history.ranges() == 1);
  CHECK_FALSE(history.Over(1000));
  for (uint32_t call = 1001; call < 5000; call += 2) history.Add(call);
  CHECK(history.ranges() < 300);
  CHECK_FALSE(history.Over(4998));
}

namespace {

// How many frames of the kind rank 0 takes from rank 1 until it remembers no more.
uint64_t UntilRefused(uint64_t most, const std::function<Header(uint64_t)>& next) {
  Ranks ranks(2, "inproc");
  ExchangeCore& core = ranks[0].core;
  uint64_t taken = 0;
  ranks[0].Do([&] {
    for (size_t before = 0; taken < most; ++taken) {
      Header header = next(taken);
      header.member = NumberOf(1);
      core.OnFrame(1, header, nullptr);
      if (core.remembered(1) == before) break;
      before = core.remembered(1);
    }
    CHECK(core.remembered(1) <= kMostRemembered);
  });
  return taken;
}

Header Saying(FrameType type, uint64_t lane, uint32_t call, uint32_t tag) {
  Header header;
  header.type = type;
  header.key = lane;
  header.round = call;
  header.root = tag;
  return header;
}

}  // namespace

TEST_CASE("exchange: what a peer makes us remember is bounded in bytes, whatever it speaks of") {
  constexpr uint64_t kMany = 1'000'000;
  const std::vector<std::function<Header(uint64_t)>> kinds{
      [](uint64_t i) { return Saying(FrameType::kLaunch, 7, static_cast<uint32_t>(i), 0); },
      [](uint64_t i) { return Saying(FrameType::kLaunch, i, 0, 0); },
      [](uint64_t i) { return Saying(FrameType::kAbort, i, 0, 0); },
      [](uint64_t i) {  // empty messages of one call
        Header header = Saying(FrameType::kData, 7, 0, static_cast<uint32_t>(i));
        header.total = kEagerMark;
        return header;
      }};
  for (const auto& kind : kinds) {
    const uint64_t said = UntilRefused(kMany, kind);
    CHECK(said > 50'000);
    CHECK(said < kMany);
  }
}

TEST_CASE("exchange: a description or a reason that is too long is refused, and a long one of ours is not") {
  for (const auto& [type, bytes] : {std::pair{FrameType::kLaunch, 513}, std::pair{FrameType::kAbort, 8193}}) {
    Ranks ranks(2, "inproc");
    ranks[0].Do([&, type = type, bytes = bytes] {
      std::string text(static_cast<size_t>(bytes), 'x');
      Header header = Saying(type, 9, 0, 0);
      header.member = NumberOf(1);
      header.length = static_cast<uint32_t>(text.size());
      ranks[0].core.OnFrame(1, header, reinterpret_cast<std::byte*>(text.data()));
      CHECK(ranks[0].core.remembered(1) < 1000);
    });
  }
  Ranks ranks(2, "shm");
  const std::string much(2000, 'd');
  TestCall to(ranks[1], {1, 0}, Group(2), much + "1"), from(ranks[0], {1, 0}, Group(2), much + "1");
  to.Receive(0, 0, 100);
  from.Send(1, 0, Pattern(100, 1));
  to.Begin();
  from.Begin();
  REQUIRE(to.Wait());
  CHECK(to.received(0) == Pattern(100, 1));
  TestCall one(ranks[1], {1, 1}, Group(2), much + "1"), other(ranks[0], {1, 1}, Group(2), much + "2");
  one.Receive(0, 0, 100);
  other.Send(1, 0, Pattern(100, 1));
  one.Begin();
  other.Begin();
  CHECK(one.Wait());
  CHECK(one.status().code() == Code::kMismatch);  // they differ beyond what is sent
}

TEST_CASE("exchange: a peer is charged with the answers that it asks for until it takes them") {
  Ranks ranks(2, "inproc");
  ExchangeCore& core = ranks[0].core;
  TestCall over(ranks[0], {7, 0}, Group(2), "x"), begun(ranks[0], {7, 1}, Group(2), "x");
  begun.Receive(1, 0, 1);
  over.Begin();
  begun.Begin();
  REQUIRE(over.Wait());
  for (const uint32_t call : {0u, 1u}) {
    size_t charged = 0;
    ranks[0].Do([&] {
      Header asks = Saying(FrameType::kLaunch, 7, call, 0);
      asks.aux = 1;
      for (int i = 0; i < 1000; ++i) core.OnFrame(1, asks, nullptr);
      charged = core.remembered(1);
    });
    CHECK(charged == 1000 * kAnswerBytes);
    for (const auto limit = In(5); charged != 0 && Clock::now() < limit;) {
      ranks[0].Do([&] { charged = core.remembered(1); });
    }
    CHECK(charged == 0);
  }
}

TEST_CASE("exchange: a peer is charged with its regions, also those that can't be had, until it takes them back") {
  Ranks ranks(2, "inproc");
  ExchangeCore& core = ranks[0].core;
  auto host = std::make_shared<HostSide>(*ranks[0].mesh);
  host->SetWorld(ranks[0].mesh->world());
  auto memory = SharedBuffer::Create(4096);
  REQUIRE(memory.ok());
  ranks[0].Do([&] {
    core.SetHostSide(host.get());
    for (int turn = 0; turn < 2; ++turn) {
      for (uint32_t id = 1; id <= 1000; ++id) core.OnNoRegion(1, id, true);
      CHECK(core.remembered(1) == 1000 * kRegionBytes);
    }
    for (int turn = 0; turn < 2; ++turn) core.OnRegion(1, 2000, *memory);
    CHECK(core.remembered(1) == 1001 * kRegionBytes);
    core.OnNoRegion(1, 2000, false);
    CHECK(core.remembered(1) == 1000 * kRegionBytes);
    core.SetHostSide(nullptr);
  });
  host->Close(Status(Code::kClosed, "the end"));
}

TEST_CASE("exchange: what a peer was charged for is given back when the calls are over") {
  Ranks ranks(2, "shm");
  for (uint32_t number = 0; number < 20; ++number) {
    TestCall from(ranks[0], {1, number}, Group(2), "x"), to(ranks[1], {1, number}, Group(2), "x");
    for (uint32_t tag = 0; tag < 5; ++tag) {
      from.Send(1, tag, Pattern(100 * tag, tag));
      to.Receive(0, tag, 100 * tag);
    }
    from.Begin();
    for (const auto limit = In(5); Clock::now() < limit;) {
      size_t remembered = 0;
      ranks[1].Do([&] { remembered = ranks[1].core.remembered(0); });
      if (remembered >= kRecordBytes + 5 * kInboundBytes) break;
    }
    to.Begin();
    REQUIRE(to.Wait());
    size_t remembered = 1;
    for (const auto limit = In(5); remembered != 0 && Clock::now() < limit;) {
      ranks[1].Do([&] { remembered = ranks[1].core.remembered(0); });
    }
    CHECK(remembered == 0);
  }
}

}  // namespace byteps_like::testing
