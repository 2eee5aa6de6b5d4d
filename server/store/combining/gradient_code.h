// Gradient codes: each rank sends a sum over s + 1 of n parts of a batch, and any n - s ranks have the whole batch's
// gradient. Twin of byteps_like/store/combining/gradient_code.py, which says how and after whom, to the last bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace byteps_like {

class GradientCode {
 public:
  static constexpr uint32_t kMostRanks = 64;

  // 0 <= missing < ranks <= kMostRanks.
  GradientCode(uint32_t ranks, uint32_t missing, uint64_t seed);

  uint32_t ranks() const { return ranks_; }
  // By what the sum of each of the `present` ranks, which ascend, is multiplied, so that all add up to the sum of all
  // parts; empty if more than the `missing` ones are not there.
  std::vector<double> Decode(std::span<const uint32_t> present) const;

 private:
  using Matrix = std::vector<std::vector<double>>;

  bool repeats() const { return ranks_ % (missing_ + 1) == 0; }
  std::vector<double> RowOf(uint32_t rank, const Matrix& orthogonal) const;
  std::vector<double> Chosen(std::span<const uint32_t> present) const;
  std::vector<double> Solved(std::span<const uint32_t> present) const;

  const uint32_t ranks_, missing_;
  Matrix rows_;  // by rank, the factors of the parts from its own number on, in a circle
};

}  // namespace byteps_like
