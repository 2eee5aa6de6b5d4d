// GPUDirect up to the verbs' door: what the (software) driver lends is registered with the arguments that
// ibv_reg_dmabuf_mr takes. No RDMA device here maps a GPU's memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "csrc/gpu/direct_memory.h"
#include "csrc/transport/rdma/verbs/memory_keys.h"
#include "tests/native/gpu/gpu_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr uint64_t kPage = 4096;

struct Call {
  verbs::Pd* pd;
  uint64_t offset, length, iova;
  int fd, access;
};
Call last_call;
int refusal = 0;  // errno of the next one; 0: it succeeds
verbs::Mr made;

verbs::Mr* RegDmaBuf(verbs::Pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
  last_call = {pd, offset, length, iova, fd, access};
  errno = refusal;
  return refusal == 0 ? &made : nullptr;
}

verbs::Library FakeLibrary() {
  verbs::Library library{};
  library.reg_dmabuf_mr = RegDmaBuf;
  return library;
}

}  // namespace

TEST_CASE("gpu direct: the pages around a piece of device memory are lent, and it is registered where it lies") {
  SoftwareCuda cuda;
  const auto gpu = cuda.Open();
  const auto memory = Made(GpuMemory::Allocate(gpu, 16 * kPage));
  const cuda::DeviceAddress address = memory->address() + kPage + 256;
  int fd = -1;
  {
    const RegisteredMemory registered = Made(RegisterDirect(*gpu, address, 2 * kPage));
    const auto region = FindMemory(reinterpret_cast<std::byte*>(address) + 100, 2 * kPage - 100);
    REQUIRE(region.has_value());
    fd = region->dma_buf;
    struct stat lent{};
    REQUIRE(::fstat(fd, &lent) == 0);
    CHECK(lent.st_size == 3 * kPage);
    verbs::Pd pd{};
    auto mr = rdma::RegisterDmaBuf(FakeLibrary(), &pd, *region, verbs::kLocalWrite | verbs::kRemoteWrite);
    REQUIRE(mr.ok());
    CHECK(*mr == &made);
    CHECK(last_call.pd == &pd);
    CHECK(last_call.offset == 256);
    CHECK(last_call.length == 2 * kPage);
    CHECK(last_call.iova == address);  // what work requests name
    CHECK(last_call.fd == fd);
    CHECK(last_call.access == (verbs::kLocalWrite | verbs::kRemoteWrite));
  }
  CHECK(::fcntl(fd, F_GETFD) == -1);  // given back
  CHECK_FALSE(FindMemory(reinterpret_cast<std::byte*>(address), 1).has_value());
}

TEST_CASE("gpu direct: whoever can't do it says so, and what it takes") {
  SoftwareCuda cuda;
  const auto gpu = cuda.Open();
  const auto memory = Made(GpuMemory::Allocate(gpu, kPage));
  cuda.Fail("cuMemGetHandleForAddressRange", cuda::kNotSupported);
  const auto refused = RegisterDirect(*gpu, memory->address(), kPage);
  CHECK(refused.status().code() == Code::kDevice);
  CHECK(Says(refused.status(), "cuMemGetHandleForAddressRange"));
  CHECK(Says(refused.status(), "open kernel modules"));

  const MemoryRegion region{.data = nullptr, .bytes = kPage, .id = 1, .dma_buf = 0};
  CHECK(Says(rdma::RegisterDmaBuf(verbs::Library{}, nullptr, region, 0).status(), "rdma-core 34"));
  refusal = EOPNOTSUPP;
  const auto no_driver = rdma::RegisterDmaBuf(FakeLibrary(), nullptr, region, 0);
  CHECK(no_driver.status().code() == Code::kSystem);
  CHECK(Says(no_driver.status(), "a driver that maps dma-bufs"));
  refusal = 0;
}

// Of the machine of scripts/rdma_vm.sh: rdma_rxe maps no dma-bufs, and its library says so.
TEST_CASE("gpu direct: an rdma device that maps no dma-bufs is named") {
  if (!rdma::IsViable().ok()) return;
  auto device = rdma::Device::Open(rdma::LocalAddresses().front().device);
  REQUIRE(device.ok());
  const Fd fd(::memfd_create("no dma-buf", MFD_CLOEXEC));
  REQUIRE(::ftruncate(fd.get(), kPage) == 0);
  const MemoryRegion region{.data = nullptr, .bytes = kPage, .id = 1, .dma_buf = fd.get()};
  auto made = (*device)->Register(region, verbs::kLocalWrite);
  CHECK(made.status().code() == Code::kSystem);
  CHECK(Says(made.status(), (*device)->name()));
  CHECK(Says(made.status(), "ibv_reg_dmabuf_mr"));
}

}  // namespace byteps_like::testing
