// Decoded gradients: what the ranks that are there have sent adds up to the gradient of the whole batch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "server/store/combining/combining.h"
#include "server/store/combining/gradient_code.h"

namespace byteps_like {

class Decoded final : public Combining {
 public:
  static std::unique_ptr<Combining> Make(CodecSpec& spec);

  bool AddsIntegers() const override { return false; }
  std::vector<double> Factors(std::span<const StorePush> pushes, int64_t version) const override;
  Status CheckWeight(double weight) const override;
  bool TakesBlocks() const override { return false; }

 private:
  using Ranks = std::vector<uint32_t>;

  Decoded(bool is_mean, GradientCode code) : is_mean_(is_mean), code_(std::move(code)) {}

  const bool is_mean_;
  const GradientCode code_;
  mutable std::map<Ranks, std::vector<double>> known_;  // by ranks that are there: each set is solved once
};

}  // namespace byteps_like
