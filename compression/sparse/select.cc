#include "compression/sparse/select.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "compression/sparse/sparse.h"

namespace byteps_like {
namespace {

constexpr uint32_t kOneIn = 100;        // of the elements are in a sample,
constexpr uint32_t kLeastSample = 256;  // and at least so many
constexpr int kTries = 10;
constexpr uint32_t kDigitBits[] = {11, 10, 10};

uint32_t MagnitudeOf(uint32_t value) { return value & kMagnitudeMask; }

// The k-th largest magnitude of some fp32, given as their bits: one digit a pass, from the top.
uint32_t KthMagnitude(std::span<const uint32_t> values, uint32_t k) {
  uint32_t found = 0, shift = kMagnitudeBits;
  for (const uint32_t bits : kDigitBits) {
    const uint32_t above = shift;
    shift -= bits;
    uint32_t histogram[1u << 11] = {};
    for (const uint32_t value : values) {
      const uint32_t magnitude = MagnitudeOf(value);
      if (magnitude >> above == found >> above) ++histogram[magnitude >> shift & ((1u << bits) - 1)];
    }
    uint32_t digit = (1u << bits) - 1;
    for (; histogram[digit] < k; --digit) k -= histogram[digit];
    found |= digit << shift;
  }
  return found;
}

// Every so many elements of x.
struct StridedSample {
  StridedSample(std::span<const float> x, uint32_t* room) {
    const size_t stride = SampleStride(x.size());
    size_t count = 0;
    for (size_t i = 0; i < x.size(); i += stride) room[count++] = std::bit_cast<uint32_t>(x[i]);
    values = {room, count};
  }
  // The magnitude of the r-th largest; zero beyond the end.
  uint32_t Largest(uint64_t r) const { return r > values.size() ? 0 : KthMagnitude(values, static_cast<uint32_t>(r)); }

  std::span<const uint32_t> values;
};

// Keeps, of `found` selected among which are the k largest of x, those k.
void Thin(uint32_t k, size_t found, const Selection& selection) {
  const uint32_t bound = KthMagnitude({selection.values, found}, k);
  uint32_t ties = k;
  for (size_t i = 0; i < found; ++i) ties -= MagnitudeOf(selection.values[i]) > bound;
  size_t kept = 0;
  for (size_t i = 0; kept < k; ++i) {
    const uint32_t value = selection.values[i];
    const uint32_t magnitude = MagnitudeOf(value);
    const bool tied = magnitude == bound && ties != 0;
    selection.indices[kept] = selection.indices[i];
    selection.values[kept] = value;
    kept += magnitude > bound || tied;
    ties -= tied;
  }
}

// Adds to all that isn't zero the first zeros, so that there are k: all elements below some index.
void FillWithZeros(std::span<const float> x, uint32_t k, uint32_t found, const Selection& selection) {
  uint32_t* const indices = selection.indices;
  uint32_t below = 0;  // of those found, how many are below the index
  while (below < found && indices[below] < k - found + below) ++below;
  const uint32_t end = k - found + below;
  std::memmove(indices + end, indices + below, size_t{found - below} * sizeof(uint32_t));
  for (uint32_t i = 0; i < end; ++i) indices[i] = i;
  for (uint32_t i = 0; i < k; ++i) selection.values[i] = std::bit_cast<uint32_t>(x[indices[i]]);
}

// All whose magnitude is at least `least`.
size_t SelectAtLeast(std::span<const float> x, uint32_t least, const Selection& selection) {
  return Pick_kSparse().at_least(x.data(), x.size(), least, selection.indices, selection.values);
}

}  // namespace

size_t SampleStride(size_t numel) { return std::max<size_t>(1, std::min<size_t>(kOneIn, numel / kLeastSample)); }

void SelectLargest(std::span<const float> x, uint32_t k, const Selection& selection) {
  const StridedSample sample(x, selection.sample);
  // As many of the sample as would be above the bound, and four standard deviations more.
  const double expected = static_cast<double>(k) * static_cast<double>(sample.values.size()) / x.size();
  auto r = static_cast<uint64_t>(expected + 4 * std::sqrt(expected) + 4);
  for (;; r *= 4) {
    const uint32_t least = std::max(1u, sample.Largest(r));
    const size_t found = SelectAtLeast(x, least, selection);
    if (found >= k) return Thin(k, found, selection);
    if (least == 1) return FillWithZeros(x, k, static_cast<uint32_t>(found), selection);
  }
}

uint32_t SelectAbout(std::span<const float> x, uint32_t k, const Selection& selection) {
  const StridedSample sample(x, selection.sample);
  uint64_t r = std::max<uint64_t>(1, k * sample.values.size() / x.size());
  for (int attempt = 0; attempt < kTries && r <= sample.values.size(); ++attempt) {
    const uint32_t least = std::max(1u, sample.Largest(r));
    const uint64_t found = SelectAtLeast(x, least, selection);
    const bool enough = 10 * found >= uint64_t{8} * k || least == 1;
    if (enough && 10 * found <= uint64_t{13} * k) return static_cast<uint32_t>(found);
    if (least == 1) break;
    const uint64_t next = r * k / std::max<uint64_t>(found, 1);
    r = next == r ? (enough ? r - 1 : r + 1) : std::max<uint64_t>(next, 1);
    if (r == 0) break;
  }
  SelectLargest(x, k, selection);
  return k;
}

}  // namespace byteps_like
