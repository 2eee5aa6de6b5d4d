#include "server/store/combining/decoded.h"

#include <algorithm>
#include <string>
#include <utility>

#include "csrc/base/decimal.h"

namespace byteps_like {

std::unique_ptr<Combining> Decoded::Make(CodecSpec& spec) {
  const bool is_mean = spec.Word("combine", {"sum", "mean"}) == "mean";
  const int64_t ranks = spec.Integer("n", 1, GradientCode::kMostRanks);
  const int64_t missing = spec.Integer("s", 0, ranks - 1);
  const uint64_t seed = spec.Seed();
  GradientCode code(static_cast<uint32_t>(ranks), static_cast<uint32_t>(missing), seed);
  return std::unique_ptr<Combining>(new Decoded(is_mean, std::move(code)));
}

std::vector<double> Decoded::Factors(std::span<const StorePush> pushes, int64_t) const {
  Ranks ranks;
  for (const StorePush& push : pushes) ranks.push_back(push.source);
  std::ranges::sort(ranks);
  if (ranks.empty() || ranks.back() >= code_.ranks()) return {};
  const auto [known, is_new] = known_.try_emplace(ranks);
  if (is_new) known->second = code_.Decode(ranks);
  if (known->second.empty()) return {};
  std::vector<double> factors;
  for (const StorePush& push : pushes) {
    const auto place = std::ranges::lower_bound(ranks, push.source) - ranks.begin();
    factors.push_back(known->second[static_cast<size_t>(place)] / (is_mean_ ? code_.ranks() : 1));
  }
  return factors;
}

Status Decoded::CheckWeight(double weight) const {
  if (weight == 1) return {};
  return Status(Code::kInvalid,
                "weight " + DecimalOf(weight) + ": the code says what a coded gradient counts, so its weight is 1");
}

}  // namespace byteps_like
