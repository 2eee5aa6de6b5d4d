// The host's side of a lane: memory and copies of a stage, and the bookkeeping when the device is through with it.
#include <algorithm>
#include <string>

#include "csrc/base/trace.h"
#include "csrc/codec/payload.h"
#include "csrc/engine/staging/lane.h"

namespace byteps_like {
namespace {

constexpr size_t kLaneAlignment = 256;  // of what lies in a lane's memory

constexpr size_t Aligned(size_t bytes) { return (bytes + kLaneAlignment - 1) / kLaneAlignment * kLaneAlignment; }

// The offsets of the parts of a lane's memory; the payload comes first.
struct Layout {
  explicit Layout(const Coding& coding)
      : prelude(Aligned(coding.longest())),
        workspace(prelude + Aligned(coding.plan.prelude)),
        report(workspace + Aligned(coding.twin->Workspace(coding.numel))),
        bytes(report + Aligned(sizeof(GpuReport))) {}
  const size_t prelude, workspace, report, bytes;
};

// The size of the page-locked memory from which a payload is sent, and to which the result comes, if that waits until
// the payload is sent.
uint32_t LongestLanding(const Coding& coding) {
  return coding.head() + (coding.merges() ? coding.plan.payload : coding.longest());
}

}  // namespace

Lane::~Lane() { supplies_.pool.Give(report_); }

// Memory --------------------------------------------------------------------------------------------------------------

// A payload is in the mirror where it fits, which is not known before: the pool has room for the longest.
LaneNeeds::LaneNeeds(const Coding& coding) : scratch(Layout(coding).bytes) {
  if (coding.prelude) pinned.push_back(coding.plan.prelude);
  if (LongestLanding(coding) > coding.part->bytes) pinned.push_back(LongestLanding(coding));
  if (coding.merges()) pinned.push_back(coding.head() + coding.plan.result);
}

GpuRound Lane::RoundOf(const Staging& staging) const {
  const Coding& coding = *staging.part->coding;
  const Layout layout(coding);
  const DevicePointer begin = scratch_;
  return {.x = staging.device,
          .numel = coding.numel,
          .draw = coding.draw,
          .agreed = coding.prelude ? begin + layout.prelude : 0,
          .workspace = begin + layout.workspace,
          .report = begin + layout.report};
}

// Where a payload of so many bytes goes, and the result.
Status Lane::Place(const Staging& staging, uint32_t bytes) {
  Part& part = *staging.part;
  Coding& coding = *part.coding;
  if (bytes > coding.plan.payload)
    return Status(Code::kDevice, "GPU " + std::to_string(supplies_.gpu->info().ordinal) + " made a payload of " +
                                     std::to_string(bytes) + " bytes for key " + std::to_string(part.key) +
                                     ", more than codec " + coding.codec->spec() + " can give");
  const uint32_t both = coding.head() + std::max(bytes, coding.merges() ? 0 : coding.plan.result);
  if (both <= part.bytes) {
    coding.payload = {staging.mirror, both};
  } else {
    auto taken = supplies_.pool.Take(LongestLanding(coding));
    if (!taken.ok()) return taken.status();
    coding.payload = *taken;
  }
  part.address = coding.payload.data;
  if (!coding.merges()) return Status();
  auto result = supplies_.pool.Take(coding.head() + coding.plan.result);
  if (result.ok()) coding.result = *result;
  return result.status();
}

void GiveBack(const Staging& staging, PinnedPool& pool) {
  Coding& coding = *staging.part->coding;
  if (coding.payload.data == staging.mirror) coding.payload = {};
  for (PooledBuffer* const buffer : {&coding.payload, &coding.result, &coding.agreed}) pool.Give(*buffer);
}

// Copies --------------------------------------------------------------------------------------------------------------

Status Lane::Await(const Staging& staging) {
  return staging.start == nullptr ? Status() : staging.start->event->Block(stream_->handle());
}

Status Lane::CopyDown(std::byte* to, DevicePointer from, size_t bytes) {
  const Gpu& gpu = *supplies_.gpu;
  Status status = gpu.Check(gpu.api().MemcpyDown(to, from, bytes, stream_->handle()), "cuMemcpyDtoHAsync");
  if (status.ok()) supplies_.down += bytes;
  return status;
}

Status Lane::CopyUp(DevicePointer to, const std::byte* from, size_t bytes) {
  const Gpu& gpu = *supplies_.gpu;
  Status status = gpu.Check(gpu.api().MemcpyUp(to, from, bytes, stream_->handle()), "cuMemcpyHtoDAsync");
  if (status.ok()) supplies_.up += bytes;
  return status;
}

Status Lane::CopyReport(const GpuRound& round) {
  const Gpu& gpu = *supplies_.gpu;
  return gpu.Check(gpu.api().MemcpyDown(report_.data, round.report, sizeof(GpuReport), stream_->handle()),
                   "cuMemcpyDtoHAsync");
}

Status Lane::Then(cuda::HostFunction function, void* argument) {
  const Gpu& gpu = *supplies_.gpu;
  return gpu.Check(gpu.api().LaunchHostFunction(stream_->handle(), function, argument), "cuLaunchHostFunc");
}

// Behind a stage ------------------------------------------------------------------------------------------------------

uint32_t Lane::PayloadOf(const Coding& coding) const {
  return coding.twin->varies() ? reinterpret_cast<const GpuReport*>(report_.data)->bytes : coding.plan.payload;
}

Status Lane::Land(const Staging& staging, uint32_t rank) {
  if (Tracing()) Trace(staging, rank);
  Part& part = *staging.part;
  if (staging.stage == StagingStage::kPrepare) supplies_.encoded_out += part.coding->plan.prelude;
  if (staging.stage == StagingStage::kDecode && reinterpret_cast<const GpuReport*>(report_.data)->corrupt != 0)
    return Status(Code::kCorrupt, "rank " + std::to_string(rank) + ": the result of key " + std::to_string(part.key) +
                                      " makes no sense to codec " + part.coding->codec->spec());
  const bool encoded =
      staging.stage == StagingStage::kFetch || (staging.stage == StagingStage::kEncode && !Asks(staging));
  return encoded ? Seal(part) : Status();
}

// The payload is in host memory: it goes over the wire.
Status Lane::Seal(Part& part) {
  const Coding& coding = *part.coding;
  if (PayloadOf(coding) > coding.plan.payload)
    return Status(Code::kDevice, "a GPU made a payload that is too long for codec " + coding.codec->spec());
  part.total = coding.head() + PayloadOf(coding);
  if (coding.head() != 0)
    EncodePayloadHeader({.codec = coding.codec->id(), .numel = coding.numel, .spec = coding.spec_crc},
                        coding.payload.data);
  supplies_.encoded_in += part.bytes;
  supplies_.encoded_out += part.total;
  return Status();
}

// For the timeline ----------------------------------------------------------------------------------------------------

Status Lane::Stamp(int64_t Lane::* stamp) {
  this->*stamp = 0;
  if (!Tracing()) return Status();
  if (stamp == &Lane::began_) return Then([](void* at) { static_cast<Lane*>(at)->began_ = TraceClock(); }, this);
  return Then([](void* at) { static_cast<Lane*>(at)->coded_ = TraceClock(); }, this);
}

void Lane::Trace(const Staging& staging, uint32_t rank) const {
  if (began_ == 0) return;
  const Part& part = *staging.part;
  const Part& sent = staging.stage == StagingStage::kPrepare ? *part.coding->prelude : part;
  const int64_t now = TraceClock(), middle = coded_;
  const auto trace = [&](TraceKind kind, int64_t from, int64_t until, uint64_t bytes) {
    byteps_like::Trace({.kind = kind,
                        .begin = from,
                        .duration = until - from,
                        .key = sent.key,
                        .bytes = bytes,
                        .round = part.round,
                        .priority = part.priority,
                        .member = rank});
  };
  switch (staging.stage) {
    case StagingStage::kDown:
      return trace(TraceKind::kDown, began_, now, part.bytes);
    case StagingStage::kUp:
      return trace(TraceKind::kUp, began_, now, part.bytes);
    case StagingStage::kFetch:
      return trace(TraceKind::kDown, began_, now, PayloadOf(*part.coding));
    case StagingStage::kDecode:
      if (middle == 0) return;
      trace(TraceKind::kUp, began_, middle, part.expected);
      return trace(TraceKind::kDecoded, middle, now, part.expected);
    case StagingStage::kPrepare:
    case StagingStage::kEncode:
      if (middle == 0) return;
      const uint64_t bytes = &sent == &part ? PayloadOf(*part.coding) : sent.total;
      trace(TraceKind::kEncoded, began_, middle, bytes);
      if (!Asks(staging)) trace(TraceKind::kDown, middle, now, bytes);
  }
}

}  // namespace byteps_like
