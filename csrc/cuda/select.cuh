// Which elements are largest: compression/sparse/select.cc. Exactly, by radix selection on magnitudes (fp32 without their sign
// bit): 11, 10 and 10 bits a pass. Or about, by a threshold from a strided sample, tried at most ten times and then
// given up for the exact one. What comes out is a bound: elements above it are selected, and of those equal to it the
// first `ties`; sparse.cu has the kernels, and takes them from there.
//
// Floor, in bytes of x per element: 12 exactly (3 passes of 4), 4 by a sample that tells well (one try, 16-byte loads,
// and a 32-byte sector of x for each hundredth element). Counts are integers: any order of atomics gives the same.
#pragma once

#include "device.cuh"

namespace {

constexpr u32 kThreads = 256;
constexpr u32 kBins = 2048;  // of the widest digit
constexpr u32 kMagnitude = 0x7FFFFFFF, kMagnitudeBits = 31;
constexpr u32 kTries = 10;

enum Stage : u32 { kByDigits = 0, kTrying = 1, kSettled = 2 };

// In the workspace; the recipes know of the first two words.
struct Selection {
  u32 bound, ties;
  u32 stage;
  u32 ticket;   // of blocks that are done
  u32 found;    // by this try
  u32 attempt;  // this one
  u32 rank;     // in the sample, of the element that gave the bound
};

// True in the last block of a grid to come here: it sees what the others have written. `ticket` is 0 again.
DEVICE bool IsLastBlock(u32* ticket) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    if (is_last) *ticket = 0;
    __threadfence();
  }
  __syncthreads();
  return is_last;
}

// Calls visit(magnitude) for all of x, in any order, and for zeros behind its end, which nobody counts.
template <typename Visit>
DEVICE void EachOf(const u32* x, u32 count, u64 thread, u64 threads, const Visit& visit) {
  for (u64 i = 4 * thread; i < count; i += 4 * threads) {
    const auto values = Load<4>(x, i, count);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) visit(values.at[j] & kMagnitude);
  }
}

// Counts the digits of elements that begin as `begin` does. Nothing is ever counted in bin 0: gradients are full of
// zeros, which would all go there one after another, and it is what is left over anyway.
DEVICE void CountDigit(u32* bins, u32 magnitude, u32 begin, u32 shift, u32 bits) {
  const u32 digit = magnitude >> shift & ((1u << bits) - 1);
  if (digit != 0 && magnitude >> (shift + bits) == begin >> (shift + bits)) atomicAdd(bins + digit, 1u);
}

// The digit of the k-th largest, from the top, and of those that have it, which one it is. All threads of a block.
struct Digit {
  u32 digit, rest;
};

DEVICE Digit PickDigit(const u32* bins, u32 bits, u32 k) {
  __shared__ u32 sums[kWarp];
  __shared__ Digit picked;
  const u32 each = (1u << bits) / kThreads, top = (1u << bits) - 1 - threadIdx.x * each;
  u32 sum = 0;
  for (u32 j = 0; j < each; ++j) sum += bins[top - j];
  u32 all;
  const u32 before = BlockSumBefore(sum, sums, &all);
  if (before < k && (k - before <= sum || threadIdx.x == kThreads - 1)) {
    u32 digit = top, rest = k - before;
    for (; digit > top + 1 - each && bins[digit] < rest; --digit) rest -= bins[digit];
    picked = {digit, rest};
  }
  __syncthreads();
  return picked;
}

// The k-th largest magnitude of a sample, by one block.
DEVICE u32 KthMagnitude(const u32* sample, u32 count, u32 k) {
  __shared__ u32 bins[kBins];
  u32 found = 0, shift = kMagnitudeBits;
  for (u32 bits = 11; shift != 0; bits = 10) {
    shift -= bits;
    for (u32 bin = threadIdx.x; bin < kBins; bin += kThreads) bins[bin] = 0;
    __syncthreads();
    EachOf(sample, count, threadIdx.x, kThreads,
           [&](u32 magnitude) { CountDigit(bins, magnitude, found, shift, bits); });
    __syncthreads();
    const Digit picked = PickDigit(bins, bits, k);
    found |= picked.digit << shift;
    k = picked.rest;
  }
  return found;
}

// The bound of the next try: the element of the sample that has this rank. Zeros are never above it.
DEVICE void Aim(const u32* sample, u32 count, Selection* selection) {
  const u32 least = KthMagnitude(sample, count, selection->rank);
  if (threadIdx.x == 0) selection->bound = least == 0 ? 0 : least - 1;
}

// After a try for about k, which found so many: what comes next.
DEVICE void Judge(u32 k, u32 sampled, u32 found, Selection* selection) {
  const bool all = selection->bound == 0, enough = 10ull * found >= 8ull * k || all;
  selection->found = 0;
  if (enough && 10ull * found <= 13ull * k) {
    selection->ties = 0;
    selection->stage = kSettled;
    return;
  }
  const u64 rank = selection->rank, next = rank * k / (found == 0 ? 1 : found);
  const u64 other = next == rank ? (enough ? rank - 1 : rank + 1) : next == 0 ? 1 : next;
  selection->rank = static_cast<u32>(other);
  if (!all && other != 0 && other <= sampled && ++selection->attempt < kTries) return;
  selection->bound = 0;
  selection->stage = kByDigits;
}

}  // namespace
