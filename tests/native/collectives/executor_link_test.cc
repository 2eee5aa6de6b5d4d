// Programs over real links, the mild faults of chaos included.
#include "tests/native/collectives/executor_fixture.h"
#include "tests/native/transport/links/link_world.h"

namespace byteps_like::testing {
namespace {

constexpr const char* kDelays = "?seed=5&delay_ms=1&stall=0.001&stall_ms=5";

struct LinkKind {
  const char* scheme;
  const char* query;
};
constexpr LinkKind kLinkKinds[] = {
    {"inproc", ""}, {"tcp", ""}, {"shm", ""}, {"chaos+inproc", kDelays}, {"chaos+tcp", kDelays}};

}  // namespace

TEST_CASE("executor over links: all-reduces of several shapes, several at once") {
  for (const LinkKind& kind : kLinkKinds) {
    for (const uint32_t n : {2u, 3u, 4u}) {
      INFO(std::string(kind.scheme) << ", " << n << " ranks");
      LinkWorld world(n, kind.scheme, kind.query);
      std::vector<std::unique_ptr<Reduction<float>>> reductions;
      for (uint32_t lane = 1; lane <= 6; ++lane) {
        Shape shape{RingAllReduce, Cut(5000 * lane, n), lane % 3 == 0 ? Op::kAverage : Op::kSum, lane % 2 == 0};
        if (lane == 6) shape.counts = Cut(300'000, n);
        if (lane == 5 && n != 3) shape.make = HalvingAllReduce;
        if (lane == 4 && n != 3) shape = {DoublingAllReduce, {100'000}, Op::kSum, true};
        shape.segment = lane % 2 == 0 ? 4096 : kDefaultSegment;
        shape.id = {lane, 0};
        reductions.push_back(std::make_unique<Reduction<float>>(n, shape));
      }
      Runs runs;
      for (uint32_t rank = 0; rank < n; ++rank) {
        for (size_t i = 0; i < reductions.size(); ++i) {
          const size_t which = (i * (rank * 2 + 1) + rank) % reductions.size();
          if (std::gcd<size_t>(rank * 2 + 1, reductions.size()) != 1) continue;
          runs.push_back(world.at(rank).Launch(reductions[which]->OptionsOf(rank)));
        }
        if (std::gcd<size_t>(rank * 2 + 1, reductions.size()) == 1) continue;
        for (auto& reduction : reductions) runs.push_back(world.at(rank).Launch(reduction->OptionsOf(rank)));
      }
      CheckAllOk(runs, 60);
      for (const auto& reduction : reductions) reduction->Check();
    }
  }
}

TEST_CASE("executor over links: the same bits in every run, whatever is late") {
  std::vector<float> first;
  for (uint32_t run = 0; run < 20; ++run) {
    LinkWorld world(3, "chaos+inproc", "?seed=" + std::to_string(run) + "&delay_ms=0.3&stall=0.01&stall_ms=1");
    Reduction<float> reduction(3, {RingAllReduce, Cut(20'000, 3), Op::kSum, true, 4096});
    for (uint32_t rank = 0; rank < 3; ++rank) {
      for (size_t i = 0; i < 20'000; ++i) reduction.input(rank)[i] = 1.0f / static_cast<float>(rank * 20'000 + i + 3);
    }
    CheckAllOk(LaunchAll(world, 3, reduction));
    if (first.empty()) first = reduction.output(0);
    for (uint32_t rank = 0; rank < 3; ++rank) CHECK(reduction.output(rank) == first);
  }
}

TEST_CASE("executor over links: payload bytes are those of the ring's formula") {
  constexpr uint32_t n = 3, count = 90'000;
  LinkWorld world(n, "inproc");
  Reduction<float> reduction(n, {RingAllReduce, Cut(count, n), Op::kSum, true});
  CheckAllOk(LaunchAll(world, n, reduction));
  for (uint32_t rank = 0; rank < n; ++rank) {
    const uint64_t description = std::string("all_reduce").size();
    const auto sent = world.counters(rank, (rank + 1) % n).payload_sent;
    CHECK(sent == 2 * (n - 1) * count * 4 / n + description);
  }
}

TEST_CASE("executor over links: a rank that goes in the middle fails the others") {
  for (const char* scheme : {"inproc", "tcp"}) {
    LinkWorld world(3, scheme);
    Reduction<float> reduction(3, {RingAllReduce, Cut(300'000, 3), Op::kSum, true});
    Runs runs;
    for (const uint32_t rank : {0u, 1u}) runs.push_back(world.at(rank).Launch(reduction.OptionsOf(rank)));
    runs[0]->Wait(In(0.05));  // what can be sent has been
    CHECK_FALSE(runs[0]->done());
    world.Lose(2);
    for (auto& run : runs) {
      REQUIRE(run->Wait(In(10)));
      const Code code = run->status().code();
      INFO(run->status().message());
      CHECK((code == Code::kPeerLost || code == Code::kClosed));
      CHECK(run->status().message().find("rank 2") != std::string::npos);
    }
  }
}

TEST_CASE("executor over links: deadlines name the silent rank, and the next call goes well") {
  LinkWorld world(3, "inproc");
  Shape shape{RingAllReduce, Cut(30'000, 3), Op::kSum, true};
  shape.timeout = 0.3;
  Reduction<float> reduction(3, shape);
  Runs runs;
  for (const uint32_t rank : {0u, 1u}) runs.push_back(world.at(rank).Launch(reduction.OptionsOf(rank)));
  for (auto& run : runs) {
    REQUIRE(run->Wait(In(10)));
    CHECK(run->status().code() == Code::kTimeout);
    CHECK_MESSAGE(run->status().message().find("rank 2") != std::string::npos, run->status().message());
  }
  const auto late = world.at(2).Launch(reduction.OptionsOf(2));
  REQUIRE(late->Wait(In(10)));
  CHECK(late->status().code() == Code::kTimeout);
  shape.id.call = 1;
  shape.timeout = 20;
  Reduction<float> next(3, shape);
  CheckAllOk(LaunchAll(world, 3, next));
  next.Check();
}

}  // namespace byteps_like::testing
