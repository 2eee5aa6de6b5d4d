// The loops of one instruction set, as plain function pointers. Each of avx512.cc, avx2.cc, neon.cc and scalar.cc
// compiles loops.h and maps.h with its own flags and fills one table (make_table.h); dispatch.cc picks one.
//
// Those files are compiled for CPUs that may not be the one running: they include nothing with inline functions of
// external linkage (no standard library), since the linker might keep the copy made with the wider instructions.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace byteps_like::kernels {

inline constexpr int kArithmeticOps = 4;  // sum, min, max, product: the order of the rows below
inline constexpr int kBitwiseOps = 3;     // and, or, xor: on bytes, since the width makes no difference
// The columns: floats of 32, 64, 16 bits and bfloat, the integers in the order of DType, floats of 8 bits. A complex
// number is two floats, but in a product; bool is uint8 and its operations are bitwise.
inline constexpr int kFirstInteger = 4;
inline constexpr int kFirstFloat8 = 12;
inline constexpr int kColumns = 14;
inline constexpr int kComplexTypes = 2;  // of fp32, of fp64
inline constexpr int kFloatTypes = 6;    // those of the columns

// Of one operation on one type.
struct Loops {
  using Update = void (*)(void* a, const void* b, size_t count);
  // Elements [begin, end) of all sources reduced in registers, divided (floats only) and stored to all destinations.
  using Fuse = void (*)(void* const* destinations, size_t destination_count, const void* const* sources,
                        size_t source_count, size_t begin, size_t end, uint32_t divisor);
  Update reduce;
  Update accumulate;  // into the accumulator's type
  Fuse fuse;
};

struct Table {
  using Copy = void (*)(void* destination, const void* source, size_t count);
  using Finish = void (*)(void* destination, const void* accumulator, size_t count, uint32_t divisor);
  using Rescale = void (*)(void* data, size_t count, double factor);

  const char* name;
  Loops arithmetic[kArithmeticOps][kColumns];
  Loops bitwise[kBitwiseOps];            // counts are bytes
  Loops complex_product[kComplexTypes];  // counts are parts
  Copy widen[kColumns];
  Finish finalize[kColumns];
  Rescale scale[kColumns];
  Copy cast[kFloatTypes][kFloatTypes];  // [from][to]
  Loops::Update plain_add;              // a += b in fp32 as anybody would write it: the yardstick of the benchmarks
  uint32_t (*plain_or)(const void* a, size_t count);  // of the bits, as anybody would write it: what reading costs
};

#if defined(__x86_64__)
extern const Table kAvx512;
extern const Table kAvx2;
#elif defined(__aarch64__)
extern const Table kNeon;
#endif
extern const Table kScalar;

}  // namespace byteps_like::kernels
