// The table of one instruction set. Included by its file after the definitions that lanes.h asks for, and before the
// conversions that it declares.
#pragma once

#include "csrc/kernels/complex_product.h"
#include "csrc/kernels/float8.h"
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

uint32_t PlainOr(const void* a, size_t count) {
  const auto* const words = static_cast<const uint32_t*>(a);
  uint32_t bits = 0;
  for (size_t i = 0; i < count; ++i) bits |= words[i];
  return bits;
}

// `Streamed` stands for E where all arrays are of it.
template <typename O, typename E, typename Streamed = E>
constexpr Loops LoopsFor() {
  return {Update<O, Streamed, Streamed>, Update<O, AccumulatorOf<E>, E>, Fuse<O, Streamed>};
}
// Of 16-bit floats: `Ordered` stands for E where nothing is computed, only chosen.
template <typename O, typename E, typename Streamed, typename Ordered>
constexpr Loops LoopsFor16() {
  if constexpr (O::kSelects) {
    return {Update<O, Ordered, Ordered>, Update<O, AccumulatorOf<E>, E>, FuseOrdered<O, Ordered, Streamed>};
  } else {
    return LoopsFor<O, E, Streamed>();
  }
}
template <typename T>
constexpr Loops ComplexProduct() {
  return {UpdateComplexProduct<T>, UpdateComplexProduct<T>, FuseComplexProduct<T>};
}

// Sums and products of signed integers are those of unsigned ones.
#define BYTEPS_LIKE_ROW(op, int8, int16, int32, int64)          \
  {LoopsFor<op, Float32>(),                                     \
   LoopsFor<op, Float64>(),                                     \
   LoopsFor16<op, Float16, Float16, OrderedFloat16>(),          \
   LoopsFor16<op, BFloat16, PairedBFloat16, OrderedBFloat16>(), \
   LoopsFor<op, int8>(),                                        \
   LoopsFor<op, UInt8>(),                                       \
   LoopsFor<op, int32>(),                                       \
   LoopsFor<op, int64>(),                                       \
   LoopsFor<op, int16>(),                                       \
   LoopsFor<op, UInt16>(),                                      \
   LoopsFor<op, UInt32>(),                                      \
   LoopsFor<op, UInt64>(),                                      \
   LoopsFor<op, Float8E4M3FN>(),                                \
   LoopsFor<op, Float8E5M2>()}
#define BYTEPS_LIKE_COLUMN(floats, integers, bfloat)                                              \
  {floats<Float32>,  floats<Float64>,  floats<Float16>,      floats<bfloat>,    integers<Int8>,   \
   integers<UInt8>,  integers<Int32>,  integers<Int64>,      integers<Int16>,   integers<UInt16>, \
   integers<UInt32>, integers<UInt64>, floats<Float8E4M3FN>, floats<Float8E5M2>}
#define BYTEPS_LIKE_CASTS(from)                                            \
  {Copy<WideFloat32, from>, ToDouble<from>,           Copy<Float16, from>, \
   Copy<BFloat16, from>,    Copy<Float8E4M3FN, from>, Copy<Float8E5M2, from>}

constexpr Table MakeTable(const char* name) {
  return Table{
      name,
      {BYTEPS_LIKE_ROW(Sum, UInt8, UInt16, UInt32, UInt64), BYTEPS_LIKE_ROW(Min, Int8, Int16, Int32, Int64),
       BYTEPS_LIKE_ROW(Max, Int8, Int16, Int32, Int64), BYTEPS_LIKE_ROW(Product, UInt8, UInt16, UInt32, UInt64)},
      {LoopsFor<And, UInt8>(), LoopsFor<Or, UInt8>(), LoopsFor<Xor, UInt8>()},
      {ComplexProduct<float>(), ComplexProduct<double>()},
      BYTEPS_LIKE_COLUMN(Widen, Widen, BFloat16),
      BYTEPS_LIKE_COLUMN(FinalizeFloat, FinalizeInteger, BFloat16),
      BYTEPS_LIKE_COLUMN(ScaleFloat, ScaleInteger, PairedBFloat16),
      {BYTEPS_LIKE_CASTS(WideFloat32),
       {FromDouble<WideFloat32>, Copy<Float64, Float64>, FromDouble<Float16>, FromDouble<BFloat16>,
        FromDouble<Float8E4M3FN>, FromDouble<Float8E5M2>},
       BYTEPS_LIKE_CASTS(Float16),
       BYTEPS_LIKE_CASTS(BFloat16),
       BYTEPS_LIKE_CASTS(Float8E4M3FN),
       BYTEPS_LIKE_CASTS(Float8E5M2)},
      PlainAdd,
      PlainOr};
}

}  // namespace
}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like::kernels
