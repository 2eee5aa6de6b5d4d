// The kernels of coo, bitmap, blocksparse and randomk against the codecs of the CPU.
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "tests/native/gpu/gpu_twin.h"

namespace byteps_like {
namespace {

using testing::Filling;
using testing::GpuTwin;

constexpr const char* kSparseSpecs[] = {
    "coo",
    "bitmap",
    "blocksparse:block=1,dense=0.5",
    "blocksparse:block=7,dense=0.3",
    "blocksparse:block=32,dense=1",
    "blocksparse:block=100,dense=0",
    "blocksparse:block=256,dense=0.8",
    "blocksparse:block=1000,dense=1",
    "blocksparse:block=1048576,dense=0.8",
};

// A result whose words are these, and then `floats` values.
std::vector<std::byte> ResultOf(const std::vector<uint32_t>& words, size_t floats) {
  std::vector<std::byte> bytes(4 * (words.size() + floats));
  std::memcpy(bytes.data(), words.data(), 4 * words.size());
  return bytes;
}

}  // namespace

TEST_CASE("gpu sparse codecs: the bits of the CPU at every density") {
  for (const char* const spec : kSparseSpecs) {
    GpuTwin twin(spec, 3);
    for (const Filling filling : testing::kFillings) twin.Round(2500, filling);
  }
}

TEST_CASE("gpu sparse codecs: all sizes around words, blocks and tiles, from any address") {
  for (const char* const spec : kSparseSpecs) {
    GpuTwin twin(spec, 3);
    for (const uint32_t numel : {1u, 6u, 7u, 8u, 31u, 33u, 255u, 257u, 1023u, 1024u, 1025u, 2049u})
      twin.Round(numel, Filling::kSparse, numel % 4);
    GpuTwin(spec, 3, {.most_blocks = 1}).Round(20'000, Filling::kSparse, 1);
  }
}

TEST_CASE("gpu coo: indices that are none are refused") {
  GpuTwin twin("coo", 3);
  for (const auto& words : std::vector<std::vector<uint32_t>>{
           {2, 5, 5}, {2, 6, 5}, {2, 5, 100}, {2, 5, 0xFFFFFFFF}, {101}, {0}, {0xFFFFFFFE}, {3, 1, 2}, {2, 0, 99}})
    twin.Arbitrary(100, ResultOf(words, words.size() - 1));
  twin.Arbitrary(100, ResultOf({0xFFFFFFFF}, 100));
  twin.Arbitrary(100, ResultOf({0xFFFFFFFF}, 99));
}

TEST_CASE("gpu blocksparse: bitmaps that are none are refused") {
  GpuTwin twin("blocksparse:block=32,dense=1", 3);
  twin.Arbitrary(100, ResultOf({2, 0b0101}, 64));
  twin.Arbitrary(100, ResultOf({2, 0b1001}, 36));  // the last block has 4
  twin.Arbitrary(100, ResultOf({2, 0b1001}, 64));
  twin.Arbitrary(100, ResultOf({1, 0b0101}, 64));
  twin.Arbitrary(100, ResultOf({2, 0b10001}, 64));
  twin.Arbitrary(100, ResultOf({0, 0}, 0));
  twin.Arbitrary(100, ResultOf({0}, 0));
  twin.Arbitrary(100, ResultOf({0xFFFFFFFF}, 100));
  twin.Arbitrary(100, ResultOf({0xFFFFFFFF}, 101));
}

TEST_CASE("gpu randomk: the draws of the CPU") {
  for (const char* const spec : {
           "randomk:ratio=0,scale=0,seed=0",
           "randomk:ratio=0.01,scale=1,seed=5",
           "randomk:ratio=0.37,scale=1,seed=9223372036854775807",
           "randomk:ratio=1,scale=0,seed=1",
       }) {
    GpuTwin twin(spec, 3);
    for (const Filling filling : testing::kFillings) twin.Round(2500, filling);
    for (const uint32_t numel : {1u, 2u, 3u, 5u, 31u, 33u, 999u, 1025u}) twin.Round(numel, Filling::kNormal, numel % 4);
    GpuTwin(spec, 3, {.most_blocks = 1}).Round(20'000, Filling::kNormal, 1);
  }
}

}  // namespace byteps_like
