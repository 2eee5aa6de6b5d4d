// The updates under sanitizers: arrays of exactly the size used, at odd addresses, every instruction set against the
// portable one. What the values should be is checked against NumPy in tests/unit/store/test_native_updates.py.
#include "server/update/updates.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/kernels.h"

namespace byteps_like {
namespace {

const char* const kSpecs[] = {
    "none",
    "assign",
    "add",
    "sgd:lr=0.1,weight_decay=0.3",
    "momentum:lr=0.1,momentum=0.9,weight_decay=0.3",
    "nesterov:lr=0.1,momentum=0.9,weight_decay=0",
    "adagrad:eps=1e-10,initial=0.5,lr=0.1,lr_decay=0.1,weight_decay=0.3",
    "row_adagrad:eps=1e-08,lr=0.1",
    "adam:beta1=0.9,beta2=0.999,eps=1e-08,lr=0.1,weight_decay=0.3",
    "adamw:beta1=0.9,beta2=0.999,eps=1e-08,lr=0.1,weight_decay=0.3",
    "lars:lr=0.1,momentum=0.9,trust=0.001,weight_decay=0.3",
    "lamb:beta1=0.9,beta2=0.999,eps=1e-06,lr=0.1,weight_decay=0.3",
    "proximal:l1=0.3,lr=0.1",
};

// Memory that begins `shift` bytes into its allocation and ends with it: reading on is a heap overflow.
class Place {
 public:
  Place(size_t bytes, size_t shift) : memory_(bytes + shift), shift_(shift) {}
  void* data() { return memory_.data() + shift_; }
  const std::vector<uint8_t>& bytes() const { return memory_; }

 private:
  std::vector<uint8_t> memory_;
  size_t shift_;
};

template <typename T>
void Fill(Place& place, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  for (size_t i = 0; i < count; ++i) {
    const T value = static_cast<T>(static_cast<double>(random()) / 4294967296.0 - 0.5);
    std::memcpy(static_cast<uint8_t*>(place.data()) + i * sizeof(T), &value, sizeof(T));
  }
}

// Value and state after three updates.
template <typename T>
std::vector<uint8_t> Trained(const ValueUpdate& update, DType dtype, const ValueShape& shape) {
  const size_t bytes = shape.count() * sizeof(T), state_bytes = update.StateCount(shape) * sizeof(T);
  Place value(bytes, sizeof(T)), state(state_bytes, 3 * sizeof(T)), gradient(bytes, 0);
  Fill<T>(value, shape.count(), 1);
  update.Begin(dtype, shape, state.data());
  for (uint32_t step = 1; step <= 3; ++step) {
    Fill<T>(gradient, shape.count(), 1 + step);
    REQUIRE(update.Apply({dtype, shape, value.data(), state.data(), gradient.data(), update.lr(), step}).ok());
  }
  std::vector<uint8_t> all = value.bytes();
  all.insert(all.end(), state.bytes().begin(), state.bytes().end());
  return all;
}

std::vector<uint8_t> TrainedBy(const std::string& set, const ValueUpdate& update, DType dtype, ValueShape shape) {
  const std::string best(kernels::InstructionSet());
  REQUIRE(kernels::SelectInstructionSet(set));
  auto found = dtype == DType::kFloat32 ? Trained<float>(update, dtype, shape) : Trained<double>(update, dtype, shape);
  kernels::SelectInstructionSet(best);
  return found;
}

TEST_CASE("updates: every instruction set gives the bits of the portable loops, within the arrays") {
  for (const char* spec : kSpecs) {
    auto update = MakeUpdate(spec);
    REQUIRE_MESSAGE(update.ok(), update.status().message());
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      for (const ValueShape shape : {ValueShape{0, 0}, {1, 1}, {3, 5}, {7, 16}, {2, 33}, {1, 1023}, {5, 1031}}) {
        CAPTURE(spec);
        CAPTURE(shape.count());
        const auto expected = TrainedBy("scalar", **update, dtype, shape);
        CHECK(TrainedBy(std::string(kernels::InstructionSet()), **update, dtype, shape) == expected);
      }
    }
  }
}

TEST_CASE("updates: the list of this test has every update") {
  std::vector<std::string> names;
  for (const std::string spec : kSpecs) names.push_back(spec.substr(0, spec.find(':')));
  names.emplace_back("function");  // see function_test.cc
  CHECK(names == UpdateNames());
}

TEST_CASE("updates: one element that is not finite is found wherever it is") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const size_t count : {1u, 15u, 64u, 4097u}) {
    std::vector<float> gradient(count, std::numeric_limits<float>::max());
    CHECK(IsFinite(DType::kFloat32, gradient.data(), count));
    for (const size_t place : {size_t{0}, count / 2, count - 1}) {
      for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
        std::vector<float> spoiled = gradient;
        spoiled[place] = bad;
        CHECK_FALSE(IsFinite(DType::kFloat32, spoiled.data(), count));
        const std::vector<double> wide(spoiled.begin(), spoiled.end());
        CHECK_FALSE(IsFinite(DType::kFloat64, wide.data(), count));
      }
    }
  }
  const int64_t ones = -1;
  CHECK(IsFinite(DType::kInt64, &ones, 1));
  CHECK(IsFinite(DType::kFloat32, nullptr, 0));
}

}  // namespace
}  // namespace byteps_like
