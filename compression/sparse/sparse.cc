#include "compression/sparse/sparse.h"

namespace byteps_like {

uint32_t CountBits(const uint32_t* words, uint32_t bits) {
  uint32_t count = 0;
  for (uint32_t word = 0; word < WordsOf(bits); ++word) count += std::popcount(words[word]);
  return count;
}

bool AreIndices(std::span<const uint32_t> indices, uint32_t numel) {
  bool ascending = true;
  for (size_t i = 1; i < indices.size(); ++i) ascending &= indices[i - 1] < indices[i];
  return ascending && (indices.empty() || indices.back() < numel);
}

}  // namespace byteps_like
