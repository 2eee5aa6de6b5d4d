// Tensors with codecs: their declarations and feedback, and the way of their parts between codec threads and channels.
#include <utility>

#include "csrc/engine/coding/coder.h"
#include "csrc/engine/engine.h"
#include "csrc/engine/staging/stager.h"

namespace byteps_like {

Result<uint32_t> Engine::DeclareCoded(const std::vector<PartitionSpec>& partitions, const CodecUse& use) {
  const Status wrong = CheckCoded(partitions, use, context_.standing().world_size);
  if (!wrong.ok()) return wrong;
  std::lock_guard lock(mutex_);
  if (!coder_) {
    auto coder = Coder::Start(*this, context_.options.codec_threads);
    if (!coder.ok()) return coder.status();
    coder_ = std::move(*coder);
  }
  const uint32_t tensor = tensors_.Add(DType::kFloat32, partitions, channels_);
  tensors_.Encode(tensor, use);
  Weigh(tensor);
  return tensor;
}

const std::string& Engine::CodecText(uint32_t number) {
  std::lock_guard lock(mutex_);
  return tensors_.CodecText(number);
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
