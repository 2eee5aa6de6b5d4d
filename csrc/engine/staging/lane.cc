#include "csrc/engine/staging/lane.h"

#include <string>
#include <utility>

#include "csrc/codec/payload.h"

namespace byteps_like {
namespace {

constexpr uint32_t kWorthAsking = 256 << 10;  // bytes of a payload's bound from which on its size is asked for first

bool HasSizeFirst(const Coding& coding) { return coding.twin->varies() && coding.plan.payload >= kWorthAsking; }

GpuFeedback OnDevice(const Feedback& feedback) {
  return {.residual = reinterpret_cast<DevicePointer>(feedback.residual),
          .momentum = reinterpret_cast<DevicePointer>(feedback.momentum),
          .mu = feedback.mu,
          .nesterov = feedback.nesterov,
          .masked = feedback.masked};
}

}  // namespace

Result<std::unique_ptr<Lane>> Lane::Create(LaneSupplies& supplies) {
  auto stream = GpuStream::Create(supplies.gpu);
  if (!stream.ok()) return stream.status();
  std::unique_ptr<Lane> lane(new Lane(supplies, std::move(*stream)));
  constexpr size_t kReport[] = {sizeof(GpuReport)};
  const Status reserved = supplies.pool.Reserve(kReport);
  if (!reserved.ok()) return reserved;
  auto report = supplies.pool.Take(sizeof(GpuReport));
  if (!report.ok()) return report.status();
  lane->report_ = *report;
  return lane;
}

Status Lane::Issue(const Staging& staging) {
  if (staging.stage != StagingStage::kFetch) scratch_ = supplies_.scratch.Of(number_);
  switch (staging.stage) {
    case StagingStage::kDown:
      return Down(staging);
    case StagingStage::kPrepare:
      return Prepare(staging);
    case StagingStage::kEncode:
      return Encode(staging);
    case StagingStage::kFetch:
      return Fetch(staging);
    case StagingStage::kUp:
      return Up(staging);
    case StagingStage::kDecode:
      return Decode(staging);
  }
  return Status();
}

bool Lane::Asks(const Staging& staging) const {
  return staging.stage == StagingStage::kEncode && HasSizeFirst(*staging.part->coding);
}

// Raw -----------------------------------------------------------------------------------------------------------------

Status Lane::Down(const Staging& staging) {
  Status status = Await(staging);
  if (status.ok()) status = Stamp(&Lane::began_);
  if (status.ok()) status = CopyDown(staging.mirror, staging.device, staging.part->bytes);
  return status;
}

Status Lane::Up(const Staging& staging) {
  Status status = Stamp(&Lane::began_);
  if (status.ok()) status = CopyUp(staging.device, staging.mirror, staging.part->bytes);
  return status;
}

// Encoded -------------------------------------------------------------------------------------------------------------

Status Lane::Prepare(const Staging& staging) {
  Coding& coding = *staging.part->coding;
  auto agreed = supplies_.pool.Take(coding.plan.prelude);
  if (!agreed.ok()) return agreed.status();
  coding.agreed = *agreed;
  Status status = Await(staging);
  if (status.ok()) status = Stamp(&Lane::began_);
  if (!status.ok()) return status;
  StreamLauncher launcher(*stream_);
  const GpuRound round = RoundOf(staging);
  status = supplies_.feedback->Compensate(launcher, OnDevice(coding.feedback), coding.scale, round.x, round.numel);
  if (status.ok()) status = coding.twin->Prepare(launcher, round, round.agreed);
  if (status.ok()) status = Stamp(&Lane::coded_);
  if (status.ok()) status = CopyDown(coding.agreed.data, round.agreed, coding.plan.prelude);
  return status;
}

Status Lane::Encode(const Staging& staging) {
  const Coding& coding = *staging.part->coding;
  Status status = Await(staging);
  if (status.ok()) status = Stamp(&Lane::began_);
  if (status.ok()) status = MakePayload(staging);
  if (status.ok()) status = Stamp(&Lane::coded_);
  if (status.ok() && coding.twin->varies()) status = CopyReport(RoundOf(staging));
  if (!status.ok() || HasSizeFirst(coding)) return status;
  status = Place(staging, coding.plan.payload);
  if (!status.ok()) return status;
  return CopyDown(coding.payload.data + coding.head(), scratch_, coding.plan.payload);
}

Status Lane::MakePayload(const Staging& staging) {
  const Coding& coding = *staging.part->coding;
  const GpuFeedback feedback = OnDevice(coding.feedback);
  const GpuRound round = RoundOf(staging);
  const DevicePointer payload = scratch_;
  StreamLauncher launcher(*stream_);
  Status status = coding.prelude
                      ? CopyUp(round.agreed, coding.agreed.data, coding.plan.prelude)
                      : supplies_.feedback->Compensate(launcher, feedback, coding.scale, round.x, round.numel);
  if (status.ok() && coding.twin->varies()) status = launcher.Fill(round.report, 0, sizeof(GpuReport));
  if (status.ok()) status = coding.twin->Encode(launcher, round, payload);
  if (status.ok() && feedback.residual != 0)
    status = coding.twin->Residual(launcher, round, payload, feedback.residual);
  if (status.ok()) status = supplies_.feedback->Settle(launcher, feedback, round.x, round.numel);
  return status;
}

Status Lane::Fetch(const Staging& staging) {
  const Coding& coding = *staging.part->coding;
  Status status = Stamp(&Lane::began_);
  if (status.ok()) status = Place(staging, PayloadOf(coding));
  if (!status.ok()) return status;
  return CopyDown(coding.payload.data + coding.head(), scratch_, PayloadOf(coding));
}

Status Lane::Decode(const Staging& staging) {
  const Part& part = *staging.part;
  const Coding& coding = *part.coding;
  const auto wrong = [&part, &coding] {
    return Status(Code::kCorrupt,
                  "the result of key " + std::to_string(part.key) + " is not of codec " + coding.codec->spec());
  };
  const uint32_t head = coding.head();
  uint32_t count = ContributorsAt(part.absences, coding.codec->world(), 0);
  if (head == 0 && !CutsOf(part.absences).empty())
    return Status(Code::kPeerLost, "a rank has died in the middle of its contribution to key " +
                                       std::to_string(part.key) + ", whose parts a GPU can't decode apart");
  if (part.expected < head || part.expected - head > coding.plan.result) return wrong();
  const std::byte* const landed = coding.landing().data;
  if (head != 0) {
    auto header = DecodePayloadHeader({landed, part.expected});
    if (!header.ok()) return header.status();
    if (header->codec != coding.codec->id() || header->spec != coding.spec_crc || header->numel != coding.numel)
      return wrong();
    count = header->count;
  }
  Status status = Stamp(&Lane::began_);
  if (!status.ok()) return status;
  const bool divide = coding.op == Op::kAverage && (head != 0 || !IsFloat(*coding.plan.dense));
  const DevicePointer result = scratch_;
  const uint32_t bytes = part.expected - head;
  const GpuRound round = RoundOf(staging);
  StreamLauncher launcher(*stream_);
  if (coding.prelude) status = CopyUp(round.agreed, coding.agreed.data, coding.plan.prelude);
  if (status.ok()) status = CopyUp(result, landed + head, bytes);
  if (status.ok()) status = Stamp(&Lane::coded_);
  if (status.ok()) status = launcher.Fill(round.report, 0, sizeof(GpuReport));
  if (status.ok())
    status =
        coding.twin->Decode(launcher, round, result, bytes, count, divide ? 1.0f / static_cast<float>(count) : 1.0f);
  if (status.ok()) status = CopyReport(RoundOf(staging));
  return status;
}

}  // namespace byteps_like
