#include "csrc/engine/engine_context.h"

#include <algorithm>
#include <utility>

#include "csrc/base/trace.h"

namespace byteps_like {
namespace {

constexpr size_t kSegmentStep = 64;  // a segment never splits an element, and keeps to cache lines

size_t Fitting(size_t segment) {
  return std::clamp<size_t>(segment / kSegmentStep * kSegmentStep, kSegmentStep, kMaxPayload);
}

}  // namespace

EngineContext::EngineContext(EngineOptions with, EventLoop& on)
    : options(std::move(with)),
      now(options.standing),
      credit_bytes(options.credit_bytes),
      segment_bytes(Fitting(options.segment_bytes)),
      loop(on) {}

std::string EngineContext::name() const {
  return (options.role == Role::kServer ? "server " : "rank ") + std::to_string(standing().rank);
}

uint32_t EngineContext::traced() const {
  return options.role == Role::kServer ? kTraceServers + standing().rank : standing().rank;
}

void EngineContext::SetSegment(size_t bytes) { segment_bytes = Fitting(bytes); }

}  // namespace byteps_like
