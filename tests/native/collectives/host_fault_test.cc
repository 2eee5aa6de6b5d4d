// What goes wrong among ranks of one host: they disagree, don't come, or die; and what they may do at the same time.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <csignal>
#include <deque>
#include <random>

#include "collectives/host/host_layout.h"
#include "tests/native/collectives/host_fixture.h"
#include "tests/native/resource_limits.h"
#include "tests/native/slow.h"
#include "tests/sanitizers.h"

namespace byteps_like::testing {
namespace {

HostCall SumOf(std::vector<float>& tensor, double timeout = 30) {
  auto* data = reinterpret_cast<std::byte*>(tensor.data());
  HostCall call{.input = data, .output = data, .bytes = tensor.size() * 4};
  call.timeout = timeout;
  return call;
}

// What the area takes, in pages that have been used.
uint64_t MemoryOf(HostWorld& world) {
  struct stat about{};
  REQUIRE(::fstat(world.area()->fd(), &about) == 0);
  return static_cast<uint64_t>(about.st_blocks) * 512;
}

// A call of any kind that takes a while, with tensors of `bytes` in all.
struct AnyCall {
  AnyCall(HostKind kind, uint32_t ranks, uint32_t rank, size_t bytes, std::byte* shared)
      : memory(shared == nullptr ? 2 * bytes : 0) {
    std::byte* base = shared == nullptr ? memory.data() : shared;
    call = {.kind = kind, .input = base, .output = base + bytes, .bytes = bytes, .timeout = 30};
    const uint64_t each = bytes / ranks / 4 * 4;
    for (uint32_t j = 0; j < ranks; ++j) sections.push_back({static_cast<int64_t>(j * each), each});
    const bool root = rank == 0;
    const bool takes = kind == HostKind::kReduceScatter || kind == HostKind::kAllToAll;
    const bool gives = kind == HostKind::kAllGather || kind == HostKind::kAllToAll;
    if (takes || (kind == HostKind::kScatter && root)) call.input_chunks = sections;
    if (gives || (kind == HostKind::kGather && root)) call.output_chunks = sections;
    const bool whole = kind == HostKind::kAllReduce || kind == HostKind::kReduce || kind == HostKind::kBroadcast;
    if (!whole) call.bytes = each;
  }
  std::vector<std::byte> memory;
  std::vector<Chunk> sections;
  HostCall call;
};

// Forks ranks 1..n-1 that call for ever, kills rank 1 in the midst, and says on each survivor what it got.
struct Survival {
  uint32_t ranks;
  HostKind kind;
  size_t bytes;
  bool shared;
  bool told;  // by the mesh; otherwise found out
};

int CallUntilFailure(HostWorld& world, const Survival& s, uint32_t rank, std::atomic<uint32_t>& rounds) {
  int result = 9;
  world.Be(rank, [&](HostRank me) {
    auto group = me.area.Group(1, world.everybody());
    AnyCall any(s.kind, s.ranks, rank, s.bytes, s.shared ? me.region : nullptr);
    Status status;
    while (status.ok()) {
      status = (*group)->Run(any.call);
      if (rank == 0) rounds.fetch_add(1);
    }
    result = status.code() == Code::kPeerLost && Says(status, "rank 1") ? 0 : 1;
    // The next call fails at once too.
    if ((*group)->Run(any.call).code() != Code::kPeerLost) result = 2;
  });
  return result;
}

// What the mesh of one rank says, all ranks of the host know.
void Tell(HostWorld& world, uint32_t ranks) {
  const pid_t teller = ::fork();
  if (teller == 0) {
    auto area = HostArea::Attach({world.area(), ranks - 1, RankNames(ranks), nullptr});
    (*area)->Fail(1, Status(Code::kPeerLost, "rank 1 is lost"));
    ::_exit(0);
  }
  ::waitpid(teller, nullptr, 0);
}

void CheckSurvival(const Survival& s) {
  HostWorld world(s.ranks, s.shared ? 2 * s.bytes : 0);
  auto page = SharedBuffer::Create(4096);
  auto& rounds = *reinterpret_cast<std::atomic<uint32_t>*>((*page)->data());
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < s.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(CallUntilFailure(world, s, rank, rounds));
    children.push_back(child);
  }
  const auto limit = In(20);
  while (rounds.load() < 5 && Clock::now() < limit) ::usleep(200);
  ::usleep(500 * (static_cast<int>(s.kind) % 3));
  ::kill(children[1], SIGKILL);
  const auto killed = Clock::now();
  if (s.told) Tell(world, s.ranks);
  for (uint32_t rank = 0; rank < s.ranks; ++rank) {
    int status = 0;
    ::waitpid(children[rank], &status, 0);
    CAPTURE(rank);
    if (rank != 1) CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  }
  CHECK(SecondsSince(killed) < kSlow);
}

}  // namespace

