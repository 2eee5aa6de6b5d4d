// Elements picked out of x, in their order, and put back: compression/sparse/coo.cc, bitmap.cc, and what is left of topk.cc
// when select.cuh has said what is large. Compaction goes in three steps: sparse_mark leaves a bit per element and two
// counts per tile of 1024, sparse_offsets makes offsets of the counts, sparse_emit writes each tile to its own place.
// The order is that of the elements, whatever the order of blocks.
//
// Floor, in bytes per element: mark 4 + 1/8; emit 1/8, 4 of x and 8 of the payload per element that is picked (where
// they are few, 32 of x: a sector); scatter the same backwards, after 4 to clear. A warp has a whole tile of 4 KiB in
// flight, as 32 loads of 128 bytes: loads of 16 bytes per thread would bring no more, and a word of bits, which now
// falls out of one ballot, would have to be put together. Spread stores 16 bytes per thread.
// Offsets are the work of one block: 12 bytes per tile, eight rows of loads in flight in each of its 32 warps.
#include "chunks.cuh"
#include "select.cuh"

namespace {

constexpr u32 kTile = 1024;          // elements of a warp
constexpr u32 kAtOnce = 16;          // rows of a tile that are picked from at a time
constexpr u32 kQuads = 128;          // elements of a row of which a lane has 4 side by side
constexpr u32 kRowsAtOnce = 4;       // such rows whose loads are in flight
constexpr u32 kWhole = 0xFFFFFFFF;   // in place of a count: all elements follow
constexpr u32 kInHead = 0xFFFFFFFF;  // in place of a count: the payload's first word
constexpr u32 kBeyond = 0xFFFFFFFF;  // no magnitude

DEVICE u32 Below() { return (1u << LaneOf()) - 1; }
DEVICE u32 WarpOfGrid() { return static_cast<u32>(FirstIndex() / kWarp); }
DEVICE u32 WarpsOfGrid() { return static_cast<u32>(IndexStride() / kWarp); }
DEVICE u32 TilesOf(u32 numel) { return numel / kTile + (numel % kTile != 0); }
DEVICE u32 Min(u32 a, u32 b) { return a < b ? a : b; }

// What a selection found, or all but zeros.
struct Wanted {
  u32 bound, ties;
};
DEVICE Wanted WantedBy(const u32* selection) {
  return selection == nullptr ? Wanted{0, 0} : Wanted{selection[0], selection[1]};
}

// The bits of 32 elements, of which a lane has one word; what is beyond the end doesn't count.
DEVICE u32 WordOf(const u32* mask, u32 tile, u32 numel) {
  const u32 begin = tile * kTile + 32 * LaneOf();
  if (begin >= numel) return 0;
  return mask[begin / 32] & (numel - begin >= 32 ? kAllLanes : (1u << (numel - begin)) - 1);
}

// Counts become the sums of those before them; returns the sum of all. One block.
DEVICE u32 Offsets(u32* counts, u32 count) {
  __shared__ u32 sums[kWarp];
  return BlockOffsets([&](u32 i) { return Load<4>(counts, i, count); }, count, counts, sums);
}

// Of a row of 32 elements those which are equal to the bound and come after `most` others that are; `tied` counts them.
DEVICE u32 Surplus(u32 word, bool is_bound, u32 most, u32* tied) {
  const bool tie = (word >> LaneOf() & 1) != 0 && is_bound;
  const u32 ties = __ballot_sync(kAllLanes, tie);
  const u32 surplus = __ballot_sync(kAllLanes, tie && *tied + __popc(ties & Below()) >= most);
  *tied += __popc(ties);
  return surplus;
}

// A payload of indices and values: `known` of them, or kInHead.
struct Picked {
  u32 count;
  bool whole;
  const u32* indices;
  const float* values;
};
DEVICE Picked PickedIn(const u32* payload, u32 known) {
  const bool headed = known == kInHead;
  const u32 count = headed ? payload[0] : known;
  const bool whole = headed && count == kWhole;
  const u32* const indices = payload + (headed ? 1 : 0);
  return {count, whole, indices, reinterpret_cast<const float*>(indices + (whole ? 0 : count))};
}

}  // namespace

// First of all, in one block. `rank`: of the first try's bound in the sample; 0: no tries.
KERNEL(256) sparse_begin(Selection* selection, u32* bins, u32 k, u32 rank) {
  for (u32 bin = threadIdx.x; bin < kBins; bin += kThreads) bins[bin] = 0;
  if (threadIdx.x == 0) *selection = {0, k, rank == 0 ? kByDigits : kTrying, 0, 0, 0, rank};
}

