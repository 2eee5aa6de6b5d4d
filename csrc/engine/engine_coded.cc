// Tensors with codecs: their declarations and feedback, and the way of their parts between codec threads and channels.
#include <algorithm>
#include <utility>

#include "csrc/codec/payload.h"
#include "csrc/engine/channel.h"
#include "csrc/engine/coder.h"
#include "csrc/engine/engine.h"
#include "csrc/engine/staging/stager.h"
#include "csrc/kernels/kernels.h"

namespace byteps_like {
namespace {

Status CheckUse(const CodecUse& use, uint32_t world) {
  const std::string& spec = use.codec->spec();
  if (use.codec->trait() == Trait::kOpaque) return Status(Code::kInvalid, "codec " + spec + " can't be summed");
  if (use.codec->world() != world)
    return Status(Code::kInvalid, "codec " + spec + " is for a world of " + std::to_string(use.codec->world()));
  return Status();
}

Status CheckSizes(const PartitionSpec& part, const CodecPlan& plan) {
  const uint64_t largest = kPayloadHeader + uint64_t{std::max(plan.payload, plan.result)};
  if (largest <= kMaxPartition && plan.prelude <= kMaxPartition) return Status();
  return Status(Code::kInvalid, "key " + std::to_string(part.key) + ": encoded it may have " + std::to_string(largest) +
                                    " bytes, and a partition at most " + std::to_string(kMaxPartition));
}

std::unique_ptr<Part> PreludeOf(const Part& part, const CodecPlan& plan) {
  auto prelude = std::make_unique<Part>();
  prelude->key = part.key | kPreludeKey;
  prelude->offset = part.offset;
  prelude->channel = part.channel;
  prelude->bytes = prelude->total = plan.prelude;
  prelude->dtype = plan.prelude_dtype;
  prelude->op = plan.prelude_op;
  return prelude;
}

}  // namespace

Result<uint32_t> Engine::DeclareCoded(const std::vector<PartitionSpec>& partitions, const CodecUse& use) {
  if (Status wrong = CheckUse(use, context_.standing().world_size); !wrong.ok()) return wrong;
  for (const PartitionSpec& spec : partitions) {
    if ((spec.key & kPreludeKey) != 0)
      return Status(Code::kInvalid, "key " + std::to_string(spec.key) + " is that of a prelude");
    if (spec.bytes % sizeof(float) != 0 || spec.offset % sizeof(float) != 0 || spec.bytes == 0)
      return Status(Code::kInvalid, "key " + std::to_string(spec.key) + " is not of whole elements of float32");
    const Status wrong = CheckSizes(spec, use.codec->Plan(spec.bytes / sizeof(float)));
    if (!wrong.ok()) return wrong;
  }
  std::lock_guard lock(mutex_);
  if (!coder_) {
    auto coder = Coder::Start(*this, context_.options.codec_threads);
    if (!coder.ok()) return coder.status();
    coder_ = std::move(*coder);
  }
  const uint32_t tensor = Add(DType::kFloat32, partitions);
  const uint32_t number = NumberOf(use);
  for (auto& part : tensors_[tensor].parts) {
    auto coding = std::make_unique<Coding>();
    coding->codec = use.codec.get();
    coding->numel = part->bytes / sizeof(float);
    coding->plan = use.codec->Plan(coding->numel);
    coding->twin = use.twin.get();
    coding->number = number;
    coding->spec_crc = kernels::Crc32c(0, use.codec->spec().data(), use.codec->spec().size());
    coding->part = part.get();
    part->weight = coding->plan.prelude + coding->plan.payload;
    if (coding->plan.prelude != 0) {
      coding->prelude = PreludeOf(*part, coding->plan);
      coding->prelude->coding = coding.get();
    }
    part->coding = coding.get();
    tensors_[tensor].codings.push_back(std::move(coding));
  }
  Weigh(tensor);
  return tensor;
}

uint32_t Engine::NumberOf(const CodecUse& use) {
  for (uint32_t i = 0; i < codecs_.size(); ++i)
    if (codecs_[i].codec == use.codec && codecs_[i].twin == use.twin && codecs_[i].text == use.text) return i;
  codecs_.push_back(use);
  return static_cast<uint32_t>(codecs_.size() - 1);
}

const std::string& Engine::CodecText(uint32_t number) {
  std::lock_guard lock(mutex_);
  return codecs_[number].text;
}

void Engine::SetFeedback(uint32_t tensor, const Feedback& feedback) {
  std::lock_guard lock(mutex_);
  for (auto& coding : tensors_.at(tensor).codings)
    coding->next.feedback = feedback.At(coding->part->offset / sizeof(float));
}

void Engine::Rescale(uint32_t tensor, float factor) {
  std::lock_guard lock(mutex_);
  for (auto& coding : tensors_.at(tensor).codings) coding->next.scale *= factor;
}

void Engine::Inherit(uint32_t tensor, uint32_t from) {
  std::lock_guard lock(mutex_);
  const auto& before = tensors_.at(from).codings;
  for (auto& coding : tensors_.at(tensor).codings)
    for (const auto& old : before) {
      if (old->part->offset > coding->part->offset) break;
      const size_t shift = (coding->part->offset - old->part->offset) / sizeof(float);
      coding->next = {old->next.feedback.At(shift), old->next.scale};
    }
}

void Engine::BeginCoded(Part& part) {
  Coding& coding = *part.coding;
  const bool staged = part.staging != nullptr && part.staging->active;
  coding.on_gpu = staged && part.staging->stage != StagingStage::kDown;
  coding.active = !coding.on_gpu;
  coding.x = reinterpret_cast<float*>(part.address);
  coding.op = part.op;
  const bool within_reach = coding.on_gpu || !coding.next.feedback.on_gpu;
  coding.feedback = within_reach ? coding.next.feedback : Feedback{};
  coding.scale = within_reach ? std::exchange(coding.next.scale, 1.0f) : 1.0f;
  coding.draw = {part.key, part.round, context_.standing().rank};
  part.encoded = !coding.dense();
  part.dtype = coding.plan.dense.value_or(DType::kFloat32);
  if (coding.dense() && !IsFloat(part.dtype)) part.op = Op::kSum;  // decoding divides
  if (!staged) coder_->Begin(coding);
}

void Engine::Hand(Part& part) {
  bool wake;
  {
    std::lock_guard lock(mutex_);
    wake = submitted_.empty();
    submitted_.push_back(&part);
  }
  if (wake) context_.loop.Post([this] { Drain(); });
}

CodedCounters Engine::coded() const {
  std::lock_guard lock(mutex_);
  return coder_ ? CodedCounters{coder_->bytes_in(), coder_->bytes_out()} : CodedCounters{};
}

}  // namespace byteps_like
