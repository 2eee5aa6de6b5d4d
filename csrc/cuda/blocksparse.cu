// Blocks that aren't all zero, and a bit for each: compression/sparse/blocksparse.cc. blocksparse_scan leaves the bits and how
// many are set in each word, blocksparse_index makes ranks of the counts and decides whether all is sent, and
// blocksparse_gather copies the blocks to their ranks; blocksparse_check and blocksparse_spread go back.
//
// Floor, in bytes per element: scan 4 (1 bit per block beside it), gather 8 and spread 8 per element of a stored block,
// spread 4 per other element. Scan: eight threads a block, 256 a word of the bitmap, eight 16-byte loads each in flight
// at blocks of 256: 32 KiB a thread block, of which one per processor would do for the rate of plain reading. Gather
// and spread look at tiles of 256 elements, and only go through those of which a block is stored.
#include "device.cuh"

namespace {

constexpr u32 kThreads = 256;
constexpr u32 kAtOnce = 8;              // elements of a thread
constexpr u32 kTile = kAtOnce * kWarp;  // of a warp
constexpr u32 kWhole = 0xFFFFFFFF;      // in place of a count: all elements follow
constexpr u32 kNowhere = 0xFFFFFFFF;

DEVICE u32 Min(u32 a, u32 b) { return a < b ? a : b; }
DEVICE u32 WordsOf(u32 bits) { return bits / 32 + (bits % 32 != 0); }

// ranks[word]: how many bits are set before it; returns how many in all. One block.
DEVICE u32 RanksOf(const u32* bits, u32 words, u32* ranks) {
  __shared__ u32 sums[kWarp];
  const auto counts = [&](u32 word) {
    auto four = Load<4>(bits, word, words);
#pragma unroll
    for (u32& value : four.at) value = static_cast<u32>(__popc(value));
    return four;
  };
  return BlockOffsets(counts, words, ranks, sums);
}

// Of a payload with a bitmap that has `stored` blocks.
DEVICE u64 PayloadBytes(const u32* bits, u32 stored, u32 numel, u32 block) {
  const u32 last = (numel - 1) / block, missing = (last + 1ull) * block - numel;
  const bool has_last = (bits[last / 32] >> last % 32 & 1) != 0;
  return 4ull + 4ull * WordsOf(last + 1) + 4ull * (static_cast<u64>(stored) * block - (has_last ? missing : 0));
}

constexpr u32 kParts = 8;  // threads of a data block in a scan

// Whether anything of x isn't zero, as far as one of them sees.
DEVICE bool AnyOf(const u32* x, u32 length) {
  u32 any = 0;
#pragma unroll 8
  for (u32 i = 4 * (threadIdx.x % kParts); i < length; i += 4 * kParts) {
    const auto quad = Load<4>(x, i, length);
    any |= quad.at[0] | quad.at[1] | quad.at[2] | quad.at[3];
  }
  return (any & 0x7FFFFFFF) != 0;
}

// The elements of a tile of a warp, and where each is among the values of the payload;
// kNowhere: its block isn't there, or it is beyond the end. One division at the beginning, one where a block ends.
struct Walk {
  DEVICE Walk(u32 tile, u32 block)
      : element(tile * kTile + LaneOf()), block(block), unit(element / block), in_unit(element % block) {}

  DEVICE u32 Place(const u32* bits, const u32* ranks, u32 numel) const {
    if (element >= numel) return kNowhere;
    if (bits == nullptr) return element;  // all blocks are there
    const u32 word = bits[unit / 32], bit = unit % 32;
    if ((word >> bit & 1) == 0) return kNowhere;
    return (ranks[unit / 32] + __popc(word & ((1u << bit) - 1))) * block + in_unit;
  }

  DEVICE void Step() {
    element += kWarp;
    in_unit += kWarp;
    if (in_unit < block) return;
    unit += in_unit / block;
    in_unit %= block;
  }

  u32 element;
  const u32 block;
  u32 unit, in_unit;
};

// Whether a warp's tile has anything of a block that is stored; `bits`: null if all are.
DEVICE bool HasStored(const u32* bits, u32 tile, u32 block, u32 numel) {
  if (bits == nullptr) return true;
  const u32 first = tile * kTile / block, last = (Min(tile * kTile + (kTile - 1), numel - 1)) / block;
  const u32 word = first / 32 + LaneOf();  // a tile has at most kTile blocks: 9 words
  u32 own = word <= last / 32 ? bits[word] : 0;
  if (word == first / 32) own &= kAllLanes << first % 32;
  if (word == last / 32) own &= kAllLanes >> (31 - last % 32);
  return __ballot_sync(kAllLanes, own != 0) != 0;
}

DEVICE u32 WarpOfGrid() { return static_cast<u32>(FirstIndex() / kWarp); }
DEVICE u32 WarpsOfGrid() { return static_cast<u32>(IndexStride() / kWarp); }
DEVICE u32 TilesOf(u32 numel) { return numel / kTile + (numel % kTile != 0); }

}  // namespace

