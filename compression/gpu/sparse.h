// The shared part of the recipes of sparse codecs: launches of csrc/cuda/sparse.cu, and the base of lossless codecs.
#pragma once

#include <cstddef>

#include "compression/gpu/launches.h"
#include "csrc/gpu/codec.h"
#include "csrc/gpu/kernel_table.h"

namespace byteps_like {

inline constexpr uint32_t kInHead = 0xFFFFFFFF;     // in place of a count: the payload's first word
inline constexpr uint32_t kAnyNumber = 0xFFFFFFFF;  // of elements: no bound
inline constexpr DevicePointer kNowhere = 0;
inline constexpr DevicePointer kAllButZeros = 0;  // in place of a selection

inline DevicePointer BytesOf(const GpuRound& round) { return round.report + offsetof(GpuReport, bytes); }
inline DevicePointer CorruptOf(const GpuRound& round) { return round.report + offsetof(GpuReport, corrupt); }

// Twins of codecs that send all there is: how much, only the device knows, and nothing is left of it.
class GpuLossless : public GpuCodec {
 public:
  using GpuCodec::GpuCodec;
  bool varies() const override { return true; }
  Status Residual(Launcher& launcher, const GpuRound& round, DevicePointer, DevicePointer residual) const override {
    return launcher.Fill(residual, 0, size_t{round.numel} * sizeof(float));
  }
};

// Which elements of an array are the largest, as compression/sparse/select.h has it.
class GpuSelect {
 public:
  struct Room {
    Room(Area& area, uint32_t numel, bool sampled);
    DevicePointer selection, bins, sample;
  };

  explicit GpuSelect(KernelsOf& kernel);
  // The k largest; the selection then says which.
  void Largest(Launches& launches, DevicePointer x, uint32_t numel, uint32_t k, const Room& room) const;
  void About(Launches& launches, DevicePointer x, uint32_t numel, uint32_t k, const Room& room) const;

 private:
  void Digits(Launches& launches, DevicePointer x, uint32_t numel, const Room& room) const;

  const KernelHandle begin_, sample_, try_, digit_;
};

// Elements taken out of an array in their order, in three steps: Mark or Count, Offset, Emit.
class GpuCompact {
 public:
  struct Room {
    Room(Area& area, uint32_t numel);
    DevicePointer mask, above, equal, total;
  };
  enum class What { kIndices, kValues, kBoth };

  explicit GpuCompact(KernelsOf& kernel);
  // Bits of what a selection has.
  void Mark(Launches& launches, DevicePointer x, uint32_t numel, DevicePointer selection, const Room& room) const;
  // Of a mask that is elsewhere.
  void Count(Launches& launches, DevicePointer mask, uint32_t numel, const Room& room) const;
  // More than `most` become all. `each`: bytes of the payload per element; `head` and `bytes` get what is to be there,
  // unless they are kNowhere.
  struct Sizes {
    uint32_t most = kAnyNumber, each = 8;
    DevicePointer head = kNowhere, bytes = kNowhere;
  };
  void Offset(Launches& launches, uint32_t numel, DevicePointer selection, const Sizes& sizes, const Room& room) const;
  void Emit(Launches& launches, DevicePointer x, uint32_t numel, DevicePointer selection, const Room& room, What what,
            DevicePointer out) const;

 private:
  const KernelHandle mark_, count_, offsets_, emit_;
};

// Payloads of indices and values, `known` of them or kInHead.
class GpuScatter {
 public:
  explicit GpuScatter(KernelsOf& kernel) : clear_(kernel("sparse_clear")), scatter_(kernel("sparse_scatter")) {}
  // out += factor * what a payload of at most `most` elements says that is known to be right.
  void Add(Launches& launches, DevicePointer payload, uint32_t known, uint32_t most, float factor,
           DevicePointer out) const;
  // round.x = factor * what a result of `bytes` bytes says, at most `most` elements; kAnyNumber: or all.
  void Decode(Launches& launches, const GpuRound& round, DevicePointer result, uint32_t bytes, uint32_t known,
              uint32_t most, float factor) const;

 private:
  const KernelHandle clear_, scatter_;
};

}  // namespace byteps_like
