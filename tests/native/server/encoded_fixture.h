// Contributions as a codec makes them, and what a server should make of them: by direct calls of the codec.
#pragma once

#include <cstring>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "compression/registry.h"
#include "csrc/codec/payload.h"
#include "csrc/kernels/kernels.h"
#include "csrc/transport/links/link.h"
#include "csrc/transport/memory/shared_buffer.h"
#include "server/policy/policies.h"

namespace byteps_like::testing {

using Floats = std::vector<float>;
using Payload = std::vector<std::byte>;

// For rounds without a server: they only compare links.
class NoLink final : public Link {
 public:
  void Start() override {}
  void Kick() override {}
  bool Redirect(std::byte*) override { return false; }
  void Keep() override {}
  bool KeepShort(bool) override { return true; }
  void Close(const Status&) override {}
  LinkCounters counters() const override { return {}; }
  std::string peer() const override { return "nobody"; }
  bool shares_memory() const override { return false; }
  Status PassBuffer(const SharedBuffer&) override { return Status(Code::kInvalid, ""); }
  Result<std::shared_ptr<SharedBuffer>> TakeBuffer() override { return Status(Code::kInvalid, ""); }
};

// What a round of these terms is begun with, for rounds without a server.
inline KeyPolicy PolicyFor(const Terms& terms, Update* update = nullptr) {
  const PolicyRow& row = *FindPolicy(Policies(), terms);
  return {row, row.update == nullptr ? nullptr : update};
}

inline CodecPointer CodecFor(const std::string& spec, uint32_t world) {
  auto made = MakeCodec(spec, world);
  if (!made.ok()) throw std::runtime_error(made.status().message());
  return *made;
}

inline Floats Gaussian(size_t numel, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(numel);
  for (float& value : values) value = normal(random);
  return values;
}

// Memory that a codec may use: aligned to 64 bytes.
class Scratch {
 public:
  explicit Scratch(size_t bytes) : bytes_(bytes + 64) {}
  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (64 - address % 64) % 64;
  }

 private:
  std::vector<std::byte> bytes_;
};

inline Payload WithHeader(const Codec& codec, uint32_t numel, uint32_t count, Payload body) {
  Payload whole(kPayloadHeader);
  const std::string& spec = codec.spec();
  EncodePayloadHeader({.codec = codec.id(),
                       .count = static_cast<uint16_t>(count),
                       .numel = numel,
                       .spec = kernels::Crc32c(0, spec.data(), spec.size())},
                      whole.data());
  whole.insert(whole.end(), body.begin(), body.end());
  return whole;
}

// What all ranks push in a round: xs[rank] encoded, after the prelude if there is one.
inline std::vector<Payload> Encoded(const Codec& codec, const std::vector<Floats>& xs, uint64_t key, uint32_t round) {
  const auto numel = static_cast<uint32_t>(xs[0].size());
  const CodecPlan plan = codec.Plan(numel);
  Payload agreed(plan.prelude), own(plan.prelude);
  std::vector<Scratch> workspaces(xs.size(), Scratch(plan.workspace));
  for (uint32_t rank = 0; plan.prelude > 0 && rank < xs.size(); ++rank) {
    codec.Prepare(xs[rank], {key, round, rank}, workspaces[rank].data(), own.data());
    const size_t count = plan.prelude / SizeOf(plan.prelude_dtype);
    kernels::Reduce(rank == 0 ? Op::kBroadcast : plan.prelude_op, plan.prelude_dtype, agreed.data(), own.data(), count);
  }
  std::vector<Payload> payloads;
  for (uint32_t rank = 0; rank < xs.size(); ++rank) {
    Payload body(plan.payload);
    const Draw draw{key, round, rank};
    body.resize(codec.Encode(xs[rank], draw, agreed.data(), workspaces[rank].data(), body.data()));
    payloads.push_back(WithHeader(codec, numel, 1, std::move(body)));
  }
  return payloads;
}

// The result of a round of these payloads. With `feedback` it is two-way, and that is the residual, zeros at first.
inline Payload Summed(const Codec& codec, uint32_t numel, const std::vector<Payload>& payloads, uint64_t key,
                      uint32_t round, Floats* feedback = nullptr) {
  const CodecPlan plan = codec.Plan(numel);
  Scratch workspace(plan.workspace), sum(plan.accumulator);
  codec.Reset(numel, sum.data());
  for (const Payload& payload : payloads) {
    const Status added =
        codec.Accumulate(numel, std::span(payload).subspan(kPayloadHeader), workspace.data(), sum.data());
    if (!added.ok()) throw std::runtime_error(added.message());
  }
  auto* const values = reinterpret_cast<float*>(sum.data());
  for (uint32_t i = 0; feedback != nullptr && i < numel; ++i) (*feedback)[i] = values[i] += (*feedback)[i];
  Payload body(plan.result);
  const Draw draw{key, round, kServerRank};
  body.resize(
      codec.Emit(numel, static_cast<uint32_t>(payloads.size()), draw, workspace.data(), sum.data(), body.data()));
  if (feedback != nullptr) codec.Residual(*feedback, draw, nullptr, workspace.data(), body, feedback->data());
  return WithHeader(codec, numel, static_cast<uint32_t>(payloads.size()), std::move(body));
}

}  // namespace byteps_like::testing