TEST_CASE("host: ranks that disagree are told both calls, and go on") {
  HostWorld world(3);
  world.Run([&](HostRank me) {
    auto group = me.area.Group(5, world.everybody());
    std::vector<float> tensor(me.rank == 1 ? 20 : 10, 1);
    const Status status = (*group)->Run(SumOf(tensor));
    CHECK(status.code() == Code::kMismatch);
    CHECK(Says(status, "all_reduce sum float32[10]"));
    CHECK(Says(status, "all_reduce sum float32[20]"));
    CHECK(Says(status, "rank 1"));
    tensor.assign(10, 1);
    HostCall call = SumOf(tensor);
    call.dtype = me.rank == 2 ? DType::kInt32 : DType::kFloat32;
    CHECK((*group)->Run(call).code() == Code::kMismatch);
    call.kind = me.rank == 0 ? HostKind::kBroadcast : HostKind::kAllReduce;
    CHECK((*group)->Run(call).code() == Code::kMismatch);
    tensor.assign(10, 1);
    CHECK((*group)->Run(SumOf(tensor)).ok());
    CHECK(tensor == std::vector<float>(10, 3));
  });
}

TEST_CASE("host: lengths that only two ranks know are compared") {
  HostWorld world(3);
  world.Run([&](HostRank me) {
    auto group = me.area.Group(5, world.everybody());
    std::vector<std::byte> memory(4096);
    std::vector<Chunk> in, out;
    for (int j = 0; j < 3; ++j) {
      in.push_back({j * 64, me.rank == 0 && j == 2 ? 40u : 32u});
      out.push_back({1024 + j * 64, 32});
    }
    HostCall call{.kind = HostKind::kAllToAll, .input = memory.data(), .output = memory.data()};
    call.input_chunks = in;
    call.output_chunks = out;
    const Status status = (*group)->Run(call);
    if (me.rank != 2 && status.ok()) return;  // it had given and got all its own before the third rank saw it
    CHECK(status.code() == Code::kMismatch);
    CHECK(Says(status, "rank 0 sends 40 bytes to rank 2, which expects 32"));
  });
}

TEST_CASE("host: an invalid call fails on all ranks, and only that call") {
  HostWorld world(2);
  world.Run([&](HostRank me) {
    auto group = me.area.Group(5, world.everybody());
    std::vector<float> tensor(10, 1);
    HostCall call = SumOf(tensor);
    if (me.rank == 0) call.divisor = 0;
    CHECK((*group)->Run(call).code() == Code::kInvalid);
    CHECK((*group)->Run(SumOf(tensor)).ok());
  });
}

TEST_CASE("host: who does not come by the deadline is named, and the group goes on") {
  HostWorld world(3);
  std::atomic<int> failed{0};
  world.Run([&](HostRank me) {
    auto group = me.area.Group(5, world.everybody());
    std::vector<float> tensor(100, 1);
    if (me.rank == 2) {
      while (failed.load() < 2) std::this_thread::yield();
    }
    const Status status = (*group)->Run(SumOf(tensor, me.rank == 0 ? 0.05 : 30));
    CHECK(status.code() == Code::kTimeout);
    CHECK(Says(status, "rank 2 has not begun it"));
    CHECK(Says(status, "all_reduce sum float32[100]"));
    ++failed;
    tensor.assign(100, 1);
    CHECK((*group)->Run(SumOf(tensor)).ok());
    CHECK(tensor[7] == 3);
  });
}

