// No codec allocates in a round: memory comes from pools of the engine and the server.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string_view>
#include <vector>

#include "compression/registry.h"
#include "csrc/codec/codec.h"
#include "csrc/engine/coding/feedback.h"
#include "tests/native/compression/codec_specs.h"

namespace {

thread_local uint64_t allocations = 0;

void* Allocate(size_t size, size_t alignment) {
  ++allocations;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, size == 0 ? 1 : size) != 0) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t size) { return Allocate(size, alignof(std::max_align_t)); }
void* operator new(size_t size, std::align_val_t alignment) { return Allocate(size, static_cast<size_t>(alignment)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace byteps_like {
namespace {

constexpr uint32_t kNumel = 40'000;
constexpr Draw kDraw = {.key = 7, .round = 3, .rank = 0};

std::vector<float> Aligned(uint64_t bytes) { return std::vector<float>(bytes / sizeof(float) + 16); }

std::byte* Begin(std::vector<float>& memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return reinterpret_cast<std::byte*>((address + 63) / 64 * 64);
}

// A round of one contribution, whose memory was there before.
class PreparedRound {
 public:
  explicit PreparedRound(const Codec& codec) : codec_(codec), plan_(codec.Plan(kNumel)) {
    for (uint32_t i = 0; i < kNumel; i += 1 + i % 600) x_[i] = static_cast<float>(i % 17) - 8;
  }

  void Run() {
    Compensate({residual_.data(), momentum_.data(), 0.9f}, 1, x_.data(), kNumel);
    if (plan_.prelude != 0) codec_.Prepare(x_, kDraw, Begin(workspace_), Begin(prelude_));
    const uint32_t size = codec_.Encode(x_, kDraw, Begin(prelude_), Begin(workspace_), Begin(payload_));
    const Bytes payload(Begin(payload_), size);
    codec_.Residual(x_, kDraw, Begin(prelude_), Begin(workspace_), payload, residual_.data());
    Settle({residual_.data(), momentum_.data(), 0.9f}, x_.data(), kNumel);
    const Bytes result = codec_.trait() == Trait::kDense ? payload : Sum(payload);
    decoded_ = codec_.Decode(result, 1, kDraw, Begin(prelude_), Begin(workspace_), 1.0f, x_).ok();
  }

  bool decoded() const { return decoded_; }

 private:
  Bytes Sum(Bytes payload) {
    codec_.Reset(kNumel, Begin(accumulator_));
    decoded_ = codec_.Accumulate(kNumel, payload, Begin(workspace_), Begin(accumulator_)).ok();
    return {Begin(result_), codec_.Emit(kNumel, 1, kDraw, Begin(workspace_), Begin(accumulator_), Begin(result_))};
  }

  const Codec& codec_;
  const CodecPlan plan_;
  bool decoded_ = false;
  std::vector<float> x_ = std::vector<float>(kNumel), residual_ = x_, momentum_ = x_;
  std::vector<float> prelude_ = Aligned(plan_.prelude), payload_ = Aligned(plan_.payload);
  std::vector<float> result_ = Aligned(plan_.result), accumulator_ = Aligned(plan_.accumulator);
  std::vector<float> workspace_ = Aligned(plan_.workspace);
};

}  // namespace

TEST_CASE("codecs: nothing is allocated in a round") {
  const uint64_t none = allocations;
  ::operator delete(::operator new(1));
  REQUIRE(allocations == none + 1);
  for (const char* spec : testing::kSpecs) {
    CAPTURE(spec);
    auto made = MakeCodec(spec, 3);
    REQUIRE(made.ok());
    PreparedRound round(**made);
    round.Run();
    const uint64_t before = allocations;
    round.Run();
    const uint64_t after = allocations;
    CHECK(after == before);
    const bool may_be_full = std::string_view(spec).starts_with("sketch");
    CHECK((round.decoded() || may_be_full));
  }
}

}  // namespace byteps_like
