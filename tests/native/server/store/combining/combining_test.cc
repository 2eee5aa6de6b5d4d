// Sums of contributions under sanitizers: arrays of exactly the size used, every instruction set. Whole keys are
// compared with NumPy in tests/property/store/test_native_key.py.
#include "server/store/combining/combining.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/kernels/kernels.h"

namespace byteps_like {
namespace {

template <typename T>
using Contributions = std::vector<std::vector<T>>;

template <typename T>
Contributions<T> Drawn(size_t sources, size_t count) {
  std::mt19937 random(7);
  Contributions<T> drawn(sources, std::vector<T>(count));
  for (auto& one : drawn)
    for (T& value : one) value = static_cast<T>(random() % 2000) / T(7) - T(100);
  return drawn;
}

template <typename T>
bool AddUpAll(DType dtype, Contributions<T>& arrays, const std::vector<double>& factors) {
  std::vector<void*> places;
  for (auto& one : arrays) places.push_back(one.data());
  return AddUp(dtype, places, factors, arrays.front().size());
}

// Product by product, each rounded by itself.
template <typename T>
std::vector<T> Expected(const Contributions<T>& arrays, const std::vector<double>& factors) {
  std::vector<T> sum = arrays.front();
  for (T& value : sum) value = static_cast<T>(factors[0]) * value;
  for (size_t source = 1; source < arrays.size(); ++source) {
    for (size_t i = 0; i < sum.size(); ++i) {
      const volatile T product = static_cast<T>(factors[source]) * arrays[source][i];
      sum[i] = sum[i] + product;
    }
  }
  return sum;
}

template <typename T>
void CheckSums(DType dtype, const std::vector<double>& factors) {
  for (const size_t count : {0u, 1u, 17u, 2047u, 2048u, 2049u, 5000u}) {
    CAPTURE(count);
    Contributions<T> arrays = Drawn<T>(factors.size(), count);
    const std::vector<T> expected = Expected(arrays, factors);
    CHECK(AddUpAll(dtype, arrays, factors));
    CHECK(arrays.front() == expected);
  }
}

StorePush Weighted(int64_t base, double weight) { return {.source = 0, .clock = 0, .base = base, .weight = weight}; }

std::unique_ptr<Combining> Made(std::string_view text) {
  auto made = MakeCombining(text);
  REQUIRE(made.ok());
  return std::move(*made);
}

TEST_CASE("combining: every instruction set adds up products in order, each rounded by itself") {
  const std::string best(kernels::InstructionSet());
  for (const std::string& set : {best, std::string("scalar")}) {
    REQUIRE(kernels::SelectInstructionSet(set));
    for (const std::vector<double>& factors : {std::vector<double>{1}, {0.3}, {1, 1}, {0.1, 0.2, 0.7}, {2, 1, 3, 1}}) {
      CheckSums<float>(DType::kFloat32, factors);
      CheckSums<double>(DType::kFloat64, factors);
    }
    CheckSums<int64_t>(DType::kInt64, {3, 1, 2});
  }
  kernels::SelectInstructionSet(best);
}

TEST_CASE("combining: integers wrap") {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  Contributions<int64_t> arrays = {{kMost, -kMost}, {kMost, 5}};
  CHECK(AddUpAll(DType::kInt64, arrays, {1, 2}));
  CHECK(arrays.front() == std::vector<int64_t>{kMost - 2, -kMost + 10});
}

TEST_CASE("combining: a sum that overflows is told, and one contribution by itself stays as it is") {
  constexpr float kMost = std::numeric_limits<float>::max();
  Contributions<float> arrays(2, std::vector<float>(3000, 1));
  arrays[0].back() = arrays[1].back() = kMost;
  CHECK_FALSE(AddUpAll(DType::kFloat32, arrays, {1, 1}));
  Contributions<float> alone = {{-0.0f, kMost, 1e-45f}};
  const std::vector<float> before = alone.front();
  CHECK(AddUpAll(DType::kFloat32, alone, {1}));
  CHECK(std::memcmp(alone.front().data(), before.data(), 3 * sizeof(float)) == 0);
}

TEST_CASE("combining: weights count in a mean, ages shift them, and damping does not") {
  const auto mean = Made("mean:age=inverse,damp=none"), damped = Made("mean:age=none,damp=inverse");
  const std::vector<StorePush> pushes = {Weighted(5, 1), Weighted(1, 4)};  // of ages 0 and 4
  CHECK(mean->Factors(pushes, 6) == std::vector<double>{0.5, 0.5});
  CHECK(damped->Factors(pushes, 6) == std::vector<double>{0.2, 0.2});
}

std::vector<StorePush> From(std::initializer_list<uint32_t> ranks) {
  std::vector<StorePush> pushes;
  for (const uint32_t rank : ranks) pushes.push_back({.source = rank});
  return pushes;
}

TEST_CASE("combining: of groups that send the same, one rank each is enough, in whatever order they come") {
  const auto coded = Made("coded:combine=mean,n=4,s=1,seed=0");
  CHECK(coded->Factors(From({3, 0, 2}), 1) == std::vector<double>{0, 0.25, 0.25});
  CHECK(coded->Factors(From({0, 1}), 1).empty());
  CHECK(coded->Factors(From({0, 7}), 1).empty());
  CHECK(coded->Factors({}, 1).empty());
  CHECK_FALSE(coded->CheckWeight(2).ok());
}

// Five parts whose sums of three neighbours each are sent: their factors must give every part once.
TEST_CASE("combining: any ranks but two decode the whole of a cyclic code") {
  const auto coded = Made("coded:combine=sum,n=5,s=2,seed=1");
  const auto factors = coded->Factors(From({0, 2, 3}), 1);
  REQUIRE(factors.size() == 3);
  for (const double factor : factors) CHECK(std::abs(factor) < 100);
  CHECK(coded->Factors(From({1, 4}), 1).empty());
  const auto all = coded->Factors(From({0, 2, 3, 4}), 1);
  CHECK(std::vector<double>(all.begin(), all.begin() + 3) == factors);
  CHECK(all.back() == 0);
}

}  // namespace
}  // namespace byteps_like
