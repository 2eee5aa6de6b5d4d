// libFuzzer target (`make fuzz`): codecs that are given any bytes, as a contribution to a sum and as a result, in
// memory of exactly the size that the plan says. They decode them or say kCorrupt; what they took, they can hand out.
//
// An input is a byte that picks the codec, one of options, one of contributions, two of elements, then the prelude as
// agreed on, then the bytes. `payload_fuzz --seeds=FOLDER` writes inputs made of real encodings, one for each codec:
// what fits neither in length nor in its counts is refused at once.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "compression/registry.h"
#include "csrc/codec/merge.h"
#include "csrc/kernels/kernels.h"
#include "csrc/wire/bytes.h"
#include "tests/fuzz/fuzzing.h"
#include "tests/native/compression/codec_specs.h"
#include "tests/native/compression/exact_buffer.h"

namespace byteps_like {
namespace {

using fuzzing::Require;
using testing::ExactBuffer;
using testing::kSpecs;

enum Option : uint8_t {
  kFitPayload = 1,  // cut or filled with zeros to the length of a payload,
  kFitResult = 2,   // of a result
  kScalar = 4,
};

constexpr uint32_t kWorld = 3, kMostElements = 3000;
constexpr size_t kCodecs = std::size(kSpecs), kHead = 5;
constexpr Draw kDraw = {.key = 7, .round = 3, .rank = 1};

const Codec& CodecAt(size_t index) {
  static const auto codecs = [] {
    std::vector<CodecPointer> made;
    for (const char* spec : kSpecs) {
      auto codec = MakeCodec(spec, kWorld);
      Require(codec.ok());
      made.push_back(*codec);
    }
    return made;
  }();
  return *codecs[index % kCodecs];
}

// Whether they were taken; if not, they were called what they are. A sketch may be full, too.
bool Taken(const Status& status) {
  const bool is_full = status.code() == Code::kCapacity;
  Require(status.ok() || ((status.code() == Code::kCorrupt || is_full) && !status.message().empty()));
  return status.ok();
}

class Receiver {
 public:
  Receiver(const Codec& codec, uint32_t numel, uint32_t count)
      : codec_(codec),
        numel_(numel),
        count_(count),
        plan_(codec.Plan(numel)),
        agreed_(plan_.prelude),
        workspace_(plan_.workspace),
        out_(numel * sizeof(float)) {}

  const CodecPlan& plan() const { return plan_; }
  std::span<std::byte> agreed() { return agreed_.bytes(); }

  bool Decode(Bytes result) {
    return Taken(codec_.Decode(result, count_, kDraw, agreed_.data(), workspace_.data(), 0.5f, out_.floats()));
  }

  // As often as there are contributions, then the result is decoded.
  void Sum(Bytes payload) {
    ExactBuffer accumulator(plan_.accumulator), result(plan_.result);
    codec_.Reset(numel_, accumulator.data());
    for (uint32_t turn = 0; turn < count_; ++turn)
      if (!Taken(codec_.Accumulate(numel_, payload, workspace_.data(), accumulator.data()))) return;
    const uint32_t size = codec_.Emit(numel_, count_, kDraw, workspace_.data(), accumulator.data(), result.data());
    Require(size <= plan_.result);
    const bool is_seen_late = codec_.spec().starts_with("sketch");  // what no elements make can only be told by all
    Require(Decode(result.bytes().first(size)) || is_seen_late);
  }

  // While it comes, in two pieces: `first` bytes, then all.
  void Merge(const MergeCodec& codec, Bytes payload, size_t first) {
    ExactBuffer accumulator(plan_.accumulator), result(plan_.result);
    codec.Reset(numel_, accumulator.data());
    MergeCursor read, written;
    for (const size_t come : {first, payload.size()}) {
      ExactBuffer begin(come);
      std::copy_n(payload.begin(), come, begin.data());
      if (read.bytes == 0) {
        const auto total = static_cast<uint32_t>(payload.size());
        auto joined = codec.Join(numel_, begin.bytes(), total, read, accumulator.data());
        if (!Taken(joined.ok() ? Status() : joined.status())) return;
        if (!*joined) continue;
        Require(codec.ResultBytes(numel_, accumulator.data()) <= plan_.result);
        written = codec.EmitIndex(numel_, accumulator.data(), result.data());
      }
      codec.Add(numel_, begin.bytes(), read, accumulator.data());
      codec.EmitUntil(numel_, read.unit, written, accumulator.data(), result.data());
    }
    Require(read.unit == kNoUnit && Decode(result.bytes().first(written.bytes)));
  }

