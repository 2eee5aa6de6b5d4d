// How a codec's loops are compiled for several instruction sets: each file in compression/loops is compiled once per
// set, with BYTEPS_LIKE_ISA naming it, and defines one table of function pointers; the codec picks that of the set in
// use. The loops are plain: the compiler makes vectors of them, and since fp contraction and reassociation are off, all
// sets give the same bits. Sums of floats are therefore made in kSumLanes lanes, by index, joined in order.
//
// Those files are compiled for CPUs that may not be the one running: they include nothing with inline functions of
// external linkage (no standard library), since the linker might keep the copy made with the wider instructions.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <string_view>

#include "csrc/kernels/kernels.h"

namespace byteps_like {

#if defined(__x86_64__)
#define BYTEPS_LIKE_DECLARE_LOOPS(Type, name)               \
  namespace avx512 {                                        \
  extern const Type name;                                   \
  }                                                         \
  namespace avx2 {                                          \
  extern const Type name;                                   \
  }                                                         \
  namespace scalar {                                        \
  extern const Type name;                                   \
  }                                                         \
  inline const Type& Pick_##name() {                        \
    const std::string_view isa = kernels::InstructionSet(); \
    if (isa == "avx512") return avx512::name;               \
    return isa == "avx2" ? avx2::name : scalar::name;       \
  }
#else
#define BYTEPS_LIKE_DECLARE_LOOPS(Type, name) \
  namespace scalar {                          \
  extern const Type name;                     \
  }                                           \
  inline const Type& Pick_##name() { return scalar::name; }
#endif

}  // namespace byteps_like
