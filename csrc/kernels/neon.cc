// Advanced SIMD is part of every 64-bit ARM CPU.
#if defined(__aarch64__)
#define BYTEPS_LIKE_ISA neon
#define BYTEPS_LIKE_VECTOR_BYTES 16
#define BYTEPS_LIKE_STREAM_BYTES 16
#include <arm_neon.h>

#include "csrc/kernels/make_table.h"

namespace byteps_like::kernels {
namespace neon {
namespace {

BYTEPS_LIKE_INLINE bool AnyNan(const StreamFloats& a, const StreamFloats& b) {
  return vminvq_u32(BitCast<uint32x4_t>((a == a) & (b == b))) == 0;
}
BYTEPS_LIKE_INLINE Longs Products(const Longs& a, const Longs& b) {
  return BitCast<Longs>(vmull_u32(vmovn_u64(BitCast<uint64x2_t>(a)), vmovn_u64(BitCast<uint64x2_t>(b))));
}
BYTEPS_LIKE_INLINE Words Widened(const HalfWords& bits) { return BitCast<Words>(vmovl_u16(BitCast<uint16x4_t>(bits))); }
BYTEPS_LIKE_INLINE HalfWords UpperHalves(const Words& bits) {
  return BitCast<HalfWords>(vshrn_n_u32(BitCast<uint32x4_t>(bits), 16));
}
BYTEPS_LIKE_INLINE Words Widened(const Bytes& bytes) {
  const uint32x2_t lanes = vdup_n_u32(BitCast<uint32_t>(bytes));
  return BitCast<Words>(vmovl_u16(vget_low_u16(vmovl_u8(BitCast<uint8x8_t>(lanes)))));
}
BYTEPS_LIKE_INLINE Bytes LowBytes(const Words& bits) {
  const uint16x4_t halves = vmovn_u32(BitCast<uint32x4_t>(bits));
  const uint8x8_t bytes = vmovn_u16(vcombine_u16(halves, halves));
  return BitCast<Bytes>(vget_lane_u32(BitCast<uint32x2_t>(bytes), 0));
}
BYTEPS_LIKE_INLINE Floats HalfToFloat(const HalfWords& half) {
  return BitCast<Floats>(vcvt_f32_f16(BitCast<float16x4_t>(half)));
}
BYTEPS_LIKE_INLINE HalfWords FloatToHalf(const Floats& value) {
  return BitCast<HalfWords>(vcvt_f16_f32(BitCast<float32x4_t>(value)));
}

}  // namespace
}  // namespace neon

constexpr Table kNeon = neon::MakeTable("neon");

}  // namespace byteps_like::kernels
#endif
