// The kernels of topk and chunktopk against the codecs of the CPU.
#include <doctest/doctest.h>

#include "tests/native/gpu/gpu_twin.h"

namespace byteps_like {
namespace {

using testing::Filling;
using testing::GpuTwin;

}  // namespace

TEST_CASE("gpu topk: the elements of the CPU, whatever the numbers, ties and zeros") {
  for (const char* const spec : {
           "topk:ratio=0,select=exact",
           "topk:ratio=0.3,select=exact",
           "topk:ratio=1,select=exact",
           "topk:ratio=0.05,select=sampled",
           "topk:ratio=1,select=sampled",
       }) {
    GpuTwin twin(spec, 3);
    for (const Filling filling : testing::kFillings) twin.Round(2500, filling);
  }
}

TEST_CASE("gpu topk: all sizes around rows and tiles, from any address") {
  for (const char* const spec : {"topk:ratio=0.1,select=exact", "topk:ratio=0.3,select=sampled"}) {
    GpuTwin twin(spec, 3);
    for (const uint32_t numel : {1u, 2u, 3u, 31u, 32u, 33u, 511u, 513u, 1023u, 1024u, 1025u, 2047u, 2049u})
      twin.Round(numel, Filling::kNormal, numel % 4);
  }
}

TEST_CASE("gpu topk: a sample that tells well, and one that doesn't") {
  GpuTwin twin("topk:ratio=0.01,select=sampled", 3);
  twin.Round(60'000, Filling::kNormal);  // stride 100
  twin.Round(30'000, Filling::kSparse);  // most of the sample is zeros
  twin.Round(30'000, Filling::kTies, 1);
}

TEST_CASE("gpu topk: warps and blocks that take several tiles") {
  for (const char* const spec : {"topk:ratio=0.02,select=exact", "topk:ratio=0.1,select=sampled"})
    GpuTwin(spec, 3, {.most_blocks = 1}).Round(20'000, Filling::kNormal, 1);
}

TEST_CASE("gpu chunktopk: the chunks of the CPU") {
  for (const char* const spec : {
           "chunktopk:chunk=1,ratio=0.1",
           "chunktopk:chunk=7,ratio=0.5",
           "chunktopk:chunk=16,ratio=1",
           "chunktopk:chunk=256,ratio=0",
           "chunktopk:chunk=4096,ratio=0.4",
       }) {
    GpuTwin twin(spec, 3);
    for (const Filling filling : testing::kFillings) twin.Round(1500, filling);
    for (const uint32_t numel : {1u, 15u, 17u, 255u, 257u, 5000u}) twin.Round(numel, Filling::kNormal, numel % 4);
    GpuTwin(spec, 3, {.most_blocks = 1}).Round(6000, Filling::kSparse, 1);
  }
}

}  // namespace byteps_like
