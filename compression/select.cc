#include "compression/select.h"

#include <algorithm>
#include <cmath>

#include "compression/sparse.h"

namespace byteps_like {
namespace {

constexpr uint32_t kOneIn = 100;        // of the elements are in a sample,
constexpr uint32_t kLeastSample = 256;  // and at least so many
constexpr int kTries = 10;
constexpr uint32_t kDigitBits[] = {11, 10, 10};

uint32_t MagnitudeAt(std::span<const float> x, size_t i) {
  uint32_t bits;
  std::memcpy(&bits, x.data() + i, sizeof(bits));
  return bits & kMagnitudeMask;
}

// The k-th largest of some magnitudes: one digit a pass, from the top.
uint32_t KthOf(std::span<const uint32_t> magnitudes, uint32_t k) {
  uint32_t found = 0, shift = kMagnitudeBits;
  for (const uint32_t bits : kDigitBits) {
    const uint32_t above = shift;
    shift -= bits;
    uint32_t histogram[1u << 11] = {};
    for (const uint32_t magnitude : magnitudes)
      if (magnitude >> above == found >> above) ++histogram[magnitude >> shift & ((1u << bits) - 1)];
    uint32_t digit = (1u << bits) - 1;
    for (; histogram[digit] < k; --digit) k -= histogram[digit];
    found |= digit << shift;
  }
  return found;
}

// The magnitudes of every so many elements of x.
struct StridedSample {
  StridedSample(std::span<const float> x, uint32_t* room) {
    const auto stride = std::max<size_t>(1, std::min<size_t>(kOneIn, x.size() / kLeastSample));
    size_t count = 0;
    for (size_t i = 0; i < x.size(); i += stride) room[count++] = MagnitudeAt(x, i);
    magnitudes = {room, count};
  }
  // Zero beyond its end.
  uint32_t Largest(uint64_t r) const { return r > magnitudes.size() ? 0 : KthOf(magnitudes, static_cast<uint32_t>(r)); }

  std::span<const uint32_t> magnitudes;
};

// Keeps, of candidates among which are the k largest of x, those k. `room`: for as many words.
void Thin(std::span<const float> x, uint32_t k, std::span<uint32_t> candidates, uint32_t* room) {
  const std::span<uint32_t> magnitudes(room, candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) magnitudes[i] = MagnitudeAt(x, candidates[i]);
  const uint32_t bound = KthOf(magnitudes, k);
  uint32_t ties = k;
  for (const uint32_t magnitude : magnitudes) ties -= magnitude > bound;
  size_t kept = 0;
  for (size_t i = 0; kept < k; ++i) {
    const bool tied = magnitudes[i] == bound;
    candidates[kept] = candidates[i];
    kept += magnitudes[i] > bound || (tied && ties != 0);
    ties -= tied && ties != 0;
  }
}

// Adds to the indices of all that isn't zero those of the first zeros, so that there are k: all below some index.
void FillWithZeros(uint32_t k, uint32_t found, uint32_t* indices) {
  uint32_t below = 0;  // of those found, how many are below the index
  while (below < found && indices[below] < k - found + below) ++below;
  const uint32_t end = k - found + below;
  std::memmove(indices + end, indices + below, size_t{found - below} * sizeof(uint32_t));
  for (uint32_t i = 0; i < end; ++i) indices[i] = i;
}

}  // namespace

void SelectLargest(std::span<const float> x, uint32_t k, uint32_t* indices) {
  uint32_t* const room = indices + x.size();
  const StridedSample sample(x, room);
  // As many of the sample as would be above the bound, and four standard deviations more.
  const double expected = static_cast<double>(k) * sample.magnitudes.size() / x.size();
  auto r = static_cast<uint64_t>(expected + 4 * std::sqrt(expected) + 4);
  for (;; r *= 4) {
    const uint32_t least = std::max(1u, sample.Largest(r));
    const auto found = static_cast<uint32_t>(Pick_kSparse().at_least(x.data(), x.size(), least, indices));
    if (found >= k) return Thin(x, k, {indices, found}, room);
    if (least == 1) return FillWithZeros(k, found, indices);
  }
}

uint32_t SelectAbout(std::span<const float> x, uint32_t k, uint32_t* indices) {
  const StridedSample sample(x, indices + x.size());
  uint64_t r = std::max<uint64_t>(1, k * sample.magnitudes.size() / x.size());
  for (int attempt = 0; attempt < kTries && r <= sample.magnitudes.size(); ++attempt) {
    const uint32_t least = std::max(1u, sample.Largest(r));
    const uint64_t found = Pick_kSparse().at_least(x.data(), x.size(), least, indices);
    const bool enough = 10 * found >= uint64_t{8} * k || least == 1;
    if (enough && 10 * found <= uint64_t{13} * k) return static_cast<uint32_t>(found);
    if (least == 1) break;
    const uint64_t next = r * k / std::max<uint64_t>(found, 1);
    r = next == r ? (enough ? r - 1 : r + 1) : std::max<uint64_t>(next, 1);
    if (r == 0) break;
  }
  SelectLargest(x, k, indices);
  return k;
}

}  // namespace byteps_like
