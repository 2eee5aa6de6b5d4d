// The one operation on complex numbers that is not that on their parts. Counts are parts: two for each number.
#pragma once

#include "csrc/kernels/lanes.h"

namespace byteps_like::kernels {
namespace BYTEPS_LIKE_ISA {
namespace {

template <typename T>
struct Complex {
  T real, imaginary;
};
// Negated through its bits: from a subtraction beside an addition g++ 12 makes vfmaddsub, whatever -ffp-contract says.
BYTEPS_LIKE_INLINE float Negated(float value) { return BitCast<float>(BitCast<uint32_t>(value) ^ (1u << 31)); }
BYTEPS_LIKE_INLINE double Negated(double value) {
  return BitCast<double>(BitCast<uint64_t>(value) ^ (uint64_t{1} << 63));
}
template <typename T>
BYTEPS_LIKE_INLINE Complex<T> operator*(const Complex<T>& a, const Complex<T>& b) {
  return {a.real * b.real + Negated(a.imaginary * b.imaginary), a.real * b.imaginary + a.imaginary * b.real};
}
template <typename T>
BYTEPS_LIKE_INLINE Complex<T> LoadPair(const void* parts, size_t i) {
  return LoadAny<Complex<T>>(static_cast<const T*>(parts) + i);
}

template <typename T>
void UpdateComplexProduct(void* a, const void* b, size_t count) {
  for (size_t i = 0; i < count; i += 2) StoreAny(static_cast<T*>(a) + i, LoadPair<T>(a, i) * LoadPair<T>(b, i));
}

template <typename T>
void FuseComplexProduct(void* const* destinations, size_t destination_count, const void* const* sources,
                        size_t source_count, size_t begin, size_t end, uint32_t divisor) {
  const auto by = static_cast<T>(divisor);
  for (size_t i = begin; i < end; i += 2) {
    Complex<T> product = LoadPair<T>(sources[0], i);
    for (size_t s = 1; s < source_count; ++s) product = product * LoadPair<T>(sources[s], i);
    product = {product.real / by, product.imaginary / by};
    for (size_t d = 0; d < destination_count; ++d) StoreAny(static_cast<T*>(destinations[d]) + i, product);
  }
}

}  // namespace
}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like::kernels
