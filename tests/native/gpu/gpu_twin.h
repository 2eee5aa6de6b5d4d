// A codec and its GPU twin side by side: every array that they make is compared bit by bit. The kernels run on the
// software GPU, on memory of exactly the sizes that they were promised.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compression/gpu/registry.h"
#include "csrc/gpu/codec.h"
#include "tests/native/compression/exact_buffer.h"
#include "tests/software_gpu/launcher.h"

namespace byteps_like::testing {

// The same bits, or a NaN each: the bits of a NaN that was computed are the hardware's own.
inline bool SameFloat(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// The first difference, as text; "" if there is none.
inline std::string FirstDifference(std::span<const float> a, std::span<const float> b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!SameFloat(a[i], b[i]))
      return "element " + std::to_string(i) + " of " + std::to_string(a.size()) + ": " + std::to_string(a[i]) +
             " on the CPU, " + std::to_string(b[i]);
  return "";
}
inline std::string FirstDifference(byteps_like::Bytes a, byteps_like::Bytes b) {
  if (a.size() != b.size()) return std::to_string(a.size()) + " bytes on the CPU, " + std::to_string(b.size());
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i])
      return "byte " + std::to_string(i) + " of " + std::to_string(a.size()) + ": " +
             std::to_string(static_cast<int>(a[i])) + " on the CPU, " + std::to_string(static_cast<int>(b[i]));
  return "";
}

// What partitions are filled with. kAny: arbitrary bits, so NaNs, infinities and denormals among them.
enum class Filling { kNormal, kZeros, kSparse, kTies, kDenormal, kLarge, kOneInfinity, kOneNan, kAny };
inline constexpr Filling kFillings[] = {Filling::kNormal,      Filling::kZeros,    Filling::kSparse,
                                        Filling::kTies,        Filling::kDenormal, Filling::kLarge,
                                        Filling::kOneInfinity, Filling::kOneNan,   Filling::kAny};

// Halfway between two narrower numbers: bfloats, halves, and halves that are denormal.
inline float TieAt(uint32_t i, std::mt19937& random) {
  const auto word = static_cast<uint32_t>(random());
  if (i % 3 == 0) return (static_cast<float>(word % 1024) + 0.5f) * 0x1p-24f;
  const uint32_t below = i % 3 == 1 ? 0xFFFFu : 0x1FFFu;
  const uint32_t exponent = 97 + i % 52;
  return std::bit_cast<float>((word & 0x807FFFFFu & ~below) | (below / 2 + 1) | exponent << 23);
}

inline float FillingAt(Filling filling, uint32_t i, uint32_t numel, std::mt19937& random) {
  const float normal = std::normal_distribution<float>()(random);
  switch (filling) {
    case Filling::kNormal:
      return normal;
    case Filling::kZeros:
      return i % 3 == 0 ? -0.0f : 0.0f;
    case Filling::kSparse:
      return i / 100 % 7 == 0 ? normal : 0.0f;
    case Filling::kTies:
      return TieAt(i, random);
    case Filling::kDenormal:
      return normal * 0x1p-130f;
    case Filling::kLarge:
      return normal * 0x1p125f;
    case Filling::kOneInfinity:
      return i == numel / 2 ? -INFINITY : normal;
    case Filling::kOneNan:
      return i == numel / 3 ? NAN : normal;
    case Filling::kAny:
      return std::bit_cast<float>(static_cast<uint32_t>(random()));
  }
  return 0;
}

class GpuTwin {
 public:
  GpuTwin(const std::string& spec, uint32_t world, const software_gpu::Device& device = {})
      : kernels_(software_gpu::Handles()), launcher_(device) {
    auto codec = MakeCodec(spec, world);
    REQUIRE_MESSAGE(codec.ok(), codec.status().message());
    codec_ = *codec;
    auto twin = MakeGpuCodec(codec_, kernels_);
    REQUIRE_MESSAGE(twin.ok(), twin.status().message());
    twin_ = *twin;
  }

  // A round of `numel` elements that begin `offset` elements behind an aligned address, every step on both sides.
  void Round(uint32_t numel, Filling filling, uint32_t offset = 0) {
    CAPTURE(static_cast<int>(filling));
    std::vector<float> values(numel);
    std::mt19937 random(numel + static_cast<uint32_t>(filling));
    for (uint32_t i = 0; i < numel; ++i) values[i] = FillingAt(filling, i, numel, random);
    Round(values, offset);
  }

