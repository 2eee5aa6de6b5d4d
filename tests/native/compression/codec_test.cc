// The codecs under sanitizers: buffers of exactly the sizes that the plan says, every instruction set, payloads and
// results of any bytes. What comes out is checked against NumPy in tests/property/test_codecs.py.
#include "csrc/codec/codec.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "compression/registry.h"
#include "csrc/codec/merge.h"
#include "csrc/kernels/kernels.h"
#include "tests/native/compression/codec_specs.h"
#include "tests/native/compression/exact_buffer.h"

namespace byteps_like {
namespace {

using testing::ExactBuffer;
using testing::kSpecs;

constexpr uint32_t kWorld = 3;

// A round of one contribution, and then what comes of arbitrary bytes in the places of payload and result.
class OneRound {
 public:
  OneRound(const Codec& codec, uint32_t numel)
      : codec_(codec),
        numel_(numel),
        plan_(codec.Plan(numel)),
        x_(numel * sizeof(float)),
        out_(numel * sizeof(float)),
        prelude_(plan_.prelude),
        workspace_(plan_.workspace),
        accumulator_(plan_.accumulator),
        random_(numel) {
    std::normal_distribution<float> normal;
    for (float& value : x_.floats()) value = normal(random_);
  }

  void Check() {
    ExactBuffer payload(plan_.payload);
    if (plan_.prelude != 0) codec_.Prepare(x_.floats(), kDraw, workspace_.data(), prelude_.data());
    const uint32_t sent = codec_.Encode(x_.floats(), kDraw, prelude_.data(), workspace_.data(), payload.data());
    REQUIRE(sent <= plan_.payload);
    codec_.Residual(x_.floats(), kDraw, prelude_.data(), workspace_.data(), payload.bytes().first(sent),
                    out_.floats().data());
    CHECK(codec_.Clamped(x_.floats(), kDraw, prelude_.data(), workspace_.data()) <= plan_.payload * 8);
    const bool may_be_full = codec_.spec().starts_with("sketch");  // numbers of which none is zero
    CHECK((Sum(payload.bytes().first(sent)) || may_be_full));
    for (int turn = 0; turn < 20; ++turn) Arbitrary(sent);
  }

 private:
  static constexpr Draw kDraw = {.key = 7, .round = 3, .rank = 1};

  // Whether the payload and what becomes of it were accepted.
  bool Sum(Bytes payload) {
    if (codec_.trait() == Trait::kDense) return Decode(payload);
    codec_.Reset(numel_, accumulator_.data());
    if (!codec_.Accumulate(numel_, payload, workspace_.data(), accumulator_.data()).ok()) return false;
    ExactBuffer result(plan_.result);
    const uint32_t size = codec_.Emit(numel_, 1, kDraw, workspace_.data(), accumulator_.data(), result.data());
    REQUIRE(size <= plan_.result);
    if (codec_.trait() == Trait::kMerge) Merge(payload, result.bytes().first(size));
    return Decode(result.bytes().first(size));
  }

  // The same while it comes, in buffers not a byte longer than what there is.
  void Merge(Bytes payload, Bytes expected) {
    const auto& codec = static_cast<const MergeCodec&>(codec_);
    const auto total = static_cast<uint32_t>(payload.size());
    MergeCursor read, written;
    codec.Reset(numel_, accumulator_.data());
    ExactBuffer result(expected.size());
    for (uint32_t come = 0; come < total;) {
      come += 1 + random_() % (total - come);
      ExactBuffer begin(come);
      std::memcpy(begin.data(), payload.data(), come);
      if (read.bytes == 0) {
        auto joined = codec.Join(numel_, begin.bytes(), total, read, accumulator_.data());
        REQUIRE(joined.ok());
        if (!*joined) continue;
        REQUIRE(codec.ResultBytes(numel_, accumulator_.data()) == expected.size());
        written = codec.EmitIndex(numel_, accumulator_.data(), result.data());
      }
      codec.Add(numel_, begin.bytes(), read, accumulator_.data());
      codec.EmitUntil(numel_, read.unit, written, accumulator_.data(), result.data());
    }
    CHECK(written.bytes == expected.size());
    CHECK(std::equal(expected.begin(), expected.end(), result.bytes().begin()));
  }

  bool Decode(Bytes result) {
    return codec_.Decode(result, 1, kDraw, prelude_.data(), workspace_.data(), 0.5f, out_.floats()).ok();
  }

  void Arbitrary(uint32_t sent) {
    const size_t sizes[] = {sent, plan_.result, random_() % (sent + 9)};
    ExactBuffer bytes(sizes[random_() % 3]);
    for (std::byte& byte : bytes.bytes()) byte = static_cast<std::byte>(random_());
    Sum(bytes.bytes());
    Decode(bytes.bytes());
  }

  const Codec& codec_;
  const uint32_t numel_;
  const CodecPlan plan_;
  ExactBuffer x_, out_, prelude_, workspace_, accumulator_;
  std::mt19937 random_;
};

}  // namespace

TEST_CASE("codecs: each of the registry is looked at") {
  const auto is_of = [](std::string_view name) {
    return [name](std::string_view spec) { return spec.substr(0, spec.find(':')) == name; };
  };
  for (const std::string& name : CodecNames()) CHECK_MESSAGE(std::ranges::any_of(kSpecs, is_of(name)), name);
}

TEST_CASE("codecs: buffers as the plan says, any bytes decoded or refused") {
  const std::string best(kernels::InstructionSet());
  for (const char* isa : {"avx512", "avx2", "neon", "scalar"}) {
    if (!kernels::SelectInstructionSet(isa)) continue;
    for (const char* spec : kSpecs) {
      CAPTURE(isa);
      CAPTURE(spec);
      auto made = MakeCodec(spec, kWorld);
      REQUIRE_MESSAGE(made.ok(), made.status().message());
      for (const uint32_t numel : {1u, 31u, 256u, 257u, 5000u, 33000u}) OneRound(**made, numel).Check();
    }
  }
  kernels::SelectInstructionSet(best);
}

}  // namespace byteps_like
