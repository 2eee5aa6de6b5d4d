// Random rotations of a partition, block by block: after x -> H D x (D: random signs, H: Walsh-Hadamard, not
// normalised) all coordinates of a block are nearly normal, with the block's norm as their standard deviation, whatever
// x was. Blocks are powers of two from 256 to `most` elements: as many of `most` as there are, the rest by its binary
// digits, and the last elements, if fewer than 256, with zeros up to that.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "csrc/codec/random.h"

namespace byteps_like {

inline constexpr uint32_t kLeastRotation = 256;

struct RotationBlock {
  uint32_t begin;   // of the partition's elements; a multiple of 256
  uint32_t size;    // elements; 0: there is no such block
  uint32_t padded;  // elements with the zeros
};

inline RotationBlock RotationAt(uint32_t numel, uint32_t begin, uint32_t most) {
  const uint32_t rest = numel - begin;
  const uint32_t padded = std::clamp(std::bit_floor(rest), kLeastRotation, most);
  return {begin, std::min(rest, padded), padded};
}

// Calls `each(block, number)`.
template <typename Each>
void ForEachRotation(uint32_t numel, uint32_t most, const Each& each) {
  uint32_t number = 0;
  for (uint32_t begin = 0; begin < numel; ++number) {
    const RotationBlock block = RotationAt(numel, begin, most);
    each(block, number);
    begin += block.size;
  }
}

inline uint32_t RotationGroups(uint32_t numel) { return (numel + kLeastRotation - 1) / kLeastRotation; }

inline uint32_t RotationCount(uint32_t numel, uint32_t most) {
  const uint32_t rest = numel % most;
  return numel / most + std::popcount(rest / kLeastRotation) + (rest % kLeastRotation != 0 ? 1 : 0);
}

// The sum of x[i]^2, in fp64.
double Energy(std::span<const float> x);

// The power of two that brings a norm into [1, 2), as far as fp32 has it: with it nothing overflows or is denormal.
float NormalisingFactor(float norm);

// block = H D (factor x), x being the elements of `at`.
void Rotate(std::span<const float> x, const RotationBlock& at, const Stream64& stream, float factor, float* block);

// out = base + factor * D H block, for the elements of `at`; no base: 0. `block` is changed.
void RotateBack(float* block, const RotationBlock& at, const Stream64& stream, float factor, const float* base,
                float* out);

}  // namespace byteps_like
