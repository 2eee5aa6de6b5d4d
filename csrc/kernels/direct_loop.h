// The yardstick of collectives within a host: what ranks can do that have each other's memory and nothing to agree on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace byteps_like::kernels {

// Sums fp32 sources into all destinations; with one source, copies it.
struct DirectJob {
  std::vector<void*> destinations;
  std::vector<const void*> sources;
  size_t count = 0;  // elements
};

// This rank's share of a collective, `iterations` times, in step with the others: every rank calls it with the same
// `counters` (one cache line of 8 words for each rank, zero at first, shared) and all begin and end each iteration
// together, waiting in a loop (with `yields`, giving up the CPU in it: for more ranks than cores). Blocks until all
// ranks have done theirs; a rank that never comes blocks the others for ever.
void RunDirect(uint64_t* counters, uint32_t rank, uint32_t size, std::span<const DirectJob> jobs, uint32_t iterations,
               bool yields);

}  // namespace byteps_like::kernels
