// A lane, given what no honest server or device says; and the memory that lanes share.
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <limits>

#include "compression/gpu/registry.h"
#include "csrc/codec/payload.h"
#include "csrc/engine/staging/lane.h"
#include "csrc/kernels/kernels.h"
#include "tests/native/compression/coded_fixture.h"
#include "tests/native/gpu/gpu_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr uint32_t kNumel = 1024;

// A partition on a lane of its own.
struct OneLane {
  OneLane(const std::shared_ptr<Gpu>& gpu, const std::string& spec) : supplies(gpu), codec(CodecOf(spec, 2)) {
    supplies.feedback = std::make_unique<GpuFeedbackKernels>(Made(GpuFeedbackKernels::Make(SoftwareCuda::Kernels())));
    lane = Made(Lane::Create(supplies));
    memory = Made(GpuMemory::Allocate(gpu, kNumel * 4));
    mirror = Made(PinnedMemory::Lock(gpu, Made(SharedBuffer::Create(kNumel * 4))));
    twin = Made(MakeGpuCodec(codec, SoftwareCuda::Kernels()));
    part.bytes = kNumel * 4;
    part.coding = &coding;
    coding.codec = codec.get();
    coding.twin = twin.get();
    coding.plan = codec->Plan(kNumel);
    coding.numel = kNumel;
    coding.spec_crc = kernels::Crc32c(0, codec->spec().data(), codec->spec().size());
    coding.part = &part;
    coding.payload = {mirror->data(), mirror->bytes()};
    staging.device = memory->address();
    staging.mirror = mirror->data();
    const LaneNeeds needs(coding);
    REQUIRE(supplies.scratch.Reserve(needs.scratch).ok());
    REQUIRE(supplies.pool.Reserve(needs.pinned).ok());
  }
  ~OneLane() {
    (void)lane->stream().Synchronize();
    GiveBack(staging, supplies.pool);
  }
  Status Run(StagingStage stage) {
    staging.stage = stage;
    const CurrentContext current(*supplies.gpu);
    const Status issued = lane->Issue(staging);
    CHECK(lane->stream().Synchronize().ok());
    return issued.ok() ? lane->Land(staging, 0) : issued;
  }

  LaneSupplies supplies;
  const std::shared_ptr<const Codec> codec;
  GpuCodecPointer twin;
  std::unique_ptr<GpuMemory> memory;
  std::unique_ptr<PinnedMemory> mirror;
  Part part;
  Coding coding;
  Staging staging{part};
  std::unique_ptr<Lane> lane;  // goes first
};

// Its kernels say that the payload has so many bytes.
class LyingCodec : public GpuCodec {
 public:
  LyingCodec(std::shared_ptr<const Codec> codec, uint8_t byte) : GpuCodec(std::move(codec)), byte_(byte) {}
  bool varies() const override { return true; }
  Status Encode(Launcher& launcher, const GpuRound& round, DevicePointer) const override {
    return launcher.Fill(round.report, byte_, sizeof(GpuReport));
  }
  Status Residual(Launcher&, const GpuRound&, DevicePointer, DevicePointer) const override { return Status(); }
  Status Decode(Launcher&, const GpuRound&, DevicePointer, uint32_t, uint32_t, float) const override {
    return Status();
  }

 private:
  const uint8_t byte_;
};

}  // namespace

