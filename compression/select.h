// The k largest of many, exactly and always the same: of equal magnitudes the first come first.
#pragma once

#include <cstdint>
#include <span>

namespace byteps_like {

// Writes the indices of the k largest of x, ascending. 1 <= k <= x.size(). `indices` has room for twice as many as x
// has elements. One pass over x where a sample tells well enough how large the k-th is.
void SelectLargest(std::span<const float> x, uint32_t k, uint32_t* indices);

// The same for about k, 0.8 to 1.3 of it, by a threshold from the sample alone; zeros are never taken. After ten tries:
// exactly k. Returns how many.
uint32_t SelectAbout(std::span<const float> x, uint32_t k, uint32_t* indices);

}  // namespace byteps_like
