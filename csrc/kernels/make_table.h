// The table of one instruction set. Included by its file after the definitions that lanes.h asks for, and before the
// conversions that it declares.
#pragma once

#include "csrc/kernels/loops.h"
#include "csrc/kernels/maps.h"

namespace byteps_like::kernels {
namespace BYTEPS_LIKE_ISA {
namespace {

void PlainAdd(void* a, const void* b, size_t count) {
  auto* __restrict left = static_cast<float*>(a);
  const auto* __restrict right = static_cast<const float*>(b);
  for (size_t i = 0; i < count; ++i) left[i] += right[i];
}

#define BYTEPS_LIKE_ROW(loop, op, bfloat)                                     \
  {loop<op, Float32>, loop<op, Float64>, loop<op, Float16>, loop<op, bfloat>, \
   loop<op, Int8>,    loop<op, UInt8>,   loop<op, Int32>,   loop<op, Int64>}
#define BYTEPS_LIKE_ROWS(loop, bfloat)                                                                         \
  {BYTEPS_LIKE_ROW(loop, Sum, bfloat), BYTEPS_LIKE_ROW(loop, Min, bfloat), BYTEPS_LIKE_ROW(loop, Max, bfloat), \
   BYTEPS_LIKE_ROW(loop, Product, bfloat)}
#define BYTEPS_LIKE_COLUMN(floats, integers, bfloat)                  \
  {floats<Float32>, floats<Float64>, floats<Float16>, floats<bfloat>, \
   integers<Int8>,  integers<UInt8>, integers<Int32>, integers<Int64>}
#define BYTEPS_LIKE_CASTS(from) {Copy<WideFloat32, from>, ToDouble<from>, Copy<Float16, from>, Copy<BFloat16, from>}

constexpr Table MakeTable(const char* name) {
  return Table{name,
               BYTEPS_LIKE_ROWS(Reduce, PairedBFloat16),
               BYTEPS_LIKE_ROWS(Accumulate, BFloat16),
               BYTEPS_LIKE_ROWS(Fuse, PairedBFloat16),
               BYTEPS_LIKE_COLUMN(Widen, Widen, BFloat16),
               BYTEPS_LIKE_COLUMN(FinalizeFloat, FinalizeInteger, BFloat16),
               BYTEPS_LIKE_COLUMN(ScaleFloat, ScaleInteger, PairedBFloat16),
               {BYTEPS_LIKE_CASTS(WideFloat32),
                {FromDouble<WideFloat32>, Copy<Float64, Float64>, FromDouble<Float16>, FromDouble<BFloat16>},
                BYTEPS_LIKE_CASTS(Float16),
                BYTEPS_LIKE_CASTS(BFloat16)},
               PlainAdd};
}

}  // namespace
}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like::kernels
