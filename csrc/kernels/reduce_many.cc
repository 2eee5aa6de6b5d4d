// ReduceMany. Floats, and integers that are not divided, go through registers: one vector of every source is read and
// reduced, and stored to all destinations. Divided integers take two passes over a stretch.
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

// In stretches that stay in the first cache: sums in the first destination, divided there and copied to the others.
void ReduceDivided(Op op, DType dtype, std::span<void* const> destinations, std::span<const void* const> sources,
                   size_t count, uint32_t divisor) {
  constexpr size_t kStretchBytes = 8192;
  const Table& table = *Active().table;
  const Loops& loops = LoopsOf(table, op, dtype);
  const size_t size = SizeOf(dtype), units = UnitsOf(op, dtype), most = kStretchBytes / size;
  for (size_t begin = 0; begin < count; begin += most) {
    const size_t length = std::min(most, count - begin);
    loops.fuse(destinations.data(), 1, sources.data(), sources.size(), begin * units, (begin + length) * units, 1);
    char* const sums = static_cast<char*>(destinations[0]) + begin * size;
    table.finalize[ColumnOf(dtype)](sums, sums, length, divisor);
    CopyToAll(destinations, sums, begin * size, length * size);
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
