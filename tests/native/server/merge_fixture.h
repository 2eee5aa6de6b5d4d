// Gradients of which whole blocks are zero, and the sums that rounds of them should have. All values are whole numbers,
// so that every order of a sum gives the same bits.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/native/server/encoded_fixture.h"

namespace byteps_like::testing {

inline constexpr uint32_t kBlock = 256;
inline const std::string kBlocks = "blocksparse:block=256,dense=0.8";

// As many blocks as `share` of all comes to, rounded down, aren't zero.
inline Floats SparseBlocks(uint32_t numel, double share, uint32_t seed, uint32_t block = kBlock) {
  std::mt19937 random(seed);
  const uint32_t blocks = (numel + block - 1) / block;
  std::vector<uint32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), random);
  order.resize(static_cast<size_t>(share * blocks));
  Floats values(numel);
  for (const uint32_t one : order)
    for (uint32_t i = one * block; i < std::min(numel, (one + 1) * block); ++i)
      values[i] = static_cast<float>(1 + random() % 1000) * (random() % 2 == 0 ? 1.0f : -1.0f);
  return values;
}

inline std::vector<Floats> SparseRanks(uint32_t numel, const std::vector<double>& shares, uint32_t seed) {
  std::vector<Floats> xs;
  for (const double share : shares)
    xs.push_back(SparseBlocks(numel, share, seed * 100 + static_cast<uint32_t>(xs.size())));
  return xs;
}

inline Floats DenseSum(const std::vector<Floats>& xs) {
  Floats sum(xs[0].size());
  for (const Floats& x : xs)
    for (size_t i = 0; i < x.size(); ++i) sum[i] += x[i];
  return sum;
}

// What a worker makes of a result, its header included.
inline Floats Decoded(const Codec& codec, const Payload& result, uint32_t numel) {
  Floats out(numel);
  const auto body = std::span(result).subspan(kPayloadHeader);
  const Status status = codec.Decode(body, 1, {}, nullptr, nullptr, 1.0f, out);
  if (!status.ok()) throw std::runtime_error(status.message());
  return out;
}

// The blocks of which some rank has something.
inline std::vector<bool> BlocksOf(const std::vector<Floats>& xs) {
  std::vector<bool> found((xs[0].size() + kBlock - 1) / kBlock);
  for (const Floats& x : xs)
    for (size_t i = 0; i < x.size(); ++i)
      if (x[i] != 0) found[i / kBlock] = true;
  return found;
}

}  // namespace byteps_like::testing
