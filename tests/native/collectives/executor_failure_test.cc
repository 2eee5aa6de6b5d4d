// How runs of programs end when they can't end well.
#include "tests/native/collectives/executor_fixture.h"

namespace byteps_like::testing {
namespace {

void CheckFailed(const Completion& run, Code code, const std::string& part) {
  REQUIRE(run.done());
  CHECK(run.status().code() == code);
  INFO(run.status().message());
  CHECK(run.status().message().find(part) != std::string::npos);
}

RunOptions Plain(const Reduction<float>& reduction, uint32_t rank) {
  return const_cast<Reduction<float>&>(reduction).OptionsOf(rank);
}

}  // namespace

TEST_CASE("executor: cancelled in the middle, it fails everywhere and touches nothing any more") {
  for (uint64_t when = 0; when < 60; when += 3) {
    constexpr uint32_t n = 3;
    FakeWorld world(n, static_cast<uint32_t>(when));
    Reduction<float> reduction(n, {RingAllReduce, Cut(900, n), Op::kSum, true, 256});
    Runs runs;
    world.Do([&] {
      world.net().on_event = [&](uint64_t event) {
        if (event == when) world.at(1).Cancel(runs[1], Status(Code::kClosed, "enough"));
      };
    });
    LaunchAll(world, n, reduction, runs);
    for (auto& run : runs) REQUIRE(run->Wait(In(20)));
    for (uint32_t rank = 0; rank < n; ++rank) {
      CheckFailed(*runs[rank], Code::kClosed, "enough");
      std::fill(reduction.input(rank).begin(), reduction.input(rank).end(), -5.0f);
    }
    world.Do([] {});
    for (uint32_t rank = 0; rank < n; ++rank) CHECK(reduction.output(rank) == std::vector<float>(900, -5.0f));
    // The group goes on with its next call.
    Shape next{RingAllReduce, Cut(900, n), Op::kSum, true, 256};
    next.id.call = 1;
    Reduction<float> again(n, next);
    CheckAllOk(LaunchAll(world, n, again));
    again.Check();
  }
}

TEST_CASE("executor: when a lane is cancelled its runs fail everywhere, and those of other lanes end well") {
  for (uint64_t when = 0; when < 60; when += 7) {
    constexpr uint32_t n = 3;
    FakeWorld world(n, static_cast<uint32_t>(when));
    Shape shape{RingAllReduce, Cut(900, n), Op::kSum, true, 256};
    Reduction<float> ended(n, shape);
    shape.id.lane += 1;
    Reduction<float> other(n, shape);
    Runs runs, well;
    world.Do([&] {
      world.net().on_event = [&](uint64_t event) {
        if (event == when) world.at(1).CancelLane(shape.id.lane - 1, Status(Code::kClosed, "it has shrunk"));
      };
      for (uint32_t rank = 0; rank < n; ++rank) {
        well.push_back(world.at(rank).Launch(other.OptionsOf(rank)));
        runs.push_back(world.at(rank).Launch(ended.OptionsOf(rank)));
      }
    });
    for (auto& run : runs) REQUIRE(run->Wait(In(20)));
    for (uint32_t rank = 0; rank < n; ++rank) CheckFailed(*runs[rank], Code::kClosed, "it has shrunk");
    CheckAllOk(well);
    other.Check();
  }
}

TEST_CASE("executor: given up while others write into its memory by themselves, it ends when they have stopped") {
  constexpr uint64_t kCount = 900;
  for (uint32_t when = 1; when < 12; ++when) {
    CAPTURE(when);
    FakeWorld world(2, 2 * when + 1);  // its links take offers
    const auto chunks = Lay({kCount}, sizeof(float));
    std::vector<float> from(kCount, 1.0f), to(kCount), next(kCount);
    const auto options_of = [&](uint32_t rank, uint32_t call, std::vector<float>& place) {
      Program program{rank, 2, 1, 1, 0, {}, {}};
      program.steps.push_back(rank == 0 ? SendTo(1, 0, Input(0)) : ReceiveFrom(0, 0, Output(0)));
      RunOptions options;
      options.id = {1, call};
      options.description = "send";
      options.plan = PlanOf(std::move(program), {chunks, chunks, {}});
      options.dtype = DType::kFloat32;
      options.input = reinterpret_cast<const std::byte*>(from.data());
      options.output = reinterpret_cast<std::byte*>(place.data());
      options.segment_bytes = 256;
      options.timeout = 20;
      return options;
    };
    Runs runs;
    bool ours = false;  // the memory, again
    const auto launch = [&](uint32_t call, std::vector<float>& place) {
      RunOptions options[] = {options_of(0, call, place), options_of(1, call, place)};
      world.Do([&] {
        for (uint32_t rank = 0; rank < 2; ++rank) runs.push_back(world.at(rank).Launch(std::move(options[rank])));
      });
    };
    world.Do([&] {
      world.net().on_event = [&](uint64_t event) {
        if (event == when) world.at(when % 2).Cancel(runs[when % 2], Status(Code::kClosed, "enough"));
        if (!ours && runs[1]->done()) std::fill(to.begin(), to.end(), -5.0f);
        ours = runs[1]->done();
      };
    });
    launch(0, to);
    REQUIRE(runs[1]->Wait(In(20)));
    CheckFailed(*runs[1], Code::kClosed, "enough");
    launch(1, next);
    CheckAllOk({runs[2], runs[3]});
    CHECK(next == from);
    world.Do([&] { world.net().on_event = nullptr; });  // it uses what goes before the world
    CHECK(to == std::vector<float>(kCount, -5.0f));
  }
}

TEST_CASE("executor: a lost rank fails the runs of the others, and their later ones at once") {
  for (uint64_t when = 0; when < 40; when += 5) {
    constexpr uint32_t n = 3;
    FakeWorld world(n, static_cast<uint32_t>(when));
    Reduction<float> reduction(n, {RingAllReduce, Cut(900, n), Op::kSum, false, 256});
    world.Do([&] {
      world.net().on_event = [&](uint64_t event) {
        if (event == when) world.net().Lose(2);
      };
    });
    const Runs runs = LaunchAll(world, n, reduction);
    for (const uint32_t rank : {0u, 1u}) {
      REQUIRE(runs[rank]->Wait(In(20)));
      CheckFailed(*runs[rank], Code::kPeerLost, "rank 2");
    }
    const auto later = world.at(0).Launch(Plain(reduction, 0));
    REQUIRE(later->Wait(In(20)));
    CheckFailed(*later, Code::kPeerLost, "rank 2");
  }
}

TEST_CASE("executor: at the deadline all are told who is silent, which step waits, and how long") {
  constexpr uint32_t n = 3;
  FakeWorld world(n, 1);
  Shape shape{RingAllReduce, Cut(900, n), Op::kSum, false, 256};
  shape.id = {0xAB, 7};
  shape.description = "all_reduce sum float32[900], ring";
  shape.timeout = 0.2;
  Reduction<float> reduction(n, shape);
  const auto begin = Clock::now();
  const auto zero = world.at(0).Launch(Plain(reduction, 0));
  const auto one = world.at(1).Launch(Plain(reduction, 1));
  for (const auto& run : {zero, one}) {
    REQUIRE(run->Wait(In(5)));
    CheckFailed(*run, Code::kTimeout, shape.description + " (call 7 of lane 00000000000000ab) timed out");
    CheckFailed(*run, Code::kTimeout, " after the timeout of 0.2 s: rank ");
    CheckFailed(*run, Code::kTimeout, "rank 2 has not begun this call; rank ");
    CheckFailed(*run, Code::kTimeout, " bytes");
  }
  CHECK(Clock::now() - begin < std::chrono::seconds(1));
  const auto late = world.at(2).Launch(Plain(reduction, 2));
  REQUIRE(late->Wait(In(5)));
  CheckFailed(*late, Code::kTimeout, "rank 2 has not begun");
}

TEST_CASE("executor: who waits for ranks that all have begun lets another second pass") {
  constexpr uint32_t n = 2;
  FakeWorld world(n, 1);
  Shape shape{RingAllReduce, Cut(900, n), Op::kSum, false, 256};
  shape.timeout = 0.1;
  Reduction<float> reduction(n, shape);
  auto stuck = Plain(reduction, 1);  // rank 1 waits for something that rank 0 never sends
  Program program = RingAllReduce(1, n);
  for (Step& step : program.steps) step.tag += step.kind == StepKind::kReceive ? 100 : 0;
  const auto chunks = Lay(Cut(900, n), 4);
  stuck.plan = PlanOf(program, {chunks, chunks, {}});
  stuck.timeout = 20;
  const auto begin = Clock::now();
  const auto one = world.at(1).Launch(stuck);
  RunOptions other = Plain(reduction, 0);
  program = RingAllReduce(0, n);
  for (Step& step : program.steps) step.tag += step.kind == StepKind::kReceive ? 100 : 0;
  other.plan = PlanOf(program, {chunks, chunks, {}});
  const auto zero = world.at(0).Launch(other);
  REQUIRE(zero->Wait(In(5)));
  REQUIRE(one->Wait(In(5)));
  CheckFailed(*zero, Code::kTimeout, "rank 0 is in step 4 of 4, receive from rank 1, 0 of 1800 bytes");
  CheckFailed(*one, Code::kTimeout, "rank 0 is in step 4");
  CHECK(Clock::now() - begin > std::chrono::milliseconds(1000));
}

TEST_CASE("executor: ranks that disagree fail with both descriptions") {
  constexpr uint32_t n = 2;
  FakeWorld world(n, 1);
  Reduction<float> reduction(n, {RingAllReduce, Cut(900, n), Op::kSum, false, 256});
  RunOptions other = Plain(reduction, 1);
  other.description = "all_reduce sum float32[900]";
  const auto zero = world.at(0).Launch(Plain(reduction, 0));
  const auto one = world.at(1).Launch(other);
  for (const auto& run : {zero, one}) {
    REQUIRE(run->Wait(In(5)));
    CheckFailed(*run, Code::kMismatch, "all_reduce meets all_reduce sum float32[900]");
  }
}

TEST_CASE("executor: wrong options are refused at once") {
  FakeWorld world(2, 1);
  Reduction<double> reduction(2, {RingAllReduce, Cut(9, 2), Op::kSum, false, 256});
  const auto refused = [&](const std::function<void(RunOptions&)>& change, const std::string& part) {
    RunOptions options = reduction.OptionsOf(0);
    change(options);
    const auto run = world.at(0).Launch(options);
    REQUIRE(run->Wait(In(5)));
    CheckFailed(*run, Code::kInvalid, part);
  };
  refused([](RunOptions& o) { o.plan = nullptr; }, "no plan");
  refused([](RunOptions& o) { o.dtype = static_cast<DType>(200); }, "no such dtype");
  refused([](RunOptions& o) { o.op = static_cast<Op>(200); }, "no such operation");
  refused([](RunOptions& o) { o.op = Op::kBxor; }, "there is no bxor of float64");
  refused([](RunOptions& o) { o.divisor = 0; }, "divisor");
  refused([](RunOptions& o) { o.traffic = static_cast<TrafficClass>(9); }, "traffic");
  refused([](RunOptions& o) { o.input = nullptr; }, "the input is at address 0");
  refused([](RunOptions& o) { o.output = nullptr; }, "the output is at address 0");
  const auto odd = Lay({3, 4}, 1);
  refused([&](RunOptions& o) { o.plan = PlanOf(RingAllReduce(0, 2), {odd, odd, {}}); }, "no whole number of elements");
  refused([&](RunOptions& o) { o.plan = reduction.OptionsOf(1).plan; }, "the plan is rank 1's, this is rank 0");
}

TEST_CASE("executor: what is in flight when it is destroyed ends as closed") {
  std::shared_ptr<Completion> run;
  Reduction<float> reduction(2, {RingAllReduce, Cut(900, 2), Op::kSum, false, 256});
  {
    FakeWorld world(2, 1);
    run = world.at(0).Launch(reduction.OptionsOf(0));
  }
  CheckFailed(*run, Code::kClosed, "the communicator was closed");
}

}  // namespace byteps_like::testing
