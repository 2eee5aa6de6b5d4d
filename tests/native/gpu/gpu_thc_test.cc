// The kernels of THC against the codec of the CPU.
#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "tests/native/gpu/gpu_twin.h"

namespace byteps_like {
namespace {

using testing::Filling;
using testing::GpuTwin;

constexpr software_gpu::Device kLittle{.most_shared = 64 * 1024}, kMuch{.most_shared = 163 * 1024};  // sm_75, sm_80
constexpr const char* kDefault = "thc:bits=4,clamp=32,seed=0,table=auto";

}  // namespace

TEST_CASE("gpu thc: the bits of the CPU, whatever the numbers") {
  GpuTwin twin(kDefault, 8);
  for (const Filling filling : testing::kFillings) twin.Round(5003, filling);
}

TEST_CASE("gpu thc: norms near the ends of fp32") {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const float scale : {0x1p-147f, 0x1p-135f, 0x1p118f, 0x1p123f}) {
    std::vector<float> x(300);
    for (float& value : x) value = normal(random) * scale;
    GpuTwin(kDefault, 8).Round(x);
  }
}

TEST_CASE("gpu thc: all sizes of rotation blocks and tails, from any address") {
  GpuTwin twin(kDefault, 8);
  for (const uint32_t numel : {1u, 255u, 256u, 257u, 511u, 512u, 1024u, 2048u, 4096u, 8192u, 16384u, 32767u})
    twin.Round(numel, Filling::kNormal, numel % 3);
}

TEST_CASE("gpu thc: whole blocks on devices with much and with little shared memory") {
  for (const auto& device : {kLittle, kMuch})
    for (const uint32_t offset : {0u, 1u})
      GpuTwin(kDefault, 8, device).Round(2 * 32768 + 300, Filling::kNormal, offset);
  for (const Filling filling : {Filling::kSparse, Filling::kLarge, Filling::kDenormal, Filling::kOneNan})
    GpuTwin(kDefault, 8, kMuch).Round(32768, filling);
}

TEST_CASE("gpu thc: blocks of threads that take several rotation blocks") {
  GpuTwin twin(kDefault, 8, {.most_blocks = 1});
  twin.Round(2 * 32768, Filling::kNormal);
  twin.Round(5003, Filling::kOneNan);
}

TEST_CASE("gpu thc: all widths of codes and of sums, tables of one, three and more ramps") {
  for (const char* const spec : {
           "thc:bits=2,clamp=16,seed=1,table=auto",
           "thc:bits=2,clamp=32,seed=2,table=uniform",
           "thc:bits=3,clamp=32,seed=3,table=auto",
           "thc:bits=3,clamp=64,seed=4,table=0.38.64.86.107.129.155.193",
           "thc:bits=4,clamp=64,seed=5,table=uniform",
           "thc:bits=4,clamp=64,seed=5,table=auto",
           "thc:bits=4,clamp=16,seed=6,table=0.22.41.58.74.89.103.117.131.145.159.174.190.207.226.248",
       }) {
    GpuTwin twin(spec, 3);
    twin.Round(3000, Filling::kNormal);
    if (twin.codec().spec().ends_with("auto")) twin.Round(32768 + 5, Filling::kNormal);
  }
  GpuTwin(kDefault, 300).Round(3000, Filling::kNormal);  // sums of 16 bits
  GpuTwin("thc:bits=2,clamp=16,seed=1,table=uniform", 300).Round(32768, Filling::kNormal);
}

TEST_CASE("gpu thc: a norm that hangs on the order of the sum is the CPU's") {
  GpuTwin twin(kDefault, 8);
  // 1 + 2^-23 + 2^-48 is the square of 1 + 2^-24, which is as near to 1 as to the next number; what is added to the 1
  // in its lane one by one is lost there, but not where it is first added up.
  std::vector<float> x(3000);
  x[0] = 1, x[5] = 0x1p-12f, x[700] = -0x1p-12f, x[2047] = 0x1p-24f;
  twin.Round(x);
  for (uint32_t i = 16; i < 1600; i += 16) x[i] = 0x1p-27f;
  twin.Round(x);
}

}  // namespace byteps_like