TEST_CASE("host: calls that nobody else makes don't use anything up") {
  HostWorld world(2);
  std::atomic<bool> done{false};
  world.Run([&](HostRank me) {
    auto group = me.area.Group(5, world.everybody());
    std::vector<float> tensor(10, 1);
    for (int i = 0; i < 20; ++i) {  // more than the ring holds
      if (me.rank == 1) {
        while (!done.load()) std::this_thread::yield();
      }
      CHECK((*group)->Run(SumOf(tensor, 0.01)).code() == Code::kTimeout);
    }
    done = true;
    tensor.assign(10, 1);
    CHECK((*group)->Run(SumOf(tensor, 20)).ok());
    CHECK(tensor[3] == 2);
  });
}

TEST_CASE("host: a cancelled call ends on all ranks") {
  HostWorld world(2);
  std::atomic<bool> failed{false};
  world.Run([&](HostRank me) {
    auto group = me.area.Group(5, world.everybody());
    std::vector<float> tensor(10, 1);
    if (me.rank == 0) {
      auto call = (*group)->Launch(SumOf(tensor));
      (*group)->Cancel(call, Status(Code::kInvalid, "rank 0 has no more time"));
      CHECK(call->Wait(In(20)));
      CHECK(Says(call->status(), "no more time"));
      failed = true;
    } else {
      while (!failed.load()) std::this_thread::yield();
      CHECK(Says((*group)->Run(SumOf(tensor)), "no more time"));
    }
    CHECK((*group)->Run(SumOf(tensor)).ok());
  });
}

TEST_CASE("host: when a lane is cancelled all its calls end on all ranks, and those of other lanes go on") {
  HostWorld world(2);
  std::atomic<bool> cancelled{false};
  world.Run([&](HostRank me) {
    auto group = me.area.Group(5, world.everybody());
    auto other = me.area.Group(6, world.everybody());
    std::vector<std::vector<float>> tensors(4, std::vector<float>(10, 1));
    if (me.rank == 0) {
      auto first = (*group)->Launch(SumOf(tensors[0])), second = (*group)->Launch(SumOf(tensors[1]));
      auto apart = (*other)->Launch(SumOf(tensors[2]));
      me.area.CancelLane(7, Status(Code::kInvalid, "there is no such lane"));
      me.area.CancelLane(5, Status(Code::kInvalid, "the group has shrunk"));
      for (const auto& call : {first, second}) {
        CHECK(call->Wait(In(20)));
        CHECK(Says(call->status(), "the group has shrunk"));
      }
      cancelled = true;
      CHECK(apart->Wait(In(20)));
      CHECK(apart->status().ok());
    } else {
      while (!cancelled.load()) std::this_thread::yield();
      for (auto& tensor : {&tensors[0], &tensors[1]})
        CHECK(Says((*group)->Run(SumOf(*tensor)), "the group has shrunk"));
      CHECK((*other)->Run(SumOf(tensors[2])).ok());
    }
    CHECK(tensors[2][0] == 2);
    CHECK((*group)->Run(SumOf(tensors[3])).ok());
  });
}

TEST_CASE("host: a rank that closes ends the waits of the others") {
  HostWorld world(2);
  world.Run([&](HostRank me) {
    auto group = me.area.Group(5, world.everybody());
    std::vector<float> tensor(10, 1);
    CHECK((*group)->Run(SumOf(tensor)).ok());
    if (me.rank == 0) return;
    const Status status = (*group)->Run(SumOf(tensor));
    CHECK(status.code() == Code::kPeerLost);
    CHECK(Says(status, "rank 0 has left"));
  });
}