  void Round(std::span<const float> values, uint32_t offset = 0) {
    const auto numel = static_cast<uint32_t>(values.size());
    CAPTURE(codec_->spec());
    CAPTURE(numel);
    CAPTURE(offset);
    const CodecPlan plan = codec_->Plan(numel);
    ExactBuffer memory((numel + offset) * sizeof(float)), left((numel + offset) * sizeof(float));
    const auto x = memory.floats().subspan(offset);
    std::ranges::copy(values, x.begin());
    ExactBuffer agreed(plan.prelude), scratch(plan.workspace), device_scratch(twin_->Workspace(numel));
    GpuReport report;
    const GpuRound round{.x = Address(x.data()),
                         .numel = numel,
                         .draw = kDraw,
                         .agreed = Address(agreed.data()),
                         .workspace = Address(device_scratch.data()),
                         .report = Address(&report)};
    if (plan.prelude != 0) Prepared(round, x, agreed, scratch);
    ExactBuffer payload(plan.payload), made(plan.payload);
    std::memset(made.data(), 0x5A, plan.payload);
    const uint32_t bytes = codec_->Encode(x, kDraw, agreed.data(), scratch.data(), payload.data());
    Ok(twin_->Encode(launcher_, round, Address(made.data())));
    const uint32_t made_bytes = twin_->varies() ? report.bytes : plan.payload;
    REQUIRE(made_bytes <= plan.payload);
    CHECK(FirstDifference(payload.bytes().first(bytes), made.bytes().first(made_bytes)) == "");
    const auto residual = left.floats().subspan(offset);
    Ok(twin_->Residual(launcher_, round, Address(made.data()), Address(residual.data())));
    std::vector<float> expected(numel);
    codec_->Residual(x, kDraw, agreed.data(), scratch.data(), payload.bytes().first(bytes), expected.data());
    CHECK(FirstDifference(expected, residual) == "");
    Sum(round, payload.bytes().first(bytes), agreed, scratch, residual);
    uint32_t found = 0;
    Ok(twin_->Clamped(launcher_, round, Address(&found)));
    CHECK(found == codec_->Clamped(x, kDraw, agreed.data(), scratch.data()));
    // In place, as engines do it; it comes last, since it ends x.
    Ok(twin_->Residual(launcher_, round, Address(made.data()), round.x));
    CHECK(FirstDifference(expected, x) == "");
  }

  // Results of bytes that are none: refused or decoded, as the CPU does it, and nothing touched beyond the arrays.
  void Arbitrary(uint32_t numel, byteps_like::Bytes result) {
    CAPTURE(codec_->spec());
    CAPTURE(numel);
    const CodecPlan plan = codec_->Plan(numel);
    ExactBuffer agreed(plan.prelude), scratch(plan.workspace), device_scratch(twin_->Workspace(numel));
    std::memset(agreed.data(), 1, plan.prelude);
    ExactBuffer bytes(result.size()), out(numel * sizeof(float));
    std::ranges::copy(result, bytes.data());
    Decoded(
        {.numel = numel, .draw = kDraw, .agreed = Address(agreed.data()), .workspace = Address(device_scratch.data())},
        bytes.bytes(), 2, agreed, scratch, out.floats());
  }

  const Codec& codec() const { return *codec_; }

 private:
  static constexpr Draw kDraw = {.key = 7, .round = 3, .rank = 1};
  static DevicePointer Address(const void* memory) { return software_gpu::Address(memory); }
  static void Ok(const Status& status) { REQUIRE_MESSAGE(status.ok(), status.message()); }

  void Prepared(const GpuRound& round, std::span<const float> x, ExactBuffer& agreed, ExactBuffer& scratch) {
    ExactBuffer made(agreed.bytes().size());
    codec_->Prepare(x, kDraw, scratch.data(), agreed.data());
    Ok(twin_->Prepare(launcher_, round, Address(made.data())));
    if (codec_->Plan(round.numel).prelude_dtype == DType::kFloat32)
      CHECK(FirstDifference(agreed.floats(), made.floats()) == "");
    else
      CHECK(FirstDifference(agreed.bytes(), made.bytes()) == "");
  }

  // The result of one contribution counted twice; of kDense codecs, of one.
  void Sum(const GpuRound& round, byteps_like::Bytes payload, ExactBuffer& agreed, ExactBuffer& scratch,
           std::span<float> out) {
    const CodecPlan plan = codec_->Plan(round.numel);
    if (codec_->trait() == Trait::kDense) return Decoded(round, payload, 1, agreed, scratch, out);
    ExactBuffer sum(plan.accumulator), result(plan.result);
    codec_->Reset(round.numel, sum.data());
    for (int turn = 0; turn < 2; ++turn) Ok(codec_->Accumulate(round.numel, payload, scratch.data(), sum.data()));
    const uint32_t size = codec_->Emit(round.numel, 2, kDraw, scratch.data(), sum.data(), result.data());
    ExactBuffer exact(size);
    std::memcpy(exact.data(), result.data(), size);
    Decoded(round, exact.bytes(), 2, agreed, scratch, out);
  }

  void Decoded(GpuRound round, byteps_like::Bytes result, uint32_t count, ExactBuffer& agreed, ExactBuffer& scratch,
               std::span<float> out) {
    for (const float factor : {1.0f, 1.0f / 3}) {
      std::vector<float> expected(round.numel);
      const Status right = codec_->Decode(result, count, kDraw, agreed.data(), scratch.data(), factor, expected);
      GpuReport report;
      round.x = Address(out.data());
      round.report = Address(&report);
      const Status status =
          twin_->Decode(launcher_, round, Address(result.data()), static_cast<uint32_t>(result.size()), count, factor);
      CHECK_MESSAGE((status.ok() || status.code() == Code::kCorrupt), status.message());
      CHECK(right.ok() == (status.ok() && report.corrupt == 0));
      if (right.ok()) CHECK(FirstDifference(expected, out) == "");
    }
  }

  const KernelTable kernels_;
  software_gpu::SoftwareLauncher launcher_;
  CodecPointer codec_;
  GpuCodecPointer twin_;
};

}  // namespace byteps_like::testing
