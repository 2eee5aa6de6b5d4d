#include "server/store/combining/weighed.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace byteps_like {
namespace {

struct AgeRow {
  const char* name;
  AgeFactor factor;
};

constexpr AgeRow kAges[] = {
    {"none", nullptr},
    {"exp",
     [](int64_t age) { return std::pow(std::numbers::e / 2, -static_cast<double>(std::min<int64_t>(age, 1000))); }},
    {"inverse", [](int64_t age) { return 1.0 / static_cast<double>(std::max<int64_t>(age, 1)); }},
};

AgeFactor AgeOf(CodecSpec& spec, const char* key) {
  const std::string word = spec.Word(key, {"none", "exp", "inverse"});
  return std::ranges::find(kAges, word, &AgeRow::name)->factor;
}

double At(AgeFactor factor, int64_t age) { return factor == nullptr ? 1.0 : factor(age); }

}  // namespace

Weighed::Weighed(bool is_mean, CodecSpec& spec)
    : is_mean_(is_mean), age_(AgeOf(spec, "age")), damp_(AgeOf(spec, "damp")) {}

std::unique_ptr<Combining> Weighed::MakeSum(CodecSpec& spec) {
  return std::unique_ptr<Combining>(new Weighed(false, spec));
}

std::unique_ptr<Combining> Weighed::MakeMean(CodecSpec& spec) {
  return std::unique_ptr<Combining>(new Weighed(true, spec));
}

std::vector<double> Weighed::Factors(std::span<const StorePush> pushes, int64_t version) const {
  std::vector<double> factors;
  double total = 0;
  for (const StorePush& push : pushes) {
    factors.push_back(push.weight * At(age_, version - 1 - push.base));
    total += factors.back();
  }
  for (size_t i = 0; i < pushes.size(); ++i)
    factors[i] = At(damp_, version - 1 - pushes[i].base) * factors[i] / (is_mean_ ? total : 1);
  return factors;
}

}  // namespace byteps_like
