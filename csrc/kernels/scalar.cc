// The version for any CPU: slow and obvious, and the reference in the tests of the others.
#define BYTEPS_LIKE_ISA scalar
#define BYTEPS_LIKE_VECTOR_BYTES 0
#define BYTEPS_LIKE_STREAM_BYTES 0
#include "csrc/kernels/make_table.h"

namespace byteps_like::kernels {

constexpr Table kScalar = scalar::MakeTable("scalar");

}  // namespace byteps_like::kernels
