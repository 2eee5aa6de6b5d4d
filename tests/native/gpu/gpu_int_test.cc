// The kernels of int against the codec of the CPU.
#include <doctest/doctest.h>

#include "tests/native/gpu/gpu_twin.h"

namespace byteps_like {
namespace {

using testing::Filling;
using testing::GpuTwin;

}  // namespace

TEST_CASE("gpu int: the bits of the CPU, whatever the numbers and the form") {
  for (const char* const spec : {
           "int:bits=8,block=256,rounding=nearest,scale=own,seed=0",
           "int:bits=8,block=256,rounding=stochastic,scale=own,seed=5",
           "int:bits=4,block=128,rounding=nearest,scale=own,seed=0",
           "int:bits=4,block=384,rounding=stochastic,scale=own,seed=1",
           "int:bits=2,block=512,rounding=stochastic,scale=own,seed=2",
           "int:bits=8,block=1024,rounding=stochastic,scale=own,seed=3",
           "int:bits=4,block=1408,rounding=nearest,scale=own,seed=0",
           "int:bits=8,block=0,rounding=nearest,scale=own,seed=0",
           "int:bits=2,block=0,rounding=nearest,scale=shared,seed=0",
           "int:bits=4,block=256,rounding=stochastic,scale=shared,seed=4",
           "int:bits=8,block=1152,rounding=stochastic,scale=shared,seed=4",
       }) {
    GpuTwin twin(spec, 3);
    for (const Filling filling : testing::kFillings) twin.Round(2500, filling);
  }
}

TEST_CASE("gpu int: all sizes around groups, chunks and blocks, from any address") {
  for (const char* const spec : {
           "int:bits=8,block=256,rounding=stochastic,scale=own,seed=0",
           "int:bits=4,block=256,rounding=nearest,scale=own,seed=0",
           "int:bits=2,block=128,rounding=nearest,scale=own,seed=0",
           "int:bits=4,block=0,rounding=stochastic,scale=own,seed=0",
           "int:bits=4,block=256,rounding=stochastic,scale=shared,seed=0",
       }) {
    GpuTwin twin(spec, 3);
    for (const uint32_t numel :
         {1u, 2u, 3u, 31u, 32u, 33u, 63u, 65u, 95u, 127u, 128u, 129u, 255u, 257u, 511u, 513u, 700u})
      twin.Round(numel, Filling::kNormal, numel % 4);
  }
}

TEST_CASE("gpu int: warps that take several blocks and tiles") {
  for (const char* const spec : {
           "int:bits=8,block=128,rounding=nearest,scale=own,seed=0",
           "int:bits=4,block=1152,rounding=nearest,scale=own,seed=0",
           "int:bits=2,block=0,rounding=stochastic,scale=shared,seed=0",
       })
    GpuTwin(spec, 3, {.most_blocks = 1}).Round(20'000, Filling::kNormal, 1);
}

TEST_CASE("gpu int: sums of 8, 16 and 32 bits") {
  for (const uint32_t world : {1u, 2u, 9u, 300u}) {
    GpuTwin("int:bits=8,block=256,rounding=nearest,scale=shared,seed=0", world).Round(1000, Filling::kNormal);
    GpuTwin("int:bits=4,block=0,rounding=stochastic,scale=shared,seed=0", world).Round(777, Filling::kNormal, 1);
  }
}

}  // namespace byteps_like
