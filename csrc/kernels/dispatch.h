// The choice of instruction set, for the files of csrc/kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/base/dtype.h"
#include "csrc/kernels/table.h"

namespace byteps_like::kernels {

using Crc32cFn = uint32_t (*)(uint32_t seed, const void* data, size_t bytes);

// An entry of the list of what this CPU can run, best first.
struct Choice {
  const Table* table;
  Crc32cFn crc32c;
};
const Choice& Active();

constexpr int ColumnOf(DType dtype) {
  constexpr int kOf[kDTypeCount] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 5, 0, 1, kFirstFloat8, kFirstFloat8 + 1};
  return kOf[static_cast<int>(dtype)];
}
// The elements that a column counts: numbers, or the parts of complex ones.
constexpr size_t PartsOf(DType dtype) { return IsComplex(dtype) ? 2 : 1; }

constexpr bool IsBitwise(Op op, DType dtype) { return op >= Op::kBand || dtype == DType::kBool; }
// The units that the loops of an operation count.
constexpr size_t UnitsOf(Op op, DType dtype) { return IsBitwise(op, dtype) ? SizeOf(dtype) : PartsOf(dtype); }

// The loops for an operation other than kBroadcast. What Supports denies is done to the parts or bytes, meaningless.
inline const Loops& LoopsOf(const Table& table, Op op, DType dtype) {
  // In the order of Op; kAverage is a sum, but of bool: true where all are.
  constexpr int kArithmeticRow[kOpCount] = {0, 0, 1, 2, 3, 0, 0, 0, 0};
  constexpr int kBitwiseRow[kOpCount] = {1, 0, 0, 1, 0, 0, 0, 1, 2};
  const int code = static_cast<int>(op);
  if (IsBitwise(op, dtype)) return table.bitwise[kBitwiseRow[code]];
  if (op == Op::kProduct && IsComplex(dtype)) return table.complex_product[ColumnOf(dtype)];
  return table.arithmetic[kArithmeticRow[code]][ColumnOf(dtype)];
}

}  // namespace byteps_like::kernels
