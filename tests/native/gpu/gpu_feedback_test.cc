// Error feedback and the sum of peers' arrays on the software GPU: the bits of the CPU.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "csrc/engine/coding/feedback.h"
#include "csrc/gpu/feedback.h"
#include "csrc/gpu/peers/peers.h"
#include "csrc/kernels/kernels.h"
#include "tests/native/gpu/gpu_twin.h"

namespace byteps_like {
namespace {

using software_gpu::Address;
using testing::ExactBuffer;
using testing::Filling;

ExactBuffer Filled(uint32_t numel, Filling filling, uint32_t seed) {
  ExactBuffer buffer(numel * sizeof(float));
  std::mt19937 random(seed);
  for (uint32_t i = 0; i < numel; ++i) buffer.floats()[i] = testing::FillingAt(filling, i, numel, random);
  return buffer;
}

// x, residual and momentum of one side.
struct Side {
  ExactBuffer x, residual, momentum;
  Side(uint32_t numel, Filling filling)
      : x(Filled(numel, filling, 1)), residual(Filled(numel, filling, 2)), momentum(Filled(numel, filling, 3)) {
    for (uint32_t i = 0; i < numel; i += 3) residual.floats()[i] = x.floats()[i];  // not sent: for the mask
  }
};

void CheckFeedback(uint32_t numel, Filling filling, uint32_t choice) {
  CAPTURE(numel);
  CAPTURE(choice);
  const bool has_residual = (choice & 1u) != 0, has_momentum = (choice & 2u) != 0;
  const bool nesterov = (choice & 4u) != 0, masked = has_residual && has_momentum && (choice & 8u) != 0;
  Side cpu(numel, filling), gpu(numel, filling);
  const Feedback on_cpu{has_residual ? cpu.residual.floats().data() : nullptr,
                        has_momentum ? cpu.momentum.floats().data() : nullptr, 0.9f, nesterov, masked};
  const GpuFeedback on_gpu{has_residual ? Address(gpu.residual.data()) : 0,
                           has_momentum ? Address(gpu.momentum.data()) : 0, 0.9f, nesterov, masked};
  auto kernels = GpuFeedbackKernels::Make(software_gpu::Handles());
  REQUIRE(kernels.ok());
  software_gpu::SoftwareLauncher launcher;
  Settle(on_cpu, cpu.x.floats().data(), numel);
  REQUIRE(kernels->Settle(launcher, on_gpu, Address(gpu.x.data()), numel).ok());
  CHECK(testing::FirstDifference(cpu.residual.floats(), gpu.residual.floats()) == "");
  CHECK(testing::FirstDifference(cpu.momentum.floats(), gpu.momentum.floats()) == "");
  Compensate(on_cpu, 1.7f, cpu.x.floats().data(), numel);
  REQUIRE(kernels->Compensate(launcher, on_gpu, 1.7f, Address(gpu.x.data()), numel).ok());
  CHECK(testing::FirstDifference(cpu.x.floats(), gpu.x.floats()) == "");
  CHECK(testing::FirstDifference(cpu.momentum.floats(), gpu.momentum.floats()) == "");
}

bool SameNumbers(DType dtype, const ExactBuffer& a, const ExactBuffer& b, size_t numel) {
  std::vector<float> left(numel), right(numel);
  kernels::Cast(dtype, DType::kFloat32, left.data(), const_cast<ExactBuffer&>(a).data(), numel);
  kernels::Cast(dtype, DType::kFloat32, right.data(), const_cast<ExactBuffer&>(b).data(), numel);
  return testing::FirstDifference(left, right).empty();
}

void CheckSum(DType dtype, size_t count, size_t numel, uint32_t divisor) {
  CAPTURE(NameOf(dtype));
  CAPTURE(count);
  CAPTURE(numel);
  const size_t bytes = numel * SizeOf(dtype);
  std::vector<std::unique_ptr<ExactBuffer>> arrays;
  std::vector<const void*> sources;
  std::vector<DevicePointer> addresses;
  std::mt19937 random(static_cast<uint32_t>(count));
  for (size_t s = 0; s < count; ++s) {
    arrays.push_back(std::make_unique<ExactBuffer>(bytes));
    for (std::byte& byte : arrays[s]->bytes()) byte = static_cast<std::byte>(random());
    sources.push_back(arrays[s]->data());
    addresses.push_back(Address(arrays[s]->data()));
  }
  ExactBuffer expected(bytes);
  void* const destination[] = {expected.data()};
  kernels::ReduceMany(Op::kSum, dtype, destination, sources, numel, divisor);
  auto sum = GpuPeerSum::Make(software_gpu::Handles());
  REQUIRE(sum.ok());
  software_gpu::SoftwareLauncher launcher;
  // In place of the last one.
  REQUIRE(sum->Sum(launcher, dtype, addresses, addresses.back(), numel, divisor).ok());
  CHECK(SameNumbers(dtype, expected, *arrays.back(), numel));
}

}  // namespace

TEST_CASE("gpu feedback: the bits of the CPU") {
  for (const Filling filling : {Filling::kNormal, Filling::kAny})
    for (uint32_t choice = 0; choice < 16; ++choice) CheckFeedback(1027, filling, choice);
  CheckFeedback(1, Filling::kNormal, 15);
}

TEST_CASE("gpu sums of peers: the bits of the CPU") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
    for (const size_t count : {1u, 2u, 5u, 8u}) CheckSum(dtype, count, 2053, count == 5 ? 5 : 1);
  software_gpu::SoftwareLauncher launcher;
  const std::vector<DevicePointer> none;
  auto sum = GpuPeerSum::Make(software_gpu::Handles());
  CHECK(sum->Sum(launcher, DType::kFloat32, none, 0, 1, 1).code() == Code::kInvalid);
  CHECK(sum->Sum(launcher, DType::kInt32, none, 0, 1, 1).message() == "sums of GPU arrays of int32");
}

}  // namespace byteps_like