TEST_CASE("host: who is given up by the others, but lives, has no say about them") {
  HostWorld world(3);
  std::barrier step(3);
  const auto lost = [](uint32_t rank) { return Status(Code::kPeerLost, "rank " + std::to_string(rank) + " is lost"); };
  world.Run([&](HostRank me) {
    auto everybody = me.area.Group(5, world.everybody()), others = me.area.Group(6, {0, 1});
    step.arrive_and_wait();
    if (me.rank == 0) me.area.Fail(2, lost(2));
    step.arrive_and_wait();
    if (me.rank == 2) me.area.Fail(0, lost(0)), me.area.Fail(1, lost(1));
    step.arrive_and_wait();
    std::vector<float> tensor(10, 1);
    CHECK((*everybody)->Run(SumOf(tensor)).code() == Code::kPeerLost);
    if (me.rank == 2) return;
    tensor.assign(10, 1);
    CHECK((*others)->Run(SumOf(tensor)).ok());
    CHECK(tensor == std::vector<float>(10, 2));
  });
}

TEST_CASE("host: a rank that has done its part and left fails nobody's call") {
  constexpr uint64_t kLong = 48u << 20;
  HostWorld world(3);
  world.Run([&](HostRank me) {
    const std::vector<Chunk> sections = {{0, 64}, {64, 64}, {128, kLong}};
    std::vector<std::byte> memory(kLong + 256, std::byte(me.rank));
    auto group = me.area.Group(5, world.everybody());
    HostCall call{.kind = HostKind::kGather, .input = memory.data(), .output = memory.data(), .timeout = 20};
    call.bytes = sections[me.rank].bytes;
    if (me.rank == 0) call.output_chunks = sections;
    const Status status = (*group)->Run(call);
    CHECK_MESSAGE(status.ok(), status.message());
    if (me.rank == 1) return me.area.Close(Status(Code::kClosed, "rank 1 has left"));
    if (me.rank == 0) CHECK((memory[64] == std::byte(1) && memory[kLong + 127] == std::byte(2)));
    CHECK((*group)->Run({.kind = HostKind::kBarrier, .timeout = 20}).code() == Code::kPeerLost);
  });
}

TEST_CASE("host: failures that another process has written are bounded") {
  char text[kHostText];
  std::fill(std::begin(text), std::end(text), 'x');
  CHECK(FailureIn(8, text).message().size() == kHostText);
  CHECK(FailureIn(8, text).code() == Code::kClosed);
  CHECK(FailureIn(0, text).code() == Code::kCorrupt);
  CHECK(FailureIn(256, text).code() == Code::kCorrupt);
}

TEST_CASE("host: thousands of groups at work at once, with little memory for each") {
  HostWorld world(2);
  constexpr uint64_t kLanes = 4096;
  world.Run([&](HostRank me) {
    std::deque<std::vector<float>> tensors;
    std::vector<std::shared_ptr<HostGroup>> groups;
    for (uint64_t lane = 0; lane < kLanes; ++lane) {
      auto group = me.area.Group(lane, world.everybody());
      REQUIRE(group.ok());
      groups.push_back(std::move(*group));
    }
    std::vector<std::shared_ptr<Completion>> calls;
    for (auto& group : groups) {
      tensors.emplace_back(10, 1);
      calls.push_back(group->Launch(SumOf(tensors.back())));
    }
    for (auto& call : calls) {
      REQUIRE(call->Wait(In(60)));
      CHECK(call->status().ok());
    }
  });
  CHECK(MemoryOf(world) / kLanes < (64u << 10));
}

TEST_CASE("host: memory through which a group has passed tensors is given back when it has gone") {
  HostWorld world(2);
  std::atomic<uint64_t> most{0};
  world.Run([&](HostRank me) {
    std::vector<float> tensor(1 << 20, 1);
    auto group = me.area.Group(1, world.everybody());
    REQUIRE(group.ok());
    CHECK((*group)->Run(SumOf(tensor)).ok());
    CHECK((*group)->Run({.kind = HostKind::kBarrier}).ok());
    most = MemoryOf(world);
    CHECK((*group)->Run({.kind = HostKind::kBarrier}).ok());
  });
  CHECK(most > (1u << 20));
  CHECK(MemoryOf(world) < (128u << 10));
}

