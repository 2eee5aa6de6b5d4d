// Tensors with codecs in a Cluster, codecs made for tests, and what a round of a codec comes to without an engine.
#pragma once

#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "compression/registry.h"
#include "csrc/codec/payload.h"
#include "tests/native/server/cluster_fixture.h"

namespace byteps_like::testing {

using Floats = std::vector<float>;

inline const std::string kOnebit = "onebit:block=512";

// A dense codec of int32 with a prelude: x in steps of what all ranks' largest magnitude is a millionth of. Encode
// takes what Prepare has left in the workspace.
class StepCodec : public Codec {
 public:
  explicit StepCodec(uint32_t world) : Codec("step", world) {}
  uint8_t id() const override { return 200; }
  Trait trait() const override { return Trait::kDense; }
  CodecPlan Plan(uint32_t numel) const override {
    const uint32_t bytes = numel * 4;
    return {.prelude = 4, .payload = bytes, .result = bytes, .dense = DType::kInt32, .workspace = bytes};
  }
  void Prepare(std::span<const float> x, const Draw&, std::byte* workspace, std::byte* prelude) const override {
    float largest = 0;
    for (const float value : x) largest = std::max(largest, std::fabs(value));
    std::memcpy(prelude, &largest, 4);
    std::memcpy(workspace, x.data(), x.size_bytes());
  }
  uint32_t Encode(std::span<const float> x, const Draw&, const std::byte* agreed, std::byte* workspace,
                  std::byte* payload) const override {
    const float step = Step(agreed);
    const auto* const kept = reinterpret_cast<const float*>(workspace);
    auto* const out = reinterpret_cast<int32_t*>(payload);
    for (size_t i = 0; i < x.size(); ++i) out[i] = static_cast<int32_t>(std::lrintf(kept[i] / step));
    return static_cast<uint32_t>(x.size_bytes());
  }
  void Residual(std::span<const float> x, const Draw&, const std::byte* agreed, std::byte*,
                std::span<const std::byte> p, float* residual) const override {
    const auto* const sent = reinterpret_cast<const int32_t*>(p.data());
    for (size_t i = 0; i < x.size(); ++i) residual[i] = x[i] - Step(agreed) * static_cast<float>(sent[i]);
  }
  Status Decode(std::span<const std::byte> result, uint32_t, const Draw&, const std::byte* agreed, std::byte*,
                float factor, std::span<float> out) const override {
    if (result.size() != out.size_bytes()) return Status(Code::kCorrupt, "step: wrong length");
    const auto* const sum = reinterpret_cast<const int32_t*>(result.data());
    for (size_t i = 0; i < out.size(); ++i) out[i] = factor * (Step(agreed) * static_cast<float>(sum[i]));
    return Status();
  }

 private:
  static float Step(const std::byte* agreed) {
    float largest;
    std::memcpy(&largest, agreed, 4);
    return largest > 0 ? largest / 1e6f : 1.0f;
  }
};

// Onebit whose Encode waits until the test opens it.
class GatedCodec : public ReencodeCodec {
 public:
  explicit GatedCodec(std::shared_ptr<const Codec> inner)
      : ReencodeCodec(inner->spec(), inner->world()), inner_(std::move(inner)) {}
  uint8_t id() const override { return inner_->id(); }
  CodecPlan Plan(uint32_t numel) const override { return inner_->Plan(numel); }
  uint32_t Encode(std::span<const float> x, const Draw& draw, const std::byte* agreed, std::byte* workspace,
                  std::byte* payload) const override {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    return inner_->Encode(x, draw, agreed, workspace, payload);
  }
  Status DecodeInto(std::span<const std::byte> payload, float factor, bool add, std::span<float> sum) const override {
    return static_cast<const ReencodeCodec&>(*inner_).DecodeInto(payload, factor, add, sum);
  }

  void Open() const {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void AwaitEncode() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ > 0; });
  }

 private:
  const std::shared_ptr<const Codec> inner_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int waiting_ = 0;
  mutable bool open_ = false;
};

inline std::shared_ptr<const Codec> CodecOf(const std::string& spec, uint32_t world) {
  if (spec == "step") return std::make_shared<StepCodec>(world);
  auto made = MakeCodec(spec, world);
  if (!made.ok()) throw std::runtime_error(made.status().message());
  return *made;
}

// One rank's tensor with a codec.
class CodedTensor {
 public:
  CodedTensor(Cluster& cluster, uint32_t rank, size_t count, CodecUse use, uint64_t first_key)
      : engine_(cluster.engine(rank)), parts_(cluster.Cut(count * 4, first_key)), data_(count) {
    auto declared = engine_.DeclareCoded(parts_, use);
    if (!declared.ok()) throw std::runtime_error(declared.status().message());
    id_ = *declared;
  }

  Floats& data() { return data_; }
  uint32_t id() const { return id_; }
  const std::vector<PartitionSpec>& parts() const { return parts_; }