// Every `stride`-th element of x; of them the first bound.
KERNEL(256) sparse_sample(const u32* x, u32 stride, u32 count, u32* sample, Selection* selection) {
  for (u64 i = FirstIndex(); i < count; i += IndexStride()) sample[i] = x[i * stride];
  if (IsLastBlock(&selection->ticket)) Aim(sample, count, selection);
}

// One of the ten tries, of which mostly the first is good: the rest end at once.
KERNEL(256) sparse_try(const u32* x, u32 numel, u32 k, const u32* sample, u32 sampled, Selection* selection) {
  if (selection->stage != kTrying) return;
  const u32 bound = selection->bound;
  u32 found = 0;
  EachOf(x, numel, FirstIndex(), IndexStride(), [&](u32 magnitude) { found += magnitude > bound; });
  found = WarpSum(found);
  if (LaneOf() == 0 && found != 0) atomicAdd(&selection->found, found);
  if (!IsLastBlock(&selection->ticket)) return;
  if (threadIdx.x == 0) Judge(k, sampled, selection->found, selection);
  __syncthreads();
  if (selection->stage == kTrying) Aim(sample, sampled, selection);
}

// The next digit of the bound, from bit `shift` on; to be called with (20, 11), (10, 10), (0, 10).
KERNEL(256) sparse_digit(const u32* x, u32 numel, u32 shift, u32 bits, u32* bins, Selection* selection) {
  __shared__ u32 own[kBins];
  if (selection->stage != kByDigits) return;
  for (u32 bin = threadIdx.x; bin < kBins; bin += kThreads) own[bin] = 0;
  __syncthreads();
  const u32 begin = selection->bound;
  EachOf(x, numel, FirstIndex(), IndexStride(), [&](u32 magnitude) { CountDigit(own, magnitude, begin, shift, bits); });
  __syncthreads();
  for (u32 bin = threadIdx.x; bin < kBins; bin += kThreads)
    if (own[bin] != 0) atomicAdd(bins + bin, own[bin]);
  if (!IsLastBlock(&selection->ticket)) return;
  const Digit picked = PickDigit(bins, bits, selection->ties);
  for (u32 bin = threadIdx.x; bin < kBins; bin += kThreads) bins[bin] = 0;
  if (threadIdx.x != 0) return;
  selection->bound = begin | picked.digit << shift;
  selection->ties = picked.rest;
}

// Bits of what is wanted (`mask`: words for numel, the spare bits 0) and, unless `above` is null, how many of each tile
// are above the bound and how many equal to it.
KERNEL(256) sparse_mark(const u32* x, u32 numel, const u32* selection, u32* mask, u32* above, u32* equal) {
  const Wanted wanted = WantedBy(selection);
  const u32 words = numel / 32 + (numel % 32 != 0);
  for (u32 tile = WarpOfGrid(); tile < TilesOf(numel); tile += WarpsOfGrid()) {
    const u32 first = tile * kTile + LaneOf();
    u32 values[32];
#pragma unroll
    for (u32 i = 0; i < 32; ++i) values[i] = first + 32 * i < numel ? x[first + 32 * i] & kMagnitude : kBeyond;
    u32 own = 0, marked = 0, tied = 0;
#pragma unroll
    for (u32 i = 0; i < 32; ++i) {
      const bool tie = wanted.ties != 0 && values[i] == wanted.bound;
      const u32 word = __ballot_sync(kAllLanes, tie || (values[i] > wanted.bound && values[i] != kBeyond));
      if (wanted.ties != 0) tied += __popc(__ballot_sync(kAllLanes, tie));
      if (LaneOf() == i) own = word;
      marked += __popc(word);
    }
    if (tile * 32 + LaneOf() < words) mask[tile * 32 + LaneOf()] = own;
    if (LaneOf() != 0 || above == nullptr) continue;
    above[tile] = marked - tied;
    equal[tile] = tied;
  }
}

// How many bits of each tile are set in a mask that came from elsewhere: four tiles a warp, eight lanes each.
KERNEL(256) sparse_count(const u32* mask, u32 numel, u32* above, u32* equal) {
  const u32 words = numel / 32 + (numel % 32 != 0), spare = 32 * words - numel;
  for (u64 first = 4 * (FirstIndex() - LaneOf()); first < words; first += 4 * IndexStride()) {
    const u32 i = static_cast<u32>(min(first + 4 * LaneOf(), static_cast<u64>(words)));
    const auto four = Load<4>(mask, i, words);
    u32 count = 0;
#pragma unroll
    for (u32 j = 0; j < 4; ++j) count += __popc(i + j + 1 == words ? four.at[j] << spare : four.at[j]);
#pragma unroll
    for (u32 step = 1; step < 8; step *= 2) count += __shfl_xor_sync(kAllLanes, count, step);
    if (LaneOf() % 8 != 0 || i >= words) continue;
    above[i / 32] = count;
    equal[i / 32] = 0;
  }
}