TEST_CASE("host: what is in flight when this rank closes fails, also if nobody waits for it") {
  HostWorld world(2);
  std::atomic<int> launched{0};
  world.Run([&](HostRank me) {
    auto queue = std::make_shared<CompletionQueue>();
    std::vector<float> tensor(10, 1);
    auto group = me.area.Group(me.rank, world.everybody());  // two lanes: they never meet
    auto call = (*group)->Launch(SumOf(tensor));
    call->NotifyTo(queue, 7);
    ++launched;
    while (launched.load() < 2) std::this_thread::yield();
    me.area.Close(Status(Code::kClosed, "enough"));
    CHECK(queue->Pop(In(10)) == 7u);
    // The other may have left before this rank does.
    const Code why = call->status().code();
    CHECK((why == Code::kClosed || why == Code::kPeerLost));
    auto late = (*group)->Launch(SumOf(tensor));
    CHECK(late->Wait(In(10)));
    CHECK(late->status().code() == Code::kClosed);
  });
}

TEST_CASE("host: launched calls end without anybody waiting, and tell their queue") {
  HostWorld world(3, 4u << 20);
  world.Run([&](HostRank me) {
    auto queue = std::make_shared<CompletionQueue>();
    auto group = me.area.Group(5, world.everybody());
    std::vector<std::vector<float>> tensors(20, std::vector<float>(30000, 1));
    std::vector<std::shared_ptr<Completion>> calls;
    for (uint64_t i = 0; i < 20; ++i) {
      calls.push_back((*group)->Launch(SumOf(tensors[i])));
      calls.back()->NotifyTo(queue, i);
    }
    for (uint64_t i = 0; i < 20; ++i) CHECK(queue->Pop(In(20)) == i);
    for (int i = 0; i < 20; ++i) CHECK((calls[i]->done() && calls[i]->status().ok() && tensors[i][29999] == 3));
  });
}

TEST_CASE("host: groups of any ranks, launched in any order, never wait for each other in a circle") {
  constexpr uint32_t kRanks = 4;
  constexpr int kLanes = 3, kCalls = 250;  // of each lane: 750 launches on each rank
  std::mt19937 random(7);
  std::vector<std::vector<uint32_t>> members = {{0, 1, 2, 3}, {2, 0, 1}, {3, 1, 2}};
  HostWorld world(kRanks);
  world.Run([&](HostRank me) {
    std::mt19937 order(me.rank + 1);
    std::vector<int> lanes;
    std::vector<std::shared_ptr<HostGroup>> groups(kLanes);
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto& in = members[lane];
      if (std::find(in.begin(), in.end(), me.rank) == in.end()) continue;
      groups[lane] = *me.area.Group(100 + lane, in);
      lanes.insert(lanes.end(), kCalls, lane);
    }
    std::shuffle(lanes.begin(), lanes.end(), order);
    std::vector<std::unique_ptr<std::vector<float>>> tensors;
    std::vector<std::shared_ptr<Completion>> calls;
    std::vector<int> count(kLanes, 0);
    for (const int lane : lanes) {
      const int number = count[lane]++;
      tensors.push_back(std::make_unique<std::vector<float>>(number % 10 == 0 ? 40000 : number % 50 + 1, number));
      calls.push_back(groups[lane]->Launch(SumOf(*tensors.back(), 60)));
      if (order() % 16 == 0) calls.back()->Wait(In(0.001));
    }
    count.assign(kLanes, 0);
    for (size_t i = 0; i < lanes.size(); ++i) {
      CHECK(calls[i]->Wait(In(60)));
      CHECK(calls[i]->status().ok());
      const auto expected = static_cast<float>(members[lanes[i]].size() * count[lanes[i]]++);
      CHECK(tensors[i]->back() == expected);
    }
  });
}

