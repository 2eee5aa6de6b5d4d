// The k largest of many, exactly and always the same: of equal magnitudes the first come first.
#pragma once

#include <cstdint>
#include <span>

namespace byteps_like {

// Elements of x, in the order of their indices. Each of the three has room for as many as x has.
struct Selection {
  explicit Selection(uint32_t* room, size_t numel) : indices(room), values(room + numel), sample(room + 2 * numel) {}
  static constexpr uint64_t Bytes(uint32_t numel) { return uint64_t{numel} * 12; }

  uint32_t* const indices;
  uint32_t* const values;  // fp32 as bits
  uint32_t* const sample;  // scratch
};

// Elements of x from one of the sample to the next; the first is in it.
size_t SampleStride(size_t numel);

// The k largest of x, 1 <= k <= x.size(): one pass over x where a sample tells well enough how large the k-th is.
void SelectLargest(std::span<const float> x, uint32_t k, const Selection& selection);

// The same for about k, 0.8 to 1.3 of it, by a threshold from the sample alone; zeros are never taken. After ten tries:
// exactly k. Returns how many.
uint32_t SelectAbout(std::span<const float> x, uint32_t k, const Selection& selection);

}  // namespace byteps_like
