// Schedules written by hand, for the tests and benchmarks of the executor.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "collectives/plan.h"

namespace byteps_like::testing {

inline ChunkSpan Input(uint32_t first, uint32_t count = 1) { return {BufferKind::kInput, first, count}; }
inline ChunkSpan Output(uint32_t first, uint32_t count = 1) { return {BufferKind::kOutput, first, count}; }
inline ChunkSpan Scratch(uint32_t first, uint32_t count = 1) { return {BufferKind::kScratch, first, count}; }

inline Step SendTo(uint32_t peer, uint32_t tag, ChunkSpan source) {
  return {StepKind::kSend, peer, tag, source, {}, false};
}
inline Step ReceiveFrom(uint32_t peer, uint32_t tag, ChunkSpan target) {
  return {StepKind::kReceive, peer, tag, {}, target, false};
}
inline Step ReduceFrom(uint32_t peer, uint32_t tag, ChunkSpan source, ChunkSpan target, bool final = false) {
  return {StepKind::kReceiveReduce, peer, tag, source, target, final};
}
inline Step CopyTo(ChunkSpan source, ChunkSpan target) { return {StepKind::kCopy, 0, 0, source, target, false}; }

// n chunks; 2 (n - 1) sends of one chunk each.
inline Program RingAllReduce(uint32_t rank, uint32_t n) {
  Program program{rank, n, n, n, 0, {}, {}};
  auto& steps = program.steps;
  if (n == 1) steps.push_back(CopyTo(Input(0), Output(0)));
  const uint32_t next = (rank + 1) % n, before = (rank + n - 1) % n;
  for (uint32_t s = 0; s + 1 < n; ++s) {
    const uint32_t out = (rank + n - s) % n, in = (rank + 2 * n - s - 1) % n;
    steps.push_back(SendTo(next, s, s == 0 ? Input(out) : Output(out)));
    steps.push_back(ReduceFrom(before, s, Input(in), Output(in), s + 2 == n));
  }
  for (uint32_t s = 0; s + 1 < n; ++s) {
    steps.push_back(SendTo(next, n + s, Output((rank + 1 + n - s) % n)));
    steps.push_back(ReceiveFrom(before, n + s, Output((rank + n - s) % n)));
  }
  return program;
}

// n a power of two; one chunk, log2(n) sends of all of it. What is reduced must wait until it was sent.
inline Program DoublingAllReduce(uint32_t rank, uint32_t n) {
  Program program{rank, n, 1, 1, 0, {CopyTo(Input(0), Output(0))}, {}};
  for (uint32_t bit = 1; bit < n; bit *= 2) {
    program.steps.push_back(SendTo(rank ^ bit, bit, Output(0)));
    program.steps.push_back(ReduceFrom(rank ^ bit, bit, Output(0), Output(0), bit * 2 >= n));
  }
  return program;
}

// n a power of two; n chunks, in spans that halve and then double.
inline Program HalvingAllReduce(uint32_t rank, uint32_t n) {
  Program program{rank, n, n, n, 0, {CopyTo(Input(0, n), Output(0, n))}, {}};
  uint32_t first = 0, count = n;
  std::vector<ChunkSpan> kept;
  for (uint32_t bit = n / 2; bit > 0; bit /= 2) {
    count /= 2;
    const uint32_t mine = (rank & bit) ? first + count : first, theirs = (rank & bit) ? first : first + count;
    program.steps.push_back(SendTo(rank ^ bit, bit, Output(theirs, count)));
    program.steps.push_back(ReduceFrom(rank ^ bit, bit, Output(mine, count), Output(mine, count), bit == 1));
    kept.push_back(Output(theirs, count));
    first = mine;
  }
  for (uint32_t bit = 1; bit < n; bit *= 2) {
    const ChunkSpan theirs = kept.back();
    kept.pop_back();
    program.steps.push_back(SendTo(rank ^ bit, n + bit, Output(first, count)));
    program.steps.push_back(ReceiveFrom(rank ^ bit, n + bit, theirs));
    first = std::min(first, theirs.first);
    count *= 2;
  }
  return program;
}

// Through scratch at every rank but the first and last: a chain that forwards while it receives.
inline Program ChainBroadcast(uint32_t rank, uint32_t n) {
  Program program{rank, n, 1, 1, 1, {}, {}};
  if (rank == 0) program.steps.push_back(CopyTo(Input(0), Output(0)));
  if (rank > 0) program.steps.push_back(ReceiveFrom(rank - 1, 0, Scratch(0)));
  if (rank + 1 < n) program.steps.push_back(SendTo(rank + 1, 0, rank == 0 ? Output(0) : Scratch(0)));
  if (rank > 0) program.steps.push_back(CopyTo(Scratch(0), Output(0)));
  return program;
}

inline Program AllToAll(uint32_t rank, uint32_t n) {
  Program program{rank, n, n, n, 0, {CopyTo(Input(rank), Output(rank))}, {}};
  for (uint32_t d = 1; d < n; ++d) {
    program.steps.push_back(SendTo((rank + d) % n, 0, Input((rank + d) % n)));
    program.steps.push_back(ReceiveFrom((rank + n - d) % n, 0, Output((rank + n - d) % n)));
  }
  return program;
}

// Dissemination: empty messages, whose order is all that matters.
inline Program Barrier(uint32_t rank, uint32_t n) {
  Program program{rank, n, 0, 1, 0, {}, {}};
  for (uint32_t hop = 1; hop < n; hop *= 2) {
    program.steps.push_back(SendTo((rank + hop) % n, hop, Output(0)));
    program.steps.push_back(ReceiveFrom((rank + n - hop) % n, hop, Output(0)));
  }
  return program;
}

// Chunks of so many elements each, one behind the other.
inline std::vector<Chunk> Lay(const std::vector<uint64_t>& counts, uint64_t element) {
  std::vector<Chunk> chunks;
  int64_t offset = 0;
  for (const uint64_t count : counts) {
    chunks.push_back({offset, count * element});
    offset += static_cast<int64_t>(count * element);
  }
  return chunks;
}

// `count` elements in n even pieces, as far as they are.
inline std::vector<uint64_t> Cut(uint64_t count, uint32_t n) {
  std::vector<uint64_t> counts;
  for (uint32_t i = 0; i < n; ++i) counts.push_back(count * (i + 1) / n - count * i / n);
  return counts;
}

inline std::vector<uint32_t> WorldRanks(uint32_t n) {
  std::vector<uint32_t> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace byteps_like::testing