TEST_CASE("host: a slot is a fresh one after its last member has left; a full table says so") {
  HostWorld world(1);
  world.Run([&](HostRank me) {
    std::vector<float> tensor(10, 1);
    for (uint64_t lane = 0; lane < 2 * kMostHostGroups; ++lane) {
      auto group = me.area.Group(lane, {0});
      REQUIRE(group.ok());
      CHECK((*group)->Run(SumOf(tensor)).ok());
    }
    std::vector<std::shared_ptr<HostGroup>> kept;
    for (uint64_t lane = 0; lane < kMostHostGroups; ++lane) kept.push_back(*me.area.Group(lane, {0}));
    CHECK(me.area.Group(99999, {0}).status().code() == Code::kCapacity);
    CHECK(me.area.Group(3, {0}).ok());
    kept.pop_back();
    CHECK(me.area.Group(99999, {0}).ok());
  });
}

namespace {

// Plays rank 1 by hand, in a call of which it has posted what rank 0 posted and staged nothing yet.
Status RunAgainst(HostWorld& world, const std::function<void(HostPost& post)>& change) {
  Status status;
  std::thread rank([&] {
    world.Be(0, [&](HostRank me) {
      std::vector<float> tensor(100'000, 1);
      HostCall call = SumOf(tensor);
      call.timeout = 1;
      status = (*me.area.Group(1, {0, 1}))->Run(call);
    });
  });
  const HostLayout layout(world.area()->data(), 2, HostGroupsIn(world.area()->size(), 2));
  const auto limit = In(5);
  while (layout.member(0, 0).in.load() < PackWord(1, 1) && Clock::now() < limit) ::usleep(100);
  std::memcpy(static_cast<void*>(&layout.post(0, 1, 1)), static_cast<const void*>(&layout.post(0, 0, 1)), 64);
  layout.member(0, 1).in.store(PackWord(1, 1));
  ::usleep(100'000);  // rank 0 has compared them
  change(layout.post(0, 1, 1));
  rank.join();
  return status;
}

}  // namespace

TEST_CASE("host: a rank that changes its post after it was compared harms nobody") {
  for (const uint8_t direct : {kDirectInput, kDirectOutput}) {
    HostWorld world(2);
    const Status status = RunAgainst(world, [direct](HostPost& post) {
      post.direct |= direct;
      post.input_offset = post.output_offset = 1ull << 40;
      post.bytes = 1ull << 40;
    });
    CHECK(status.code() == Code::kTimeout);  // it stages nothing
    CHECK(Says(status, "rank 1"));
  }
}

namespace {

// What rank 0 is told when it makes a group while the lock's word is `word`. Rank 1 is this process as well, rank 2 one
// that has ended, and rank 3 never came.
Status GroupUnderLock(uint32_t word, const std::function<void(HostHeader&)>& meanwhile = {}) {
  HostWorld world(4);
  const HostLayout layout(world.area()->data(), 4, HostGroupsIn(world.area()->size(), 4));
  CHECK(InChild([&] {
          std::ignore = new auto(HostArea::Attach({world.area(), 2, RankNames(4), nullptr}));  // it does not leave
          return 0;
        }) == 0);
  auto one = HostArea::Attach({world.area(), 1, RankNames(4), nullptr});
  auto area = HostArea::Attach({world.area(), 0, RankNames(4), nullptr, 0.3});
  REQUIRE((one.ok() && area.ok()));
  layout.header().lock.store(word);
  std::thread other([&] {
    if (meanwhile) meanwhile(layout.header());
  });
  const Status told = (*area)->Group(1, {0, 1}).status();
  other.join();
  CHECK(((*area)->Group(1, {0, 1}).ok()) == told.ok());
  layout.header().lock.store(0);
  CHECK((*area)->Group(1, {0, 1}).ok());
  return told;
}

}  // namespace

TEST_CASE("host: a lock that a living rank keeps is an error that names it, and waited for no longer than is said") {
  for (const uint32_t owner : {1u, 3u}) {
    const Status told = GroupUnderLock(owner + 1);
    CHECK(told.code() == Code::kTimeout);
    CHECK(Says(told, "rank " + std::to_string(owner) + " keeps its lock"));
  }
}

TEST_CASE("host: a lock that belongs to no rank is an error") {
  for (const uint32_t word : {5u, 77u, ~0u}) {
    const Status told = GroupUnderLock(word);
    CHECK(told.code() == Code::kCorrupt);
    CHECK(Says(told, "belongs to no rank"));
  }
}

TEST_CASE("host: a lock is taken from a rank that has died, and when it is let go") {
  CHECK(GroupUnderLock(3).ok());
  CHECK(GroupUnderLock(2, [](HostHeader& header) {
          ::usleep(20'000);
          header.lock.store(0);
        }).ok());
}

TEST_CASE("host: a rank that lies about the lock holds up nobody who leaves, but their place stays taken") {
  HostWorld world(2);
  const HostLayout layout(world.area()->data(), 2, HostGroupsIn(world.area()->size(), 2));
  auto one = HostArea::Attach({world.area(), 1, RankNames(2), nullptr});
  auto area = HostArea::Attach({world.area(), 0, RankNames(2), nullptr, 0.05});
  auto group = (*area)->Group(1, {0});
  REQUIRE(group.ok());
  layout.header().lock.store(2);
  group->reset();
  layout.header().lock.store(0);
  CHECK(layout.lane(0).load() != 0);
  CHECK((*area)->Group(2, {0}).ok());
}

namespace {

// Which step went wrong in a process with little of a resource; 0: none.
int WorkUnder(Resource resource, const char* name) {
  Allow(resource, 1ull << 30);
  auto area = MakeHostArea(8);
  if (!area.ok()) return 1;
  const uint32_t groups = HostGroupsIn((*area)->size(), 8);
  if (groups < kLeastHostGroups || groups >= kMostHostGroups) return 2;
  auto attached = HostArea::Attach({*area, 0, RankNames(8), nullptr});
  std::vector<float> tensor(10, 1);
  if (!attached.ok() || !(*(*attached)->Group(1, {0}))->Run(SumOf(tensor)).ok()) return 3;
  Allow(resource, 1u << 20);
  for (const Status& none : {MakeHostArea(8).status(), SharedBuffer::Create(8u << 20).status()})
    if (none.code() != Code::kCapacity || !Says(none, name)) return 4;
  return 0;
}

}  // namespace

TEST_CASE("host: under a limit of file sizes or address space there is room for fewer groups; none is told by name") {
  CHECK(InChild([] { return WorkUnder(RLIMIT_FSIZE, "RLIMIT_FSIZE"); }) == 0);
  if (kMapsAtWill) CHECK(InChild([] { return WorkUnder(RLIMIT_AS, "RLIMIT_AS"); }) == 0);
}

TEST_CASE("host: a lane has one set of members") {
  HostWorld world(3);
  world.Run([&](HostRank me) {
    auto group = me.area.Group(1, world.everybody());
    REQUIRE(group.ok());
    CHECK((*group)->Run({.kind = HostKind::kBarrier}).ok());
    CHECK(me.area.Group(1, {2, 1, 0}).status().code() == Code::kInvalid);
    CHECK(*me.area.Group(1, world.everybody()) == *group);
    CHECK(me.area.Group(2, {(me.rank + 1) % 3}).status().code() == Code::kInvalid);
    CHECK((*group)->Run({.kind = HostKind::kBarrier}).ok());
  });
}

#ifndef __SANITIZE_THREAD__
TEST_CASE("host: kill -9 in the middle of each kind: all survivors name the dead rank within a second") {
  for (int kind = 0; kind < kHostKindCount; ++kind) {
    for (const bool shared : {false, true}) {
      CAPTURE(kind);
      CAPTURE(shared);
      CheckSurvival({3, static_cast<HostKind>(kind), 2u << 20, shared, shared});
    }
  }
}

TEST_CASE("host: kill -9 in the middle of small calls") {
  for (const uint32_t ranks : {2u, 4u}) CheckSurvival({ranks, HostKind::kAllReduce, 256, false, false});
}
#endif

}  // namespace byteps_like::testing