 private:
  const Codec& codec_;
  const uint32_t numel_, count_;
  const CodecPlan plan_;
  ExactBuffer agreed_, workspace_, out_;
};

ExactBuffer Fitted(Bytes bytes, uint8_t options, const CodecPlan& plan) {
  const size_t fit = (options & kFitPayload) != 0 ? plan.payload : plan.result;
  ExactBuffer fitted((options & (kFitPayload | kFitResult)) != 0 ? fit : bytes.size());
  std::memset(fitted.data(), 0, fitted.bytes().size());
  std::copy_n(bytes.begin(), std::min(bytes.size(), fitted.bytes().size()), fitted.data());
  return fitted;
}

void Receive(const uint8_t* data, size_t size) {
  const auto* const input = reinterpret_cast<const std::byte*>(data);
  const Codec& codec = CodecAt(data[0]);
  const uint8_t options = data[1];
  Receiver receiver(codec, 1 + GetLittle<uint16_t>(input + 3) % kMostElements, 1 + data[2] % kWorld);
  Bytes rest{input + kHead, size - kHead};
  const Bytes agreed = rest.first(std::min(rest.size(), receiver.agreed().size()));
  std::memset(receiver.agreed().data(), 0, receiver.agreed().size());
  std::copy(agreed.begin(), agreed.end(), receiver.agreed().begin());
  ExactBuffer bytes = Fitted(rest.subspan(agreed.size()), options, receiver.plan());
  receiver.Decode(bytes.bytes());
  if (codec.trait() == Trait::kDense || codec.trait() == Trait::kOpaque) return;
  receiver.Sum(bytes.bytes());
  if (codec.trait() != Trait::kMerge) return;
  const size_t first = bytes.bytes().size() * data[2] / 255;
  receiver.Merge(static_cast<const MergeCodec&>(codec), bytes.bytes(), first);
}

// What rank 1 would send of `numel` elements, some of them zeros.
std::vector<std::byte> Encoded(size_t index, uint16_t numel) {
  const Codec& codec = CodecAt(index);
  const CodecPlan plan = codec.Plan(numel);
  std::vector<float> x(numel);
  for (size_t i = 0; i < numel; ++i) x[i] = i % 16 < 10 ? std::sin(static_cast<float>(i * i)) : 0.0f;
  ExactBuffer workspace(plan.workspace), agreed(plan.prelude), payload(plan.payload);
  if (plan.prelude != 0) codec.Prepare(x, kDraw, workspace.data(), agreed.data());
  const uint32_t size = codec.Encode(x, kDraw, agreed.data(), workspace.data(), payload.data());
  std::vector<std::byte> input(kHead);
  input[0] = static_cast<std::byte>(index);
  PutLittle(input.data() + 3, static_cast<uint16_t>(numel - 1));
  input.insert(input.end(), agreed.bytes().begin(), agreed.bytes().end());
  input.insert(input.end(), payload.data(), payload.data() + size);
  return input;
}

void WriteSeeds(const std::string& folder) {
  for (size_t index = 0; index < kCodecs; ++index) {
    const std::vector<std::byte> input = Encoded(index, 300);
    fuzzing::WriteFile(folder + "/" + std::to_string(index), input.data(), input.size());
  }
}

}  // namespace
}  // namespace byteps_like

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  return byteps_like::fuzzing::WriteSeedsIfAsked(*count, *arguments, byteps_like::WriteSeeds);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace byteps_like;  // NOLINT
  static const std::string best(kernels::InstructionSet());
  if (size < kHead) return 0;
  Require(kernels::SelectInstructionSet((data[1] & kScalar) != 0 ? "scalar" : best));
  Receive(data, size);
  return 0;
}
