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

// Row of Table for an operation; kBroadcast has none.
constexpr int RowOf(Op op) {
  switch (op) {
    case Op::kMin:
      return 1;
    case Op::kMax:
      return 2;
    case Op::kProduct:
      return 3;
    default:
      return 0;
  }
}
constexpr int ColumnOf(DType dtype) { return static_cast<int>(dtype); }

}  // namespace byteps_like::kernels