// One block. `total`: how many are picked, or kWhole if they are more than `most`. `head`, unless it is null, gets the
// same, and `size` the bytes of the payload, with `each` per element; there is one word at least.
KERNEL(1024) sparse_offsets(u32 numel, const u32* selection, u32 most, u32 each, u32* above, u32* equal, u32* total,
                            u32* head, u32* size) {
  const u32 ties = WantedBy(selection).ties, sure = Offsets(above, TilesOf(numel));
  const u32 tied = ties != 0 ? Offsets(equal, TilesOf(numel)) : 0;  // none is wanted: all counts are 0
  if (threadIdx.x != 0) return;
  const u32 picked = sure + Min(tied, ties);
  *total = picked > most ? kWhole : picked;
  if (head != nullptr) *head = *total;
  if (size == nullptr) return;
  const u32 bytes = (head != nullptr ? 4 : 0) + (picked > most ? 4 * numel : each * picked);
  *size = bytes == 0 ? 4 : bytes;
}

// The elements that are picked, in order: their indices, their values, or both, values behind all indices. Where total
// is kWhole: all of x.
KERNEL(256) sparse_emit(const u32* x, u32 numel, const u32* selection, const u32* mask, const u32* above,
                        const u32* equal, const u32* total, u32 with_indices, u32 with_values, u32* out) {
  const Wanted wanted = WantedBy(selection);
  const bool whole = *total == kWhole;
  u32* const indices = with_indices ? out : nullptr;
  u32* const values = with_indices ? out + *total : out;
  for (u32 tile = WarpOfGrid(); tile < TilesOf(numel); tile += WarpsOfGrid()) {
    const u32 first = tile * kTile + LaneOf();
    if (whole) {
#pragma unroll 8
      for (u32 i = 0; i < 32; ++i)
        if (first + 32 * i < numel) out[first + 32 * i] = x[first + 32 * i];
      continue;
    }
    const u32 own = WordOf(mask, tile, numel);
    if (__ballot_sync(kAllLanes, own != 0) == 0) continue;
    u32 tied = equal[tile], to = above[tile] + Min(tied, wanted.ties);
    for (u32 half = 0; half < 32; half += kAtOnce) {
      u32 picked[kAtOnce];
#pragma unroll
      for (u32 i = 0; i < kAtOnce; ++i) {
        const u32 word = __shfl_sync(kAllLanes, own, half + i);
        picked[i] = (word >> LaneOf() & 1) != 0 ? x[first + 32 * (half + i)] : 0;
      }
#pragma unroll
      for (u32 i = 0; i < kAtOnce; ++i) {
        u32 word = __shfl_sync(kAllLanes, own, half + i);
        if (word == 0) continue;
        if (wanted.ties != 0) word &= ~Surplus(word, (picked[i] & kMagnitude) == wanted.bound, wanted.ties, &tied);
        if ((word >> LaneOf() & 1) != 0) {
          const u32 at = to + __popc(word & Below());
          if (with_indices) indices[at] = first + 32 * (half + i);
          if (with_values) values[at] = picked[i];
        }
        to += __popc(word);
      }
    }
  }
}

// Of a payload of `bytes` bytes: sets `fault` if it can't be one, of at most `most` elements (kWhole: of all). Else
// `out` becomes what it says where it is whole, and zeros where it isn't, for sparse_scatter.
KERNEL(256) sparse_clear(const u32* payload, u32 bytes, u32 known, u32 most, u32 numel, float factor, float* out,
                         u32* fault) {
  const Picked picked = PickedIn(payload, known);
  const u64 head = known == kInHead ? 4 : 0;
  const bool fits = picked.whole ? most == kWhole && bytes == head + 4ull * numel
                                 : picked.count <= Min(most, numel) && bytes == head + 8ull * picked.count;
  if (!fits) {
    if (FirstIndex() == 0) *fault = 1;
    return;
  }
  if (picked.whole) {
    for (u64 i = FirstIndex(); i < numel; i += IndexStride()) out[i] = 0.0f + factor * picked.values[i];
    return;
  }
  for (u64 i = 4 * FirstIndex(); i < numel; i += 4 * IndexStride()) Store(out, i, numel, Values<float, 4>{});
  for (u64 i = FirstIndex(); i < picked.count; i += IndexStride()) {
    const u32 index = picked.indices[i];
    if (index >= numel || (i != 0 && picked.indices[i - 1] >= index)) *fault = 1;
  }
}

