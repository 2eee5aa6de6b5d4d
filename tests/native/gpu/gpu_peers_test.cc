// Reductions among the GPUs of a host's ranks, over the software GPU: ranks are threads here, processes in
// tests/unit/torch/devices/test_gpu_peers.py.
#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "csrc/gpu/peers/peers_group.h"
#include "tests/native/gpu/gpu_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr size_t kStage = 4096;

// Ranks that share a page; each has a stream and an array on the device, and its slice apart.
class Host {
 public:
  explicit Host(uint32_t size, double timeout = 20) : page_(Made(SharedBuffer::Create(PeersPage::kBytes))) {
    for (uint32_t rank = 0; rank < size; ++rank) {
      Rank one;
      one.gpu = cuda.Open(static_cast<int>(rank % 2));
      one.page = Made(SharedBuffer::Map(::dup(page_->fd())));
      one.peers = Made(GpuPeers::Create(one.gpu, SoftwareCuda::Kernels(), one.page,
                                        {rank, std::vector<int>(size, 0), kStage, timeout}));
      one.stream = Made(GpuStream::Create(one.gpu));
      ranks.push_back(std::move(one));
    }
    std::vector<std::string> exported;
    for (Rank& one : ranks) exported.push_back(Made(one.peers->Export()));
    for (Rank& one : ranks) REQUIRE(one.peers->Join(exported).ok());
  }
  ~Host() {
    Each([](Rank& one) { one = {}; });
  }

  struct Rank {
    std::shared_ptr<Gpu> gpu;
    std::shared_ptr<SharedBuffer> page;
    std::unique_ptr<GpuStream> stream;
    std::unique_ptr<GpuMemory> whole, own;
    std::unique_ptr<GpuPeers> peers;
    PeersArray array;

    void Fill(uint64_t numel, float value) {
      whole = Made(GpuMemory::Allocate(gpu, numel * sizeof(float)));
      own = Made(GpuMemory::Allocate(gpu, numel * sizeof(float)));
      for (uint64_t i = 0; i < numel; ++i)
        reinterpret_cast<float*>(whole->address())[i] = value * static_cast<float>(i);
      array = {whole->address(), own->address(), numel, DType::kFloat32};
    }
  };

  void Each(const std::function<void(Rank&)>& body) {
    std::vector<std::thread> threads;
    for (Rank& one : ranks) threads.emplace_back([&one, &body] { body(one); });
    for (std::thread& thread : threads) thread.join();
  }

  SoftwareCuda cuda;
  std::vector<Rank> ranks;

 private:
  const std::shared_ptr<SharedBuffer> page_;
};

}  // namespace

TEST_CASE("gpu peers: sums and gathers of any size, in pieces of the stage, one call behind the other") {
  Host host(3);
  for (const uint64_t numel : {uint64_t{1}, uint64_t{2}, uint64_t{7}, uint64_t{4099}}) {
    for (uint32_t rank = 0; rank < 3; ++rank) host.ranks[rank].Fill(numel, static_cast<float>(rank + 1));
    host.Each([](Host::Rank& one) {
      const cuda::Stream stream = one.stream->handle();
      CHECK(one.peers->ReduceScatter(stream, one.array, 2).ok());
      CHECK(one.peers->AllGather(stream, one.array).ok());
      CHECK(one.peers->ReduceScatter(stream, one.array, 1).ok());  // of what was gathered: three times as much
      CHECK(one.peers->AllGather(stream, one.array).ok());
      CHECK(one.stream->Synchronize().ok());
      CHECK(one.peers->status().ok());
    });
    for (const Host::Rank& one : host.ranks) {
      const auto* const found = reinterpret_cast<const float*>(one.whole->address());
      for (uint64_t i = 0; i < numel; ++i) REQUIRE(found[i] == 9 * static_cast<float>(i));
    }
  }
}

TEST_CASE("gpu peers: who doesn't come is named, and nobody's stream waits on") {
  Host host(2, 0.05);
  for (Host::Rank& one : host.ranks) one.Fill(100, 1);
  CHECK(host.ranks[0].peers->ReduceScatter(host.ranks[0].stream->handle(), host.ranks[0].array, 1).ok());
  CHECK(host.ranks[0].stream->Synchronize().ok());
  const Status late = host.ranks[0].peers->status();
  CHECK(late.code() == Code::kTimeout);
  CHECK(Says(late, "local rank 1 (pid 0) has not come to a reduction among the GPUs of this host"));
  const Status told = host.ranks[1].peers->AllGather(host.ranks[1].stream->handle(), host.ranks[1].array);
  CHECK(told.code() == Code::kPeerLost);
  CHECK(Says(told, "local rank 0 (pid 0) has given up"));
}

TEST_CASE("gpu peers: who doesn't come is named also where the driver blocks, its queue being full") {
  Host host(2, 0.05);
  host.cuda.QueueLength(64);
  Host::Rank& one = host.ranks[0];
  one.Fill(100'000, 1);  // some 400 commands
  CHECK(one.peers->ReduceScatter(one.stream->handle(), one.array, 1).ok());
  CHECK(one.stream->Synchronize().ok());
  CHECK(one.peers->status().code() == Code::kTimeout);
}

TEST_CASE("gpu peers: a rank that leaves or fails ends the others' wait") {
  for (const bool fails : {false, true}) {
    Host host(2);
    for (Host::Rank& one : host.ranks) one.Fill(100, 1);
    Host::Rank &stays = host.ranks[0], &goes = host.ranks[1];
    CHECK(stays.peers->ReduceScatter(stays.stream->handle(), stays.array, 1).ok());
    if (fails) {
      host.cuda.Fail("cuStreamWriteValue32_v2", cuda::kInvalidValue);
      CHECK(goes.peers->ReduceScatter(goes.stream->handle(), goes.array, 1).code() == Code::kDevice);
      CHECK(goes.stream->Synchronize().ok());
    } else {
      goes.peers.reset();
    }
    CHECK(stays.stream->Synchronize().ok());
    CHECK(stays.peers->status().code() == (fails ? Code::kPeerLost : Code::kClosed));
  }
}

TEST_CASE("gpu peers: what can't be is refused") {
  SoftwareCuda cuda;
  const auto gpu = cuda.Open();
  const auto make = [&](const KernelTable& kernels, std::vector<int> pids, size_t page) {
    return GpuPeers::Create(gpu, kernels, Made(SharedBuffer::Create(page)), {0, std::move(pids), kStage, 1}).status();
  };
  CHECK(Says(make({}, {0, 0}, 4096), "peers_sum_float32"));
  CHECK(Says(make(SoftwareCuda::Kernels(), {0}, 4096), "2 to 8"));
  CHECK(Says(make(SoftwareCuda::Kernels(), std::vector<int>(9, 0), 4096), "2 to 8"));
  CHECK(Says(make(SoftwareCuda::Kernels(), {0, 0}, 64), "a page of 64 bytes"));
  CHECK(make(SoftwareCuda::Kernels(), {0, 99999999}, 4096).code() == Code::kPeerLost);
  Host host(2);
  host.ranks[0].Fill(8, 1);
  host.ranks[0].array.dtype = DType::kInt32;
  CHECK(host.ranks[0].peers->ReduceScatter(nullptr, host.ranks[0].array, 1).code() == Code::kInvalid);
  CHECK(host.ranks[0].peers->status().ok());  // nothing was queued, so nobody waits for it
}

}  // namespace byteps_like::testing
