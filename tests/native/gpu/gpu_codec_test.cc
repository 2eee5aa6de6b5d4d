// Kernels against the codecs of the CPU: the same bits, over sizes, tails, addresses and kinds of numbers.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <vector>

#include "tests/native/gpu/gpu_twin.h"

namespace byteps_like {
namespace {

using testing::Filling;
using testing::GpuTwin;

// Of every codec of compression/gpu/registry.cc, in the forms that run other code.
constexpr const char* kTwinSpecs[] = {
    "fp16",
    "bf16",
    "fp8:block=32,format=e4m3",
    "fp8:block=256,format=e5m2",
    "int:bits=8,block=256,rounding=nearest,scale=own,seed=0",
    "int:bits=4,block=256,rounding=stochastic,scale=shared,seed=0",
    "fixed:bits=32,block=256",
    "fixed:bits=16,block=256",
    "fixed:bits=32,block=19",
    "fixed:bits=16,block=10000",
    "onebit:block=32768",
    "onebit:block=64",
    "onebit:block=2080",
    "topk:ratio=0.01,select=exact",
    "topk:ratio=0.2,select=sampled",
    "randomk:ratio=0.01,scale=1,seed=0",
    "chunktopk:chunk=32,ratio=0.3",
    "thc:bits=4,clamp=32,seed=0,table=auto",
    "bitmap",
    "blocksparse:block=256,dense=0.8",
    "blocksparse:block=7,dense=1",
    "coo",
};

std::string_view NameOf(std::string_view spec) { return spec.substr(0, spec.find(':')); }

}  // namespace

TEST_CASE("gpu codecs: each of the registry is looked at") {
  for (const std::string& name : GpuCodecNames()) {
    CHECK_MESSAGE(std::ranges::any_of(kTwinSpecs, [&](std::string_view spec) { return NameOf(spec) == name; }), name);
    CHECK(!GpuSource(name).empty());
  }
}

TEST_CASE("gpu codecs: the bits of the CPU") {
  for (const char* const spec : kTwinSpecs) {
    GpuTwin twin(spec, 3);
    for (const Filling filling : testing::kFillings) twin.Round(5003, filling);
    for (const uint32_t numel : {1u, 7u, 8u, 31u, 32u, 33u, 255u, 256u, 257u, 1000u, 4096u}) {
      twin.Round(numel, Filling::kNormal);
      twin.Round(numel, Filling::kAny, 1);
    }
    twin.Round(40'000, Filling::kNormal, 3);
  }
}

TEST_CASE("gpu codecs: results of any bytes and of any length are decoded or refused as on the CPU") {
  std::mt19937 random(1);
  for (const char* const spec : kTwinSpecs) {
    GpuTwin twin(spec, 3);
    for (const uint32_t numel : {1u, 33u, 700u}) {
      const uint32_t whole = twin.codec().Plan(numel).result;
      for (const uint32_t bytes : {whole, whole, whole - 1, 0u}) {
        std::vector<std::byte> result(bytes);
        for (std::byte& byte : result) byte = static_cast<std::byte>(random());
        twin.Arbitrary(numel, result);
      }
    }
  }
}

TEST_CASE("gpu codecs: what is missing is named") {
  auto coded = MakeCodec("bf16", 2);
  REQUIRE(coded.ok());
  CHECK(MakeGpuCodec(*coded, {}).status().message() == "the GPU kernel casts_encode_bf16 was not compiled");
  auto other = MakeCodec("natural:seed=0", 2);
  REQUIRE(other.ok());
  CHECK(MakeGpuCodec(*other, {}).status().message() ==
        "codec natural does not run on GPUs: no kernels are written for it; fp8 has them");
}

}  // namespace byteps_like
