#include "compression/gpu/sparse.h"

#include <algorithm>

#include "compression/sparse/select.h"
#include "compression/sparse/sparse.h"

namespace byteps_like {
namespace {

constexpr uint32_t kSelectionWords = 16, kBins = 2048;  // csrc/cuda/select.cuh
constexpr uint32_t kSparseTile = 1024;                  // csrc/cuda/sparse.cu: elements of a warp,
constexpr uint32_t kOfLane = kSparseTile / 32;          // and of each of its threads
constexpr uint32_t kTries = 10;

uint32_t SampleSize(uint32_t numel) { return Rounded(numel, static_cast<uint32_t>(SampleStride(numel))); }

// Each block counts in bins of its own and adds them to the others': not too many blocks.
LaunchShape ShapeOfCounts(uint32_t numel) {
  LaunchShape shape = ShapeFor(numel, 16, kBlockThreads);
  shape.blocks = std::min(shape.blocks, 1024u);
  return shape;
}

}  // namespace

GpuSelect::Room::Room(Area& area, uint32_t numel, bool sampled)
    : selection(area.Words(kSelectionWords)),
      bins(area.Words(kBins)),
      sample(area.Words(sampled ? SampleSize(numel) : 0)) {}

GpuSelect::GpuSelect(KernelsOf& kernel)
    : begin_(kernel("sparse_begin")),
      sample_(kernel("sparse_sample")),
      try_(kernel("sparse_try")),
      digit_(kernel("sparse_digit")) {}

void GpuSelect::Largest(Launches& launches, DevicePointer x, uint32_t numel, uint32_t k, const Room& room) const {
  launches.With(kOneBlock, begin_, room.selection, room.bins, k, uint32_t{0});
  Digits(launches, x, numel, room);
}

void GpuSelect::About(Launches& launches, DevicePointer x, uint32_t numel, uint32_t k, const Room& room) const {
  const auto stride = static_cast<uint32_t>(SampleStride(numel));
  const uint32_t sampled = SampleSize(numel);
  const auto rank = static_cast<uint32_t>(std::max<uint64_t>(1, uint64_t{k} * sampled / numel));
  launches.With(kOneBlock, begin_, room.selection, room.bins, k, rank)
      .Over(sampled, 4, sample_, x, stride, sampled, room.sample, room.selection);
  for (uint32_t attempt = 0; attempt < kTries; ++attempt)
    launches.With(ShapeOfCounts(numel), try_, x, numel, k, room.sample, sampled, room.selection);
  Digits(launches, x, numel, room);
}

void GpuSelect::Digits(Launches& launches, DevicePointer x, uint32_t numel, const Room& room) const {
  constexpr struct {
    uint32_t shift, bits;
  } kDigits[] = {{20, 11}, {10, 10}, {0, 10}};
  for (const auto& digit : kDigits)
    launches.With(ShapeOfCounts(numel), digit_, x, numel, digit.shift, digit.bits, room.bins, room.selection);
}

GpuCompact::Room::Room(Area& area, uint32_t numel)
    : mask(area.Words(WordsOf(numel))),
      above(area.Words(Rounded(numel, kSparseTile))),
      equal(area.Words(Rounded(numel, kSparseTile))),
      total(area.Words(1)) {}

GpuCompact::GpuCompact(KernelsOf& kernel)
    : mark_(kernel("sparse_mark")),
      count_(kernel("sparse_count")),
      offsets_(kernel("sparse_offsets")),
      emit_(kernel("sparse_emit")) {}

void GpuCompact::Mark(Launches& launches, DevicePointer x, uint32_t numel, DevicePointer selection,
                      const Room& room) const {
  launches.Over(numel, kOfLane, mark_, x, numel, selection, room.mask, room.above, room.equal);
}

void GpuCompact::Count(Launches& launches, DevicePointer mask, uint32_t numel, const Room& room) const {
  launches.Over(numel, 4 * kOfLane, count_, mask, numel, room.above, room.equal);
}

void GpuCompact::Offset(Launches& launches, uint32_t numel, DevicePointer selection, const Sizes& sizes,
                        const Room& room) const {
  launches.With(kLargeBlock, offsets_, numel, selection, sizes.most, sizes.each, room.above, room.equal, room.total,
                sizes.head, sizes.bytes);
}

void GpuCompact::Emit(Launches& launches, DevicePointer x, uint32_t numel, DevicePointer selection, const Room& room,
                      What what, DevicePointer out) const {
  const uint32_t with_indices = what != What::kValues, with_values = what != What::kIndices;
  launches.Over(numel, kOfLane, emit_, x, numel, selection, room.mask, room.above, room.equal, room.total, with_indices,
                with_values, out);
}

void GpuScatter::Add(Launches& launches, DevicePointer payload, uint32_t known, uint32_t most, float factor,
                     DevicePointer out) const {
  launches.Over(most, 1, scatter_, payload, known, factor, out, kNowhere);
}

void GpuScatter::Decode(Launches& launches, const GpuRound& round, DevicePointer result, uint32_t bytes, uint32_t known,
                        uint32_t most, float factor) const {
  launches.Over(round.numel, 4, clear_, result, bytes, known, most, round.numel, factor, round.x, CorruptOf(round))
      .Over(bytes / 8, 1, scatter_, result, known, factor, round.x, CorruptOf(round));
}

}  // namespace byteps_like
