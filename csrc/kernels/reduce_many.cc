// ReduceMany. Floats, and integers that are not divided, go through registers: one vector of every source is read and
// reduced, and stored to all destinations. Divided integers go through a block on the stack.
#include <algorithm>
#include <cstring>

#include "csrc/kernels/dispatch.h"
#include "csrc/kernels/kernels.h"

namespace byteps_like::kernels {
namespace {

void CopyToAll(std::span<void* const> destinations, const void* source, size_t offset, size_t bytes) {
  for (void* destination : destinations) {
    char* to = static_cast<char*>(destination) + offset;
    if (to != source) std::memcpy(to, source, bytes);
  }
}

void ReduceDivided(Op op, DType dtype, std::span<void* const> destinations, std::span<const void* const> sources,
                   size_t count, uint32_t divisor) {
  constexpr size_t kBlockBytes = 8192;
  alignas(64) char block[kBlockBytes];
  const Table& table = *Active().table;
  const Loops& loops = LoopsOf(table, op, dtype);
  const size_t size = SizeOf(dtype), units = UnitsOf(op, dtype);
  const size_t most = kBlockBytes / size;
  for (size_t begin = 0; begin < count; begin += most) {
    const size_t length = std::min(most, count - begin);
    std::memcpy(block, static_cast<const char*>(sources[0]) + begin * size, length * size);
    for (const void* source : sources.subspan(1)) {
      const char* from = static_cast<const char*>(source) + begin * size;
      loops.reduce(block, from, length * units);
    }
    table.finalize[ColumnOf(dtype)](block, block, length, divisor);
    CopyToAll(destinations, block, begin * size, length * size);
  }
}

}  // namespace

void ReduceMany(Op op, DType dtype, std::span<void* const> destinations, std::span<const void* const> sources,
                size_t count, uint32_t divisor) {
  if (count == 0 || sources.empty() || destinations.empty()) return;
  if (dtype == DType::kBool) divisor = 1;
  const bool is_integer = !IsFloat(dtype) && !IsComplex(dtype);
  if (op == Op::kBroadcast || (sources.size() == 1 && divisor == 1)) {
    CopyToAll(destinations, sources.back(), 0, count * SizeOf(dtype));
  } else if (is_integer && divisor != 1) {
    ReduceDivided(op, dtype, destinations, sources, count, divisor);
  } else {
    LoopsOf(*Active().table, op, dtype)
        .fuse(destinations.data(), destinations.size(), sources.data(), sources.size(), 0, count * UnitsOf(op, dtype),
              divisor);
  }
}

}  // namespace byteps_like::kernels
