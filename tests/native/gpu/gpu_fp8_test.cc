// The kernels of fp8 against the codec of the CPU.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/native/gpu/gpu_twin.h"

namespace byteps_like {
namespace {

using testing::Filling;
using testing::GpuTwin;

std::string SpecOf(const char* format, uint32_t block) {
  return "fp8:block=" + std::to_string(block) + ",format=" + format;
}

}  // namespace

TEST_CASE("gpu fp8: the bits of the CPU, whatever the numbers and the blocks") {
  for (const char* const format : {"e4m3", "e5m2"})
    for (const uint32_t block : {16u, 32u, 64u, 128u, 256u, 512u, 1024u, 2048u}) {
      GpuTwin twin(SpecOf(format, block), 3);
      twin.Round(2500, Filling::kNormal, 1);
      if (block % 96 == 32)  // 32, 128, 512, 2048
        for (const Filling filling : testing::kFillings) twin.Round(2200, filling);
    }
}

TEST_CASE("gpu fp8: all sizes around fours and blocks, from any address") {
  for (const uint32_t block : {16u, 32u, 256u}) {
    GpuTwin twin(SpecOf("e4m3", block), 3);
    for (const uint32_t numel : {1u, 2u, 3u, 4u, 5u, 15u, 16u, 17u, 33u, 127u, 128u, 129u, 511u, 513u})
      twin.Round(numel, Filling::kNormal, numel % 4);
  }
}

TEST_CASE("gpu fp8: warps that take several tiles") {
  for (const uint32_t block : {32u, 1024u})
    GpuTwin(SpecOf("e5m2", block), 3, {.most_blocks = 1}).Round(20'000, Filling::kNormal);
}

TEST_CASE("gpu fp8: every byte there is, with every exponent") {
  std::mt19937 random(1);
  for (const char* const format : {"e4m3", "e5m2"}) {
    GpuTwin twin(SpecOf(format, 16), 3);
    std::vector<std::byte> result(4096 + 256);
    for (uint32_t i = 0; i < 4096; ++i) result[i] = static_cast<std::byte>(i * 5 + i / 256);
    for (uint32_t i = 0; i < 256; ++i) result[4096 + i] = static_cast<std::byte>(i);
    twin.Arbitrary(4096, result);
  }
}

}  // namespace byteps_like
