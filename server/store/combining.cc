#include "server/store/combining.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numbers>

#include "csrc/base/decimal.h"
#include "server/update/loop.h"

namespace byteps_like {
namespace {

struct AgeRow {
  const char* name;
  AgeFactor factor;
};

constexpr AgeRow kAges[] = {
    {"none", nullptr},
    {"exp",
     [](int64_t age) { return std::pow(std::numbers::e / 2, -static_cast<double>(std::min<int64_t>(age, 1000))); }},
    {"inverse", [](int64_t age) { return 1.0 / static_cast<double>(std::max<int64_t>(age, 1)); }},
};

AgeFactor AgeOf(CodecSpec& spec, const char* key) {
  const std::string word = spec.Word(key, {"none", "exp", "inverse"});
  return std::ranges::find(kAges, word, &AgeRow::name)->factor;
}

double At(AgeFactor factor, int64_t age) { return factor == nullptr ? 1.0 : factor(age); }

// int64 is multiplied and added as uint64: it wraps.
template <typename T>
T FactorAs(double factor) {
  return static_cast<T>(factor);
}
template <>
uint64_t FactorAs(double factor) {
  return static_cast<uint64_t>(static_cast<int64_t>(factor));
}

template <typename T>
void Multiply(T* sum, T factor, size_t count) {
  InBestSet([=]() __attribute__((always_inline)) {
    for (size_t i = 0; i < count; ++i) sum[i] = factor * sum[i];
  });
}

template <typename T>
void AddProducts(T* __restrict sum, const T* __restrict array, T factor, size_t count) {
  InBestSet([=]() __attribute__((always_inline)) {
    for (size_t i = 0; i < count; ++i) sum[i] += factor * array[i];
  });
}

template <typename T>
bool AddUpAs(DType dtype, std::span<void* const> arrays, std::span<const double> factors, size_t count) {
  constexpr size_t kStretch = 2048;  // so that the sum stays in the first cache until it is whole
  for (size_t begin = 0; begin < count; begin += kStretch) {
    const size_t length = std::min(kStretch, count - begin);
    T* const sum = static_cast<T*>(arrays[0]) + begin;
    if (factors[0] != 1) Multiply(sum, FactorAs<T>(factors[0]), length);
    for (size_t i = 1; i < arrays.size(); ++i)
      AddProducts(sum, static_cast<const T*>(arrays[i]) + begin, FactorAs<T>(factors[i]), length);
    if (!IsFinite(dtype, sum, length)) return false;
  }
  return true;
}

}  // namespace

Result<Combining> Combining::Parse(std::string_view text) {
  auto spec = CodecSpec::Parse(text, "combining");
  if (!spec.ok()) return spec.status();
  if (spec->name() != "mean" && spec->name() != "sum")
    return Status(Code::kInvalid, "contributions can be combined by sum or mean, not by " + spec->name());
  Combining made;
  made.is_mean_ = spec->name() == "mean";
  made.age_ = AgeOf(*spec, "age");
  made.damp_ = AgeOf(*spec, "damp");
  if (Status done = spec->Done(); !done.ok()) return done;
  return made;
}

std::vector<double> Combining::Factors(std::span<const StorePush> pushes, int64_t version) const {
  std::vector<double> factors;
  double total = 0;
  for (const StorePush& push : pushes) {
    factors.push_back(push.weight * At(age_, version - 1 - push.base));
    total += factors.back();
  }
  for (size_t i = 0; i < pushes.size(); ++i)
    factors[i] = At(damp_, version - 1 - pushes[i].base) * factors[i] / (is_mean_ ? total : 1);
  return factors;
}

Status CheckWeight(double weight) {
  if (weight >= std::numeric_limits<float>::denorm_min() && weight <= std::numeric_limits<float>::max()) return {};
  return Status(Code::kInvalid, "weight " + DecimalOf(weight) + ": it must be a number above 0 that fp32 can hold");
}

bool AddUp(DType dtype, std::span<void* const> arrays, std::span<const double> factors, size_t count) {
  if (arrays.size() == 1 && factors[0] == 1) return true;
  if (dtype == DType::kFloat32) return AddUpAs<float>(dtype, arrays, factors, count);
  if (dtype == DType::kFloat64) return AddUpAs<double>(dtype, arrays, factors, count);
  return AddUpAs<uint64_t>(dtype, arrays, factors, count);
}

}  // namespace byteps_like
