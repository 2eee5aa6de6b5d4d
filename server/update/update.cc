#include "server/update/update.h"

#include <cstring>

#include "server/update/loop.h"

namespace byteps_like {
namespace {

// Adding its lowest bit to an exponent of ones carries into the sign bit. The loop ends early, but not at once, so that
// the compiler makes vectors of it.
template <typename Bits>
bool AreFinite(const Bits* bits, size_t count, Bits exponent) {
  constexpr size_t kStretch = 4096;
  const Bits lowest = exponent & (~exponent + 1);
  Bits carried = 0;
  InBestSet([&]() __attribute__((always_inline)) {
    for (size_t begin = 0; begin < count && carried == 0; begin += kStretch) {
      const size_t end = count - begin < kStretch ? count : begin + kStretch;
      Bits found = 0;
      for (size_t i = begin; i < end; ++i) found |= ((bits[i] & exponent) + lowest) & (exponent + lowest);
      carried = found;
    }
  });
  return carried == 0;
}

}  // namespace

void ValueUpdate::Begin(DType dtype, const ValueShape& shape, void* state) const {
  const size_t bytes = StateCount(shape) * SizeOf(dtype);
  if (bytes != 0) std::memset(state, 0, bytes);
}

bool IsFinite(DType dtype, const void* gradient, size_t count) {
  if (dtype == DType::kFloat32) return AreFinite(static_cast<const uint32_t*>(gradient), count, 0x7F800000u);
  if (dtype != DType::kFloat64) return true;
  return AreFinite(static_cast<const uint64_t*>(gradient), count, uint64_t{0x7FF} << 52);
}

}  // namespace byteps_like
