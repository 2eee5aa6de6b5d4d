// Element types and reduction operations, by the codes they have on the wire and across the binding.
#pragma once

#include <cstddef>
#include <cstdint>

namespace byteps_like {

// Append only; mirrored in byteps_like/dtypes.py and docs/reference/protocol.md.
enum class DType : uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt8 = 4,
  kUInt8 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kInt16 = 8,
  kUInt16 = 9,
  kUInt32 = 10,
  kUInt64 = 11,
  kBool = 12,  // a byte, 0 or 1
  kComplex64 = 13,
  kComplex128 = 14,
  kFloat8E4M3FN = 15,  // float8_e4m3fn: no infinity, one NaN of each sign
  kFloat8E5M2 = 16,
};
inline constexpr int kDTypeCount = 17;

enum class Op : uint8_t {
  kSum = 0,      // bool: or
  kAverage = 1,  // sum, then divided by the number of contributions (integers: towards zero; bool: and)
  kMin = 2,
  kMax = 3,
  kProduct = 4,    // bool: and
  kBroadcast = 5,  // only the root contributes bytes; everybody gets them unchanged
  kBand = 6,       // bit by bit
  kBor = 7,
  kBxor = 8,
};
inline constexpr int kOpCount = 9;

constexpr size_t SizeOf(DType dtype) {
  constexpr uint8_t kSizes[kDTypeCount] = {4, 8, 2, 2, 1, 1, 4, 8, 2, 2, 4, 8, 1, 8, 16, 1, 1};
  return kSizes[static_cast<int>(dtype)];
}

constexpr bool IsComplex(DType dtype) { return dtype == DType::kComplex64 || dtype == DType::kComplex128; }
// Of real numbers.
constexpr bool IsFloat(DType dtype) { return dtype <= DType::kBFloat16 || dtype >= DType::kFloat8E4M3FN; }
// Floats of 16 and of 8 bits.
constexpr bool IsNarrowFloat(DType dtype) { return IsFloat(dtype) && SizeOf(dtype) <= 2; }

// The type in which contributions are summed: 16-bit and 8-bit floats are accumulated in fp32 and rounded once.
constexpr DType AccumulatorOf(DType dtype) { return IsNarrowFloat(dtype) ? DType::kFloat32 : dtype; }

// Whether the operation means something for the type: complex numbers have no order, floats no bits to combine.
constexpr bool Supports(Op op, DType dtype) {
  switch (op) {
    case Op::kMin:
    case Op::kMax:
      return !IsComplex(dtype);
    case Op::kBand:
    case Op::kBor:
    case Op::kBxor:
      return !IsComplex(dtype) && !IsFloat(dtype);
    default:
      return true;
  }
}

constexpr const char* NameOf(DType dtype) {
  constexpr const char* kNames[kDTypeCount] = {
      "float32", "float64", "float16", "bfloat16", "int8",      "uint8",      "int32",         "int64",      "int16",
      "uint16",  "uint32",  "uint64",  "bool",     "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"};
  return kNames[static_cast<int>(dtype)];
}
constexpr const char* NameOf(Op op) {
  constexpr const char* kNames[kOpCount] = {"sum",       "average", "min", "max", "product",
                                            "broadcast", "band",    "bor", "bxor"};
  return kNames[static_cast<int>(op)];
}

}  // namespace byteps_like