TEST_CASE("gpu lane: results that can't be are refused, whatever length or header a server sends") {
  SoftwareCuda cuda;
  const auto gpu = cuda.Open();
  for (const char* const spec : {"onebit:block=256", "fp16"}) {
    CAPTURE(spec);
    OneLane one(gpu, spec);
    const uint32_t head = one.coding.head(), right = head + one.coding.plan.result;
    const auto receive = [&](uint32_t length, PayloadHeader header) {
      CAPTURE(length);
      std::memset(one.mirror->data(), 0, one.mirror->bytes());
      if (head != 0) EncodePayloadHeader(header, one.mirror->data());
      one.part.expected = length;
      return one.Run(StagingStage::kDecode).code();
    };
    const PayloadHeader good{.codec = one.codec->id(), .count = 2, .numel = kNumel, .spec = one.coding.spec_crc};
    CHECK(receive(right, good) == Code::kOk);
    for (const uint32_t length : {0u, 1u, head, right - 1, right + 1, right + 64, 1u << 31,
                                  std::numeric_limits<uint32_t>::max() - head, std::numeric_limits<uint32_t>::max()})
      CHECK(receive(length, good) == Code::kCorrupt);
    if (head == 0) continue;
    CHECK(receive(head - 1, good) == Code::kCorrupt);
    std::array<PayloadHeader, 4> wrong{good, good, good, good};
    wrong[0].count = 0;
    wrong[1].numel = kNumel + 1;
    wrong[2].spec ^= 1;
    wrong[3].codec ^= 1;
    for (const PayloadHeader& header : wrong) CHECK(receive(right, header) == Code::kCorrupt);
  }
}

TEST_CASE("gpu lane: a payload that is longer than the codec can give is no payload") {
  SoftwareCuda cuda;
  const auto gpu = cuda.Open();
  for (const uint8_t byte : {uint8_t{1}, uint8_t{0x7F}, uint8_t{0xFF}}) {
    OneLane one(gpu, "coo");
    const LyingCodec lying(one.codec, byte);
    one.coding.twin = &lying;
    one.coding.payload = {};
    CHECK(one.Run(StagingStage::kEncode).code() == Code::kDevice);
  }
}

TEST_CASE("gpu lane: scratch grows beside what is in use, and nothing is freed before it goes") {
  SoftwareCuda cuda;
  const auto gpu = cuda.Open();
  Scratch scratch(gpu);
  const uint32_t one = scratch.AddLane(), two = scratch.AddLane();
  CHECK(scratch.Of(one) == 0);
  REQUIRE(scratch.Reserve(1000).ok());
  const DevicePointer before = scratch.Of(two);
  CHECK(before - scratch.Of(one) == 1024);
  REQUIRE(scratch.Reserve(900).ok());
  CHECK(scratch.Of(two) == before);
  REQUIRE(scratch.Reserve(1025).ok());
  CHECK(scratch.Of(two) - scratch.Of(one) == 2048);  // at least twice as much
  CHECK(gpu->held() == 2 * 1024 + 2 * 2048);
  std::memset(reinterpret_cast<void*>(before), 0, 1024);  // still there
  cuda.Fail("cuMemAlloc_v2", cuda::kOutOfMemory);
  CHECK(scratch.Reserve(5000).code() == Code::kCapacity);
  CHECK(scratch.Of(two) - scratch.Of(one) == 2048);
}

TEST_CASE("gpu pinned pool: what was reserved can be taken without the driver; what is released is reserved anew") {
  SoftwareCuda cuda;
  const auto gpu = cuda.Open();
  PinnedPool pool(gpu);
  CHECK(pool.Take(100).status().code() == Code::kInvalid);
  constexpr std::array<size_t, 3> kSizes{100, 100, 8 << 20};
  cuda.Fail("cuMemHostRegister_v2", cuda::kOutOfMemory);
  CHECK(pool.Reserve(kSizes).code() == Code::kCapacity);
  REQUIRE(pool.Reserve(kSizes).ok());
  const uint64_t objects = cuda.objects();
  PooledBuffer first = Made(pool.Take(100)), second = Made(pool.Take(100)), large = Made(pool.Take(8 << 20));
  CHECK(first.data != second.data);
  CHECK(!pool.Take(100).ok());
  std::memset(large.data, 1, 8 << 20);
  for (PooledBuffer* const buffer : {&first, &second, &large}) pool.Give(*buffer);
  pool.Release(kSizes);
  REQUIRE(pool.Reserve(kSizes).ok());
  CHECK(cuda.objects() == objects);
  REQUIRE(pool.Reserve(kSizes).ok());
  CHECK(cuda.objects() == objects + 1);
}

}  // namespace byteps_like::testing
