#include "server/store/gradient_estimate.h"

#include <array>
#include <cstdint>

namespace byteps_like {
namespace {

constexpr size_t kLanes = 8;  // partial sums, so that one addition need not wait for another
using Lanes = std::array<double, kLanes>;

double Total(const Lanes& lanes) {
  double total = lanes[0];
  for (size_t lane = 1; lane < kLanes; ++lane) total += lanes[lane];
  return total;
}

// Of elements `first` to `first` + `size`, a lane for each.
template <typename T>
void Add(std::span<void* const> arrays, size_t first, size_t size, Lanes& squares, Lanes& deviations) {
  const auto element = [&](size_t i, size_t lane) {
    return static_cast<double>(static_cast<const T*>(arrays[i])[first + lane]);
  };
  const auto count = static_cast<double>(arrays.size());
  Lanes mean{}, spread{};
  for (size_t lane = 0; lane < size; ++lane) mean[lane] = element(0, lane);
  for (size_t i = 1; i < arrays.size(); ++i)
    for (size_t lane = 0; lane < size; ++lane) mean[lane] += element(i, lane);
  for (size_t lane = 0; lane < size; ++lane) mean[lane] /= count;
  for (size_t i = 0; i < arrays.size(); ++i)
    for (size_t lane = 0; lane < size; ++lane) {
      const double off = element(i, lane) - mean[lane];
      spread[lane] += off * off;
    }
  for (size_t lane = 0; lane < size; ++lane) {
    squares[lane] += mean[lane] * mean[lane];
    deviations[lane] += spread[lane];
  }
}

template <typename T>
GradientEstimate Of(std::span<void* const> arrays, size_t count) {
  Lanes squares{}, deviations{};
  const size_t whole = count - count % kLanes;
  for (size_t first = 0; first < whole; first += kLanes) Add<T>(arrays, first, kLanes, squares, deviations);
  Add<T>(arrays, whole, count - whole, squares, deviations);
  const auto several = static_cast<double>(arrays.size());
  const double noise = Total(deviations) / (several - 1);
  return {Total(squares) - noise / several, noise};
}

}  // namespace

GradientEstimate EstimateGradient(DType dtype, std::span<void* const> arrays, size_t count) {
  if (dtype == DType::kInt64) return Of<int64_t>(arrays, count);
  return dtype == DType::kFloat64 ? Of<double>(arrays, count) : Of<float>(arrays, count);
}

}  // namespace byteps_like
