#include "csrc/engine/engine_context.h"

#include <algorithm>
#include <utility>

namespace byteps_like {
namespace {

constexpr size_t kSegmentStep = 64;  // a segment never splits an element, and keeps to cache lines

size_t Fitting(size_t segment) {
  return std::clamp<size_t>(segment / kSegmentStep * kSegmentStep, kSegmentStep, kMaxPayload);
}

}  // namespace

EngineContext::EngineContext(EngineOptions with)
    : options(std::move(with)),
      now(options.standing),
      credit_bytes(options.credit_bytes),
      segment_bytes(Fitting(options.segment_bytes)) {}

void EngineContext::SetSegment(size_t bytes) { segment_bytes = Fitting(bytes); }

}  // namespace byteps_like