  Result<std::shared_ptr<Operation>> Start(Op op, int32_t priority = 0, uint32_t root = 0) {
    return engine_.Submit({.tensor = id_,
                           .address = reinterpret_cast<std::byte*>(data_.data()),
                           .last_part = static_cast<uint32_t>(parts_.size()),
                           .op = op,
                           .root = root,
                           .priority = priority});
  }
  Status Run(Op op, uint32_t root = 0) {
    auto operation = Start(op, 0, root);
    if (!operation.ok()) return operation.status();
    return engine_.Wait(**operation, Clock::now() + std::chrono::seconds(30));
  }

 private:
  Engine& engine_;
  const std::vector<PartitionSpec> parts_;
  Floats data_;
  uint32_t id_ = 0;
};

// What each rank has after a round of `xs`, by the codec's own calls; residuals[rank] are left where `feedback` is.
struct Direct {
  Floats out;
  std::vector<Floats> residuals;
  std::vector<uint64_t> payload_bytes;  // by rank, headers of payloads included, preludes not
};

class DirectRound {
 public:
  DirectRound(const Codec& codec, Op op, uint32_t round) : codec_(codec), op_(op), round_(round) {}

  Direct Run(const std::vector<Floats>& xs, const std::vector<PartitionSpec>& parts) {
    Direct direct{xs[0], xs, std::vector<uint64_t>(xs.size())};
    for (const PartitionSpec& part : parts) RunPart(xs, part, direct);
    return direct;
  }

 private:
  void RunPart(const std::vector<Floats>& xs, const PartitionSpec& part, Direct& direct) {
    const size_t first = part.offset / 4, numel = part.bytes / 4;
    const CodecPlan plan = codec_.Plan(static_cast<uint32_t>(numel));
    const std::vector<std::byte> agreed = Agreed(xs, part, plan);
    std::vector<std::byte> sum;
    alignas(64) static thread_local std::byte accumulator[1 << 18];
    if (!plan.dense) codec_.Reset(static_cast<uint32_t>(numel), accumulator);
    for (uint32_t rank = 0; rank < xs.size(); ++rank) {
      const std::span<const float> x(xs[rank].data() + first, numel);
      const Draw draw{part.key, round_, rank};
      std::vector<std::byte> workspace(plan.workspace), payload(plan.payload), own(plan.prelude);
      if (plan.prelude != 0) codec_.Prepare(x, draw, workspace.data(), own.data());
      payload.resize(codec_.Encode(x, draw, agreed.data(), workspace.data(), payload.data()));
      codec_.Residual(x, draw, agreed.data(), workspace.data(), payload, direct.residuals[rank].data() + first);
      direct.payload_bytes[rank] += payload.size() + (plan.dense ? 0 : kPayloadHeader);
      if (plan.dense) {
        AddInts(sum, payload);
      } else if (!codec_.Accumulate(static_cast<uint32_t>(numel), payload, workspace.data(), accumulator).ok()) {
        throw std::runtime_error("the codec refuses its own payload");
      }
    }
    std::vector<std::byte> workspace(plan.workspace);
    const auto world = static_cast<uint32_t>(xs.size());
    if (!plan.dense) {
      sum.resize(plan.result);
      sum.resize(codec_.Emit(static_cast<uint32_t>(numel), world, {part.key, round_, kServerRank}, workspace.data(),
                             accumulator, sum.data()));
    }
    const float factor = op_ == Op::kAverage ? 1.0f / static_cast<float>(world) : 1.0f;
    const Status status = codec_.Decode(sum, world, {part.key, round_, 0}, agreed.data(), workspace.data(), factor,
                                        {direct.out.data() + first, numel});
    if (!status.ok()) throw std::runtime_error(status.message());
  }

  std::vector<std::byte> Agreed(const std::vector<Floats>& xs, const PartitionSpec& part, const CodecPlan& plan) {
    std::vector<std::byte> agreed(plan.prelude);
    if (plan.prelude == 0) return agreed;
    float largest = 0;  // of the only codec here that has one
    for (const Floats& x : xs)
      for (size_t i = 0; i < part.bytes / 4; ++i) largest = std::max(largest, std::fabs(x[part.offset / 4 + i]));
    std::memcpy(agreed.data(), &largest, 4);
    return agreed;
  }

  static void AddInts(std::vector<std::byte>& sum, const std::vector<std::byte>& payload) {
    sum.resize(payload.size());
    for (size_t at = 0; at < payload.size(); at += 4) {
      int32_t one, all;
      std::memcpy(&one, payload.data() + at, 4);
      std::memcpy(&all, sum.data() + at, 4);
      all += one;
      std::memcpy(sum.data() + at, &all, 4);
    }
  }

  const Codec& codec_;
  const Op op_;
  const uint32_t round_;
};

}  // namespace byteps_like::testing
