// What the tests of the executor share: worlds of executors in one process, and all-reduces against a closed form.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "collectives/execution/executor.h"
#include "tests/native/collectives/fake_exchange.h"
#include "tests/native/collectives/schedules.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {

inline std::shared_ptr<const Plan> PlanOf(Program program, const ChunkTables& chunks, int32_t alias = -1) {
  const uint32_t size = program.size;
  auto compiled = Program::Compile(std::move(program), alias);
  REQUIRE_MESSAGE(compiled.ok(), compiled.status().message());
  auto plan = Plan::Make(*compiled, WorldRanks(size), chunks);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  return *plan;
}

// n executors over a FakeNet. Launches go through the loop's thread, so a seed gives the same events each time.
class FakeWorld {
 public:
  FakeWorld(uint32_t n, uint32_t seed) {
    thread_.Do([&] {
      net_ = std::make_unique<FakeNet>(thread_.loop(), n, seed);
      for (uint32_t rank = 0; rank < n; ++rank) executors_.push_back(MakeExecutor(net_->at(rank)));
    });
  }
  ~FakeWorld() {
    thread_.Do([&] {
      executors_.clear();
      net_.reset();
    });
  }

  FakeNet& net() { return *net_; }
  Executor& at(uint32_t rank) { return *executors_[rank]; }
  void Do(const std::function<void()>& task) { thread_.Do(task); }

 private:
  LoopThread thread_;
  std::unique_ptr<FakeNet> net_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

using Runs = std::vector<std::shared_ptr<Completion>>;

inline void CheckAllOk(const Runs& runs, double seconds = 20) {
  for (size_t rank = 0; rank < runs.size(); ++rank) {
    INFO("rank " << rank);
    REQUIRE(runs[rank]->Wait(In(seconds)));
    CHECK_MESSAGE(runs[rank]->status().ok(), runs[rank]->status().message());
  }
}

template <typename T>
constexpr DType DTypeFor() {
  if constexpr (std::is_same_v<T, float>) return DType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return DType::kFloat64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::kInt32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::kInt64;
  return DType::kUInt8;
}

struct Shape {
  Program (*make)(uint32_t rank, uint32_t n) = RingAllReduce;
  std::vector<uint64_t> counts;  // elements of each chunk
  Op op = Op::kSum;
  bool in_place = false;
  uint32_t segment = kDefaultSegment;
  CallId id{1, 0};
  std::string description = "all_reduce";
  double timeout = 20;
};

// The buffers of one all-reduce on all ranks. Element i of rank r is a small number that depends on both.
template <typename T>
class Reduction {
 public:
  Reduction(uint32_t n, Shape shape) : n_(n), shape_(std::move(shape)) {
    for (const uint64_t count : shape_.counts) count_ += count;
    for (uint32_t rank = 0; rank < n; ++rank) {
      std::vector<T> values(count_);
      for (size_t i = 0; i < count_; ++i) values[i] = Value(rank, i);
      outputs_.push_back(shape_.in_place ? values : std::vector<T>(count_, T(99)));
      inputs_.push_back(std::move(values));
    }
  }

  RunOptions OptionsOf(uint32_t rank) {
    RunOptions options;
    options.id = shape_.id;
    options.description = shape_.description;
    const auto chunks = Lay(shape_.counts, sizeof(T));
    options.plan = PlanOf(shape_.make(rank, n_), {chunks, chunks, {}}, shape_.in_place ? 0 : -1);
    options.dtype = DTypeFor<T>();
    options.op = shape_.op;
    options.divisor = n_;
    options.input = reinterpret_cast<const std::byte*>(inputs_[rank].data());
    options.output = reinterpret_cast<std::byte*>(outputs_[rank].data());
    options.segment_bytes = shape_.segment;
    options.timeout = shape_.timeout;
    return options;
  }

  void Check() const {
    std::vector<T> expected(count_);
    for (size_t i = 0; i < count_; ++i) expected[i] = Expected(i);
    for (uint32_t rank = 0; rank < n_; ++rank) {
      INFO("rank " << rank << " of " << n_);
      CHECK(outputs_[rank] == expected);
      if (!shape_.in_place) CHECK(inputs_[rank][0] == Value(rank, 0));
    }
  }
  const std::vector<T>& output(uint32_t rank) const { return outputs_[rank]; }
  std::vector<T>& input(uint32_t rank) { return shape_.in_place ? outputs_[rank] : inputs_[rank]; }

 private:
  static T Value(uint32_t rank, size_t i) { return static_cast<T>((rank * 7 + i * 3 + i / 11) % 5 + 1); }

  T Expected(size_t i) const {
    T value = Value(0, i);
    for (uint32_t rank = 1; rank < n_; ++rank) {
      const T other = Value(rank, i);
      if (shape_.op == Op::kMin) value = std::min(value, other);
      if (shape_.op == Op::kMax) value = std::max(value, other);
      if (shape_.op == Op::kProduct) value = static_cast<T>(value * other);
      if (shape_.op == Op::kSum || shape_.op == Op::kAverage) value = static_cast<T>(value + other);
    }
    return shape_.op == Op::kAverage ? static_cast<T>(value / static_cast<T>(n_)) : value;
  }

  const uint32_t n_;
  const Shape shape_;
  size_t count_ = 0;
  std::vector<std::vector<T>> inputs_, outputs_;
};

// Launches one on all ranks of a world (anything with `at(rank)` and `Do`), in one go: `runs` is filled on the loop's
// thread, before anything can happen.
template <typename World, typename T>
void LaunchAll(World& world, uint32_t n, Reduction<T>& reduction, Runs& runs) {
  std::vector<RunOptions> options;
  for (uint32_t rank = 0; rank < n; ++rank) options.push_back(reduction.OptionsOf(rank));
  world.Do([&] {
    for (uint32_t rank = 0; rank < n; ++rank) runs.push_back(world.at(rank).Launch(std::move(options[rank])));
  });
}

template <typename World, typename T>
Runs LaunchAll(World& world, uint32_t n, Reduction<T>& reduction) {
  Runs runs;
  LaunchAll(world, n, reduction, runs);
  return runs;
}

template <typename T>
void CheckReduces(uint32_t n, uint32_t seed, const Shape& shape) {
  FakeWorld world(n, seed);
  Reduction<T> reduction(n, shape);
  CheckAllOk(LaunchAll(world, n, reduction));
  reduction.Check();
}

}  // namespace byteps_like::testing
