// Weighed sums and means: f = d w / D, with D = 1 for a sum and Σ w for a mean; w has a factor by age in it, d is one.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "server/store/combining/combining.h"

namespace byteps_like {

// By what a contribution counts that is so many versions old: above 0, at most 1.
using AgeFactor = double (*)(int64_t age);

class Weighed final : public Combining {
 public:
  static std::unique_ptr<Combining> MakeSum(CodecSpec& spec);
  static std::unique_ptr<Combining> MakeMean(CodecSpec& spec);

  bool AddsIntegers() const override { return !is_mean_ && age_ == nullptr && damp_ == nullptr; }
  std::vector<double> Factors(std::span<const StorePush> pushes, int64_t version) const override;

 private:
  Weighed(bool is_mean, CodecSpec& spec);

  const bool is_mean_;
  const AgeFactor age_, damp_;  // nullptr: 1 at any age. A new one is a row in weighed.cc, and in AGES of its twin
};

}  // namespace byteps_like
