#include "server/store/content/dense.h"

#include <cstring>
#include <utility>
#include <vector>

#include "server/store/combining/combining.h"

namespace byteps_like {

DenseContent::DenseContent(const ValueUpdate& update, StoreValue value, ShardMemory& memory)
    : memory_(memory),
      dtype_(value.dtype),
      shape_(value.shape),
      bytes_(value.size()),
      state_bytes_(update.StateCount(shape_) * SizeOf(dtype_)),
      value_(std::make_shared<ShardBuffer>(std::move(value.bytes))),
      state_(memory.Take(state_bytes_)) {}

Result<std::unique_ptr<DenseContent>> DenseContent::Make(const ValueUpdate& update, StoreValue value,
                                                         ShardMemory& memory) {
  std::unique_ptr<DenseContent> content(new DenseContent(update, std::move(value), memory));
  if (content->state_.size() < content->state_bytes_) return memory.Exhausted();
  update.Begin(content->dtype_, content->shape_, content->state_.data());
  return content;
}

// Memory for what may have to be copied in this call: once at the most, for then nobody else has it.
Status DenseContent::Reserve(ShardBuffer* fresh) {
  if (value_.use_count() == 1) return {};
  *fresh = memory_.Take(bytes_);
  return fresh->size() < bytes_ ? memory_.Exhausted() : Status();
}

std::optional<GradientEstimate> DenseContent::Estimate(std::span<const WholePush> pushes) const {
  std::vector<void*> arrays;
  for (const WholePush& one : pushes) arrays.push_back(one.gradient.data());
  return EstimateGradient(dtype_, arrays, shape_.count());
}

Result<bool> DenseContent::Apply(const VersionCall& call, ShardBuffer& fresh) {
  std::vector<void*> arrays;
  for (const WholePush& one : call.pushes) arrays.push_back(one.gradient.data());
  if (!AddUp(dtype_, arrays, call.factors, shape_.count())) return false;
  return call.update.Apply({.dtype = dtype_,
                            .shape = shape_,
                            .value = Writable(fresh),
                            .state = state_.data(),
                            .gradient = arrays.front(),
                            .lr = call.lr,
                            .step = static_cast<uint64_t>(call.version),
                            .pushes = call.made_of});
}

// It was made in the first of them.
Result<CombinedGradient> DenseContent::TakeCombined(std::span<WholePush> applied) const {
  return CombinedGradient{std::move(applied.front().gradient)};
}

std::byte* DenseContent::Writable(ShardBuffer& fresh) {
  if (value_.use_count() > 1 && bytes_ != 0) {
    std::memcpy(fresh.data(), value_->data(), bytes_);
    value_ = std::make_shared<ShardBuffer>(std::move(fresh));
  }
  return value_->data();
}

}  // namespace byteps_like
