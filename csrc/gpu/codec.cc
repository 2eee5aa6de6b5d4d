#include "csrc/gpu/codec.h"

namespace byteps_like {

Status GpuCodec::Prepare(Launcher&, const GpuRound&, DevicePointer) const { return {}; }

Status GpuCodec::Clamped(Launcher&, const GpuRound&, DevicePointer) const { return {}; }

Status GpuCodec::CheckLength(uint32_t bytes, uint32_t expected) const {
  if (bytes == expected) return {};
  return Status(Code::kCorrupt, twin_->spec() + ": a result of the wrong length");
}

}  // namespace byteps_like
