#include "server/store/combining/combining.h"

#include <algorithm>
#include <limits>

#include "csrc/base/decimal.h"
#include "server/update/loop.h"

namespace byteps_like {
namespace {

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

Status Combining::CheckWeight(double weight) const {
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