// A thread block per word of the bitmap.
KERNEL(256) blocksparse_scan(const u32* x, u32 numel, u32 block, u32* bits) {
  __shared__ u32 parts[kThreads / 32];
  const u32 blocks = (numel - 1) / block + 1, units = kThreads / kParts;
  for (u32 word = blockIdx.x; word < WordsOf(blocks); word += gridDim.x) {
    const u32 unit = word * units + threadIdx.x / kParts;
    const u32 begin = unit < blocks ? unit * block : numel;
    const u32 seen = __ballot_sync(kAllLanes, AnyOf(x + begin, Min(block, numel - begin)));
    if (LaneOf() == 0) {
      u32 some = 0;
      for (u32 i = 0; i < 32 / kParts; ++i) some |= static_cast<u32>((seen >> kParts * i & 0xFF) != 0) << i;
      parts[threadIdx.x / 32] = some << 32 / kParts * (threadIdx.x / 32);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      u32 all = 0;
      for (const u32 part : parts) all |= part;
      bits[word] = all;
    }
    __syncthreads();
  }
}

// One block. `total`: how many are stored, or kWhole if they are more than `most`; the payload's head is the same.
KERNEL(1024) blocksparse_index(u32 numel, u32 block, u32 most, u32* payload, u32* ranks, u32* total, u32* size) {
  const u32* const bits = payload + 1;
  const u32 stored = RanksOf(bits, WordsOf((numel - 1) / block + 1), ranks);
  if (threadIdx.x != 0) return;
  *total = *payload = stored > most ? kWhole : stored;
  *size = static_cast<u32>(stored > most ? 4 + 4ull * numel : PayloadBytes(bits, stored, numel, block));
}

KERNEL(256) blocksparse_gather(const u32* x, u32 numel, u32 block, const u32* ranks, const u32* total, u32* payload) {
  const bool whole = *total == kWhole;
  const u32* const bits = whole ? nullptr : payload + 1;
  u32* const values = payload + 1 + (whole ? 0 : WordsOf((numel - 1) / block + 1));
  for (u32 tile = WarpOfGrid(); tile < TilesOf(numel); tile += WarpsOfGrid()) {
    if (!HasStored(bits, tile, block, numel)) continue;
    Walk walk(tile, block);
    u32 places[kAtOnce], stored[kAtOnce];
#pragma unroll
    for (u32 i = 0; i < kAtOnce; ++i, walk.Step()) {
      places[i] = walk.Place(bits, ranks, numel);
      stored[i] = places[i] != kNowhere ? x[walk.element] : 0;
    }
#pragma unroll
    for (u32 i = 0; i < kAtOnce; ++i)
      if (places[i] != kNowhere) values[places[i]] = stored[i];
  }
}

// One block: `total` as above of a payload of `bytes` bytes; `fault` is set if it can't be one.
KERNEL(1024) blocksparse_check(const u32* payload, u32 bytes, u32 numel, u32 block, u32* ranks, u32* total,
                               u32* fault) {
  const u32 blocks = (numel - 1) / block + 1, words = WordsOf(blocks), head = *payload;
  bool right = head == kWhole ? bytes == 4 + 4ull * numel : bytes >= 4 + 4ull * words;
  if (right && head != kWhole) {
    const u32 stored = RanksOf(payload + 1, words, ranks);
    const u32 beyond = blocks % 32 == 0 ? 0 : payload[words] >> blocks % 32;
    right = stored == head && beyond == 0 && bytes == PayloadBytes(payload + 1, stored, numel, block);
  }
  if (threadIdx.x != 0) return;
  *total = head;
  if (!right) *fault = 1;
}

// out[i] = 0 + factor * value in stored blocks, else 0.
KERNEL(256) blocksparse_spread(const u32* payload, u32 numel, u32 block, const u32* ranks, const u32* total,
                               const u32* fault, float factor, float* out) {
  if (*fault != 0) return;
  const bool whole = *total == kWhole;
  const u32* const bits = whole ? nullptr : payload + 1;
  const u32 index = 1 + (whole ? 0 : WordsOf((numel - 1) / block + 1));
  const float* const values = reinterpret_cast<const float*>(payload + index);
  for (u32 tile = WarpOfGrid(); tile < TilesOf(numel); tile += WarpsOfGrid()) {
    if (!HasStored(bits, tile, block, numel)) {
#pragma unroll
      for (u32 i = 4 * LaneOf(); i < kTile; i += 4 * kWarp)
        Store(out, static_cast<u64>(tile) * kTile + i, numel, Values<float, 4>{});
      continue;
    }
    Walk walk(tile, block);
    const u32 first = walk.element;
    float decoded[kAtOnce];
#pragma unroll
    for (u32 i = 0; i < kAtOnce; ++i, walk.Step()) {
      const u32 place = walk.Place(bits, ranks, numel);
      decoded[i] = place != kNowhere ? 0.0f + factor * values[place] : 0.0f;
    }
#pragma unroll
    for (u32 i = 0; i < kAtOnce; ++i)
      if (first + kWarp * i < numel) out[first + kWarp * i] = decoded[i];
  }
}
