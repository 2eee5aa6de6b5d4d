// Element types and reduction operations, by the codes they have on the wire and across the binding.
#pragma once

#include <cstddef>
#include <cstdint>

namespace byteps_like {

// Append only; mirrored in byteps_like/dtypes.py and docs/protocol.md. bool travels as kUInt8 with kMax/kMin.
enum class DType : uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt8 = 4,
  kUInt8 = 5,
  kInt32 = 6,
  kInt64 = 7,
};
inline constexpr int kDTypeCount = 8;

enum class Op : uint8_t {
  kSum = 0,
  kAverage = 1,  // sum, then divided by the number of contributions (integers: floor division)
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kBroadcast = 5,  // only the root contributes bytes; everybody gets them unchanged
};
inline constexpr int kOpCount = 6;

constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    default:
      return 1;
  }
}

// The type in which contributions are summed: 16-bit floats are accumulated in fp32 and rounded once.
constexpr DType AccumulatorOf(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 ? DType::kFloat32 : dtype;
}

}  // namespace byteps_like
