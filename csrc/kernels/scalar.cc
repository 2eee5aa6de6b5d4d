// What any CPU can do: the slow, obvious version that the others are tested against.
#define BYTEPS_LIKE_ISA scalar
#define BYTEPS_LIKE_VECTOR_BYTES 0
#define BYTEPS_LIKE_STREAM_BYTES 0
#include "csrc/kernels/make_table.h"

namespace byteps_like::kernels {

constexpr Table kScalar = scalar::MakeTable("scalar");

}  // namespace byteps_like::kernels
