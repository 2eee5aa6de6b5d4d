// A server shard against workers that break off, come back, or don't keep to the protocol.
#include "server/shard.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/transport/memory/ring_stream.h"
#include "tests/native/server/test_server.h"

namespace byteps_like::testing {
namespace {

Header Reference(uint32_t rank, uint64_t key, uint32_t total) {
  Header header = PushHeader(rank, key, 0, total);
  header.flags = kByReference;
  header.length = 0;
  return header;
}

Header Goodbye(uint32_t rank) {
  Header header;
  header.type = FrameType::kGoodbye;
  header.view = 1;
  header.member = NumberOf(rank);
  return header;
}

Header Forget(uint32_t rank, uint64_t key) {
  Header header;
  header.type = FrameType::kForget;
  header.view = 1;
  header.member = NumberOf(rank);
  header.key = key;
  return header;
}

}  // namespace

TEST_CASE("memory announced again over a new link: what was pushed by reference before is still there") {
  TestServer server(2);
  constexpr uint32_t kBytes = 1 << 20;
  const auto mine = Ones(kBytes), other = Ones(kBytes);
  {
    RawLink link = server.Connect(0);
    link.Share(0, 0, *mine);
    link.Send(Reference(0, 7, kBytes));
    link.Send(PushHeader(0, 8, 0, 4));  // its result says that all before it was handled
    RawLink second = server.Connect(1);
    second.Send(PushHeader(1, 8, 0, 4));
    REQUIRE(link.Receive().has_value());
  }
  RawLink again = server.Connect(0);
  again.Share(0, 0, *mine);
  RawLink second = server.Connect(1);
  again.Send(PushHeader(0, 9, 0, 4));
  second.Send(PushHeader(1, 9, 0, 4));
  REQUIRE(again.Receive().has_value());
  second.Share(1, 0, *other);
  second.Send(Reference(1, 7, kBytes));
  REQUIRE(second.Receive().has_value());
  again.Send(Reference(0, 7, kBytes));
  const auto result = again.Receive();
  REQUIRE(result.has_value());
  CHECK(result->header.flags == kByReference);
  CHECK(reinterpret_cast<const int32_t*>(mine->data())[kBytes / 4 - 1] == 2);
}

// Else it might get it, go on to the next round, and only then be heard to resume this one.
TEST_CASE("over a new link no result goes out before the rank has said what it has of it") {
  TestServer server(2);
  {
    RawLink link = server.Connect(0), second = server.Connect(1);
    link.Send(PushHeader(0, 7, 0, 4));
    link.Send(PushHeader(0, 8, 0, 4));  // its result says that all before it was handled
    second.Send(PushHeader(1, 8, 0, 4));
    REQUIRE(link.Receive().has_value());
  }
  RawLink again = server.Connect(0), second = server.Connect(1);
  again.Send(PushHeader(0, 9, 0, 4));
  second.Send(PushHeader(1, 7, 0, 4));
  second.Send(PushHeader(1, 9, 0, 4));
  auto answer = again.Receive();
  REQUIRE(answer.has_value());
  CHECK(answer->header.key == 9);
  Header resume = PushHeader(0, 7, 0, 4);
  resume.type = FrameType::kResume;
  resume.length = 0;
  again.Send(resume);
  for (const FrameType type : {FrameType::kResumed, FrameType::kResult}) {
    answer = again.Receive();
    REQUIRE(answer.has_value());
    CHECK(answer->header.type == type);
    CHECK(answer->header.key == 7);
  }
}

TEST_CASE("a link that was let in late does not replace its successor") {
  Shard shard({.on_event = [](uint32_t, Code, const std::string&, bool) {}});
  REQUIRE(shard.Start().ok());
  shard.SetWorld({1, NumbersOf(1)});
  auto first = MakeStreams(FreshUrl("inproc")), second = MakeStreams(FreshUrl("inproc"));
  shard.AddLink(std::move(second.server), {.view = 1, .number = 2});
  shard.AddLink(std::move(first.server), {.view = 1, .number = 1});
  RawLink late(std::move(first.client)), link(std::move(second.client));
  CHECK(!late.Receive().has_value());
  link.Send(PushHeader(0, 1, 0, 4096));
  CHECK(link.Receive().has_value());
}

TEST_CASE("a rank that leaves in the middle of its contribution is named at once") {
  TestServer server(2);
  RawLink leaving = server.Connect(0), waiting = server.Connect(1);
  Header half = PushHeader(0, 3, 0, 8192);
  half.length = 4096;
  leaving.Send(half);
  leaving.Send(Goodbye(0));
  waiting.Send(PushHeader(1, 3, 0, 8192));
  const std::string error = waiting.ReceiveError();
  CHECK(Contains(error, "rank 0 is no longer in the job"));
}

TEST_CASE("a rank that has died is waited for no more, and its link stays closed") {
  Shard shard({.on_event = [](uint32_t, Code, const std::string&, bool) {}});
  REQUIRE(shard.Start().ok());
  shard.SetWorld({1, NumbersOf(2)});
  auto dead = MakeStreams(FreshUrl("inproc")), again = MakeStreams(FreshUrl("inproc")),
       alive = MakeStreams(FreshUrl("inproc"));
  shard.AddLink(std::move(dead.server), {.rank = 0, .view = 1, .number = 1});
  shard.AddLink(std::move(alive.server), {.rank = 1, .view = 1, .number = 2});
  RawLink before(std::move(dead.client)), after(std::move(again.client)), waiting(std::move(alive.client));
  shard.LeaveOut(2, 0);  // of an epoch that isn't
  shard.LeaveOut(1, 7);  // nor is there such a rank
  waiting.Send(PushHeader(1, 3, 0, 8192));
  shard.LeaveOut(1, 0);
  shard.LeaveOut(1, 0);
  CHECK(!before.Receive().has_value());
  const std::string error = waiting.ReceiveError();
  CHECK(Contains(error, "rank 0 is no longer in the job"));
  shard.AddLink(std::move(again.server), {.rank = 0, .view = 1, .number = 3});
  CHECK(!after.Receive().has_value());
}

TEST_CASE("what breaks the protocol fails the job, and names who and how") {
  const auto error_after = [](const Header& header) {
    TestServer server(2);
    RawLink link = server.Connect(0), other = server.Connect(1);
    link.Send(header);
    const std::string error = other.ReceiveError();
    CHECK(Contains(error, "rank 0"));
    return error;
  };
  SUBCASE("a total that splits an element: what its buffer holds is less than what its frames may carry") {
    CHECK(Contains(error_after(PushHeader(0, 1, 0, 4099)), "4099"));
  }
  SUBCASE("an empty partition") { CHECK(Contains(error_after(PushHeader(0, 1, 0, 0)), "0 bytes")); }
  SUBCASE("a root that is not of the world") {
    Header header = PushHeader(0, 1, 0, 4096);
    header.op = Op::kBroadcast;
    header.root = 2;
    CHECK(Contains(error_after(header), "root 2"));
  }
  SUBCASE("a segment out of order") {
    Header header = PushHeader(0, 1, 0, 4096);
    header.offset = 1024;
    header.length = 1024;
    CHECK(Contains(error_after(header), "out of order"));
  }
  SUBCASE("memory that was never shared") { CHECK(Contains(error_after(Reference(0, 1, 4096)), "not shared")); }
  SUBCASE("another rank than its link") {
    CHECK(Contains(error_after(PushHeader(1, 1, 0, 4096)), "the number of another member"));
  }
}

TEST_CASE("a rank that fails without a reason, or with one that nobody knows, fails the job all the same, once") {
  for (const uint32_t number : {0u, 256u, 77u}) {
    TestServer server(2);
    RawLink link = server.Connect(0), other = server.Connect(1);
    Header error;
    error.type = FrameType::kError;
    error.view = 1;
    error.aux = number;
    link.Send(error);
    const auto told = other.Receive();
    REQUIRE(told.has_value());
    CHECK(told->header.type == FrameType::kError);
    CHECK(told->header.aux == static_cast<uint32_t>(Code::kCorrupt));
    CHECK(server.failures == 1);
  }
}

TEST_CASE("a server that is failed without a reason fails") {
  TestServer server(1);
  RawLink link = server.Connect(0);
  (*server).Fail(1, Code::kOk, "something");
  const auto told = link.Receive();
  REQUIRE(told.has_value());
  CHECK(told->header.aux == static_cast<uint32_t>(Code::kSystem));
}

TEST_CASE("what fails an epoch that has ended is nothing to the next, and a failure is told with its epoch") {
  std::promise<uint32_t> told;
  Shard shard({.on_event = [&told](uint32_t epoch, Code, const std::string&, bool) { told.set_value(epoch); }});
  REQUIRE(shard.Start().ok());
  shard.SetWorld({2, NumbersOf(1)});
  shard.Fail(1, Code::kPeerLost, "late");
  auto streams = MakeStreams(FreshUrl("inproc"));
  shard.AddLink(std::move(streams.server), {.view = 2, .number = 1});
  RawLink link(std::move(streams.client));
  Header push = PushHeader(0, 1, 0, 4096);
  push.view = 2;
  link.Send(push);
  const auto answer = link.Receive();
  REQUIRE(answer.has_value());
  CHECK(answer->header.type != FrameType::kError);
  shard.Fail(2, Code::kPeerLost, "now");
  CHECK(told.get_future().get() == 2);
}

TEST_CASE("nobody can resume behind the end of the result") {
  TestServer server(2);
  RawLink link = server.Connect(0), other = server.Connect(1);
  Header first = PushHeader(0, 1, 0, 1 << 20), second = PushHeader(1, 1, 0, 1 << 20);
  first.length = second.length = 64 << 10;
  link.Send(first);
  other.Send(second);
  const auto result = link.Receive();  // cut-through: the first 64 KiB
  REQUIRE(result.has_value());
  Header resume = first;
  resume.type = FrameType::kResume;
  resume.length = 0;
  resume.offset = 1 << 20;
  link.Send(resume);
  resume.offset = 512 << 10;
  link.Send(resume);
  CHECK(Contains(other.ReceiveError(), "rank 0"));
}

TEST_CASE("a mismatch names the rank whose first segment is still on its way") {
  TestServer server(2);
  RawLink link = server.Connect(0), other = server.Connect(1);
  link.Send(PushHeader(0, 1, 0, 4096), Bytes(4096), 100);
  while (server.stats().open_rounds == 0) std::this_thread::yield();
  other.Send(PushHeader(1, 1, 0, 8192));
  CHECK(Contains(other.ReceiveError(), "but rank 0 sent sum of 4096 bytes"));
}

TEST_CASE("an operation that the type doesn't have is refused") {
  TestServer server(2);
  RawLink link = server.Connect(0);
  Header header = PushHeader(0, 1, 0, 4096);
  header.dtype = DType::kComplex64;
  header.op = Op::kMin;
  link.Send(header);
  CHECK(Contains(link.ReceiveError(), "min of 4096 bytes of complex64: there is no such operation"));
}

TEST_CASE("a text that is too long for a frame is cut") {
  TestServer server(1);
  RawLink link = server.Connect(0);
  (*server).Fail(1, Code::kPeerLost, std::string(200 << 10, 'x'));
  const auto error = link.Receive();
  REQUIRE(error.has_value());
  CHECK(error->payload.size() == kMaxText);
}

TEST_CASE("keys count against the memory limit") {
  TestServer server(2, 1 << 20);
  RawLink link = server.Connect(0);
  const auto buffer = Ones(4096);
  link.Share(0, 0, *buffer);
  for (uint64_t key = 0; key < 10000; ++key) link.Send(Reference(0, key, 64));
  CHECK(Contains(link.ReceiveError(), "server_memory_limit"));
}

TEST_CASE("what a key takes for each rank counts against the memory limit") {
  constexpr uint32_t kRanks = 1000;
  TestServer server(kRanks, 10 * kRanks * 2 * sizeof(Contribution));
  RawLink link = server.Connect(0);
  Header absent = PushHeader(0, 0, 0, 64);
  absent.flags = kAbsent;
  absent.length = 0;
  for (; absent.key < 20; ++absent.key) link.Send(absent);
  CHECK(Contains(link.ReceiveError(), "server_memory_limit"));
  CHECK(server.stats().keys < 10);
}

TEST_CASE("a round says that its tensor moves only if all ranks have said so") {
  TestServer server(2);
  RawLink first = server.Connect(0), second = server.Connect(1);
  for (uint32_t round = 0; round < 4; ++round) {
    Header from_first = PushHeader(0, 7, round, 8), from_second = PushHeader(1, 7, round, 8);
    from_first.flags = round & 1 ? kMovable : 0;
    from_second.flags = round & 2 ? kMovable : 0;
    first.Send(from_first);
    second.Send(from_second);
    for (RawLink* link : {&first, &second}) CHECK(link->Receive()->header.flags == (round == 3 ? kMovable : 0));
  }
}

TEST_CASE("a key that all ranks forget is freed, and may begin anew") {
  TestServer server(2);
  RawLink first = server.Connect(0), second = server.Connect(1);
  const auto push = [&](uint32_t round) {
    first.Send(PushHeader(0, 7, round, 4096));
    second.Send(PushHeader(1, 7, round, 4096));
    for (RawLink* link : {&first, &second}) REQUIRE(link->Receive()->header.type == FrameType::kResult);
  };
  push(0);
  first.Send(Forget(0, 7));
  first.Send(Forget(0, 7));
  push(1);  // what comes behind it on the same links: the frames before have been read
  CHECK(server.stats().keys == 1);
  second.Send(Forget(1, 7));
  REQUIRE(server.HasReceived(7));  // `first` could be heard sooner otherwise: a round that is over
  push(0);
  CHECK(server.stats().keys == 1);
  CHECK(server.stats().memory == 4096);
}

TEST_CASE("a round that all who have come to it give up is freed, and who comes later is not heard") {
  TestServer server(3);
  RawLink first = server.Connect(0), second = server.Connect(1), late = server.Connect(2);
  const auto sum = [&](uint64_t key) {  // its results say that all before it was handled
    for (const auto& [link, rank] : {std::pair(&first, 0u), {&second, 1u}, {&late, 2u}}) {
      std::vector<std::byte> one(4);
      one[0] = std::byte{1};
      link->Send(PushHeader(rank, key, 0, 4), one);
    }
    for (RawLink* link : {&first, &second, &late}) {
      const auto result = link->Receive();
      REQUIRE(result.has_value());
      CHECK(result->header.key == key);
      CHECK(result->payload[0] == std::byte{3});
    }
  };
  first.Send(PushHeader(0, 7, 0, 4096));
  second.Send(PushHeader(1, 7, 0, 4096));
  REQUIRE(server.HasReceived(2));
  first.Send(Forget(0, 7));
  sum(8);
  CHECK(server.stats().keys == 2);
  second.Send(Forget(1, 7));
  sum(9);
  CHECK(server.stats().keys == 2);
  CHECK(server.stats().open_rounds == 0);
  const uint64_t of_two = server.stats().memory;
  late.Send(PushHeader(2, 7, 0, 4096));
  late.Send(Forget(2, 7));
  sum(10);
  CHECK(server.stats().keys == 3);
  CHECK(server.stats().memory == of_two / 2 * 3);
  CHECK(server.failures == 0);
}

TEST_CASE("a round is not freed before a rank that has begun its contribution gives it up, too") {
  TestServer server(3);
  RawLink first = server.Connect(0), slow = server.Connect(1), third = server.Connect(2);
  Header segment = PushHeader(1, 7, 0, 4096);
  segment.length = 1000;
  first.Send(PushHeader(0, 7, 0, 4096));
  slow.Send(segment);
  REQUIRE(server.HasReceived(2));
  first.Send(Forget(0, 7));
  REQUIRE(server.HasReceived(3));
  CHECK(server.stats().keys == 1);
  CHECK(server.stats().open_rounds == 1);
  slow.Send(Forget(1, 7));
  segment.offset = 1000;
  slow.Send(segment);  // was on its way: it is not heard
  first.Send(PushHeader(0, 8, 0, 4));
  slow.Send(PushHeader(1, 8, 0, 4));
  third.Send(PushHeader(2, 8, 0, 4));
  for (RawLink* link : {&first, &slow, &third}) {
    const auto result = link->Receive();
    REQUIRE(result.has_value());
    CHECK(result->header.key == 8);
  }
  CHECK(server.stats().keys == 1);
  CHECK(server.stats().open_rounds == 0);
  CHECK(server.failures == 0);
}

// Ranks that disagree for ever leave nothing behind but the numbers of the last keys.
TEST_CASE("what is remembered of rounds that were given up is bounded") {
  constexpr uint32_t kMost = 1u << 16;
  TestServer server(2);
  RawLink link = server.Connect(0), late = server.Connect(1);
  for (uint64_t key = 0; key <= kMost; ++key) {
    link.Send(PushHeader(0, key, 0, 4));
    link.Send(Forget(0, key));
  }
  REQUIRE(server.HasReceived(2 * (uint64_t{kMost} + 1)));
  CHECK(Becomes(server.stats().keys, 0));
  CHECK(server.stats().open_rounds == 0);
  late.Send(PushHeader(1, kMost, 0, 4));  // the last one is known,
  late.Send(PushHeader(1, 0, 0, 4));      // the first is not any more
  REQUIRE(server.HasReceived(2 * (uint64_t{kMost} + 1) + 2));
  CHECK(Becomes(server.stats().keys, 1));
}

TEST_CASE("a rank that says the same again and again does not keep a dead round alive") {
  TestServer server(2, 0, {.stall_warning = 0.2, .stall_timeout = 1});
  RawLink link = server.Connect(0);
  Header part = PushHeader(0, 1, 0, 4096);
  part.length = 4;
  std::optional<Message> message;
  for (const Deadline end = In(4); Clock::now() < end && !message;) {
    link.Send(part);
    message = link.Receive(0.1);
    if (message && message->header.type == FrameType::kWarning) message.reset();
  }
  REQUIRE(message.has_value());
  CHECK(message->header.type == FrameType::kError);
  CHECK(message->header.aux == static_cast<uint32_t>(Code::kStalled));
}

// Else the server would read from memory that has another use by then.
TEST_CASE("a rank that goes on while its result is on its way is named, and so is one that forgets the key") {
  constexpr uint32_t kMoreThanARing = kRingBytes + 4096;
  TestServer server(2);
  RawLink hasty = server.Connect(0), other = server.Connect(1);
  hasty.Send(PushHeader(0, 7, 0, kMoreThanARing));
  other.Send(PushHeader(1, 7, 0, kMoreThanARing));
  REQUIRE(other.Receive()->header.type == FrameType::kResult);
  SUBCASE("goes on") {
    hasty.Send(PushHeader(0, 7, 1, 4096));
    CHECK(
        Contains(other.ReceiveError(), "rank 0 broke the protocol: key 7: the rank begins a round without the result"));
  }
  SUBCASE("forgets") {
    hasty.Send(Forget(0, 7));
    other.Send(Forget(1, 7));
    CHECK(Contains(other.ReceiveError(),
                   "rank 0 broke the protocol: key 7: the rank forgets the key before it has its result"));
  }
}

TEST_CASE("many rounds that wait: one warning to each who waits, not one per round") {
  TestServer server(2, 0, {.stall_warning = 0.2, .stall_timeout = 20});
  RawLink link = server.Connect(0);
  for (uint64_t key = 0; key < 100; ++key) link.Send(PushHeader(0, key, 0, 64));
  int warnings = 0;
  for (const Deadline end = In(0.9); Clock::now() < end; ++warnings) {
    const auto message = link.Receive(1);
    REQUIRE(message.has_value());
    CHECK(message->header.type == FrameType::kWarning);
  }
  CHECK(warnings >= 2);
  CHECK(warnings < 10);
}

TEST_CASE("what is called after Stop does nothing") {
  TestServer server(1);
  RawLink link = server.Connect(0);
  (*server).Stop();
  (*server).Fail(1, Code::kPeerLost, "late");
  (*server).SetWorld({2, NumbersOf(1)});
  CHECK((*server).shards().size() == 1);
  CHECK(!link.Receive().has_value());
}

}  // namespace byteps_like::testing