// out[index] = (what is there) + factor * value, of a payload that is right.
KERNEL(256) sparse_scatter(const u32* payload, u32 known, float factor, float* out, const u32* fault) {
  const Picked picked = PickedIn(payload, known);
  if (picked.whole || (fault != nullptr && *fault != 0)) return;
  for (u64 i = FirstIndex(); i < picked.count; i += IndexStride()) out[picked.indices[i]] += factor * picked.values[i];
}

// What a mask of bits says, with the values in order: out[i] = 0 + factor * (the next value) where the bit is set, else
// 0. `offsets`: the values before each tile. `fault` is set if `bytes` bytes of values aren't as many as the bits.
KERNEL(256) sparse_spread(const u32* mask, u32 numel, const u32* offsets, const u32* total, const float* values,
                          u32 bytes, float factor, float* out, u32* fault) {
  if (bytes != 4 * (*total == 0 ? 1 : *total)) {
    if (FirstIndex() == 0) *fault = 1;
    return;
  }
  for (u32 tile = WarpOfGrid(); tile < TilesOf(numel); tile += WarpsOfGrid()) {
    const u32 own = WordOf(mask, tile, numel), before = offsets[tile] + WarpSumBefore(__popc(own));
    const u32 shift = 4 * (LaneOf() % 8);
    const u64 first = static_cast<u64>(tile) * kTile + 4 * LaneOf();
#pragma unroll
    for (u32 row = 0; row < kTile / kQuads; row += kRowsAtOnce) {
      Values<float, 4> rows[kRowsAtOnce] = {};
      u32 fours[kRowsAtOnce];
#pragma unroll
      for (u32 r = 0; r < kRowsAtOnce; ++r) {
        const i32 lane = static_cast<i32>(4 * (row + r) + LaneOf() / 8);
        const u32 word = __shfl_sync(kAllLanes, own, lane);
        u32 from = __shfl_sync(kAllLanes, before, lane) + __popc(word & ((1u << shift) - 1));
        fours[r] = word >> shift & 15;
        if (fours[r] == 0) continue;
#pragma unroll
        for (u32 j = 0; j < 4; ++j)
          if ((fours[r] >> j & 1) != 0) rows[r].at[j] = values[from++];
      }
#pragma unroll
      for (u32 r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
        for (u32 j = 0; j < 4; ++j)
          if ((fours[r] >> j & 1) != 0) rows[r].at[j] = 0.0f + factor * rows[r].at[j];
        Store(out, first + (row + r) * kQuads, numel, rows[r]);
      }
    }
  }
}

KERNEL(256) sparse_norms(const float* x, u32 numel, u32 chunk, u32 chunks, float* norms) {
  __shared__ double lanes[kThreads];
  const u32 lane = threadIdx.x % kSumLanes, step = static_cast<u32>(IndexStride()) / kSumLanes;
  const u32 first = static_cast<u32>(FirstIndex()) / kSumLanes;
  for (u32 turn = 0; turn < chunks; turn += step) {  // the same number of turns for all: they exchange lanes
    const bool is_one = first < chunks - turn;
    const u32 begin = is_one ? (turn + first) * chunk : 0;
    const u32 length = is_one ? Min(chunk, numel - begin) : 0;
    double own = 0;
#pragma unroll 16
    for (u32 i = lane; i < length; i += kSumLanes) {
      const double value = x[begin + i];
      own += value * value;
    }
    lanes[threadIdx.x] = own;
    __syncwarp();
    if (is_one && lane == 0) {
      double sum = 0;
      for (u32 i = 0; i < kSumLanes; ++i) sum += lanes[threadIdx.x + i];
      norms[turn + first] = static_cast<float>(sqrt(sum));
    }
    __syncwarp();
  }
}

// Rows of the payload; what is beyond the last chunk is zero.
KERNEL(256) sparse_gather_chunks(const float* x, u32 numel, const u32* chunks, u32 rows, u32 chunk, u32 width,
                                 float* payload) {
  EachInRows(chunks, rows, chunk, width, numel, [&](u32 i, u32 at) { payload[i] = at < numel ? x[at] : 0.0f; });
}

// Rows to where their chunks are, of a partition that is zero elsewhere; without rows: zeros.
KERNEL(256) sparse_scatter_chunks(const float* payload, const u32* chunks, u32 rows, u32 chunk, u32 width, float factor,
                                  float* out, u32 numel) {
  EachInRows(chunks, rows, chunk, width, numel, [&](u32 i, u32 at) {
    if (at < numel) out[at] = payload == nullptr ? 0.0f : 0.0f + factor * payload[i];
  });
}
