// A dense value and the state of its update.
#pragma once

#include "server/store/content/content.h"

namespace byteps_like {

struct StoreValue {
  size_t size() const { return shape.count() * SizeOf(dtype); }

  DType dtype = DType::kFloat32;
  ValueShape shape;
  ShardBuffer bytes;  // size(), or more
};

// Readers share the value: a handle keeps its version, and the next update goes to a fresh copy; without one, values
// change in place.
class DenseContent final : public StoreContent {
 public:
  // Version 0 is `value`. kCapacity. The memory lives longer.
  static Result<std::unique_ptr<DenseContent>> Make(const ValueUpdate& update, StoreValue value, ShardMemory& memory);

  std::shared_ptr<const ShardBuffer> value() const { return value_; }
  std::span<const std::byte> state() const { return {state_.data(), state_bytes_}; }
  // To be written, while no reader has the value.
  std::span<std::byte> state() { return {state_.data(), state_bytes_}; }
  std::span<std::byte> first_value() { return {value_->data(), bytes_}; }

  DType dtype() const override { return dtype_; }
  size_t CountOf(const WholePush&) const override { return shape_.count(); }
  size_t size() const { return bytes_; }
  // The value becomes another one, as long.
  void Replace(ShardBuffer value) { value_ = std::make_shared<ShardBuffer>(std::move(value)); }
  void ReplaceState(ShardBuffer state) { state_ = std::move(state); }
  Status Reserve(ShardBuffer* fresh) override;
  std::optional<GradientEstimate> Estimate(std::span<const WholePush> pushes) const override;
  Result<bool> Apply(const VersionCall& call, ShardBuffer& fresh) override;
  Result<CombinedGradient> TakeCombined(std::span<WholePush> applied) const override;

 private:
  DenseContent(const ValueUpdate& update, StoreValue value, ShardMemory& memory);
  std::byte* Writable(ShardBuffer& fresh);

  ShardMemory& memory_;
  const DType dtype_;
  const ValueShape shape_;
  const size_t bytes_, state_bytes_;
  std::shared_ptr<ShardBuffer> value_;
  ShardBuffer state_;
};

}  // namespace byteps_like
