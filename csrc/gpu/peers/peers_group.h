// Reduce-scatter and all-gather among the GPUs of the ranks of one host, or among ranks that share a GPU, over memory
// that they map of each other (CUDA IPC).
//
// Each rank has a stage, device memory of its own that all others map once. A reduce-scatter copies the slices that are
// the others' into it, meets, sums its own slice of all stages by one kernel (peers.cu), and meets again, after which
// the stages are free; an all-gather copies its slice into it, meets, copies the others', and meets. What is longer
// than the stage goes in pieces. A meeting is a word per rank in a page of host memory that all have page-locked: each
// rank's stream writes its own and waits for the others' (cuStreamWriteValue32, cuStreamWaitValue32), so no host waits,
// and no kernel spins on a device that another rank may need.
//
// Stages instead of the caller's own memory, at the price of a copy within the device: a framework's allocator may give
// memory that can't be exported, or give it back while others have it mapped.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/fd.h"
#include "csrc/base/thread.h"
#include "csrc/gpu/peers/peers_page.h"
#include "csrc/gpu/stream.h"

namespace byteps_like {

struct PeersOptions {
  uint32_t rank = 0;
  std::vector<int> pids;  // of all ranks of the host, by rank; 0: not watched
  size_t stage_bytes = 0;
  double timeout = 0;  // seconds that a stream waits for another rank's
};

// An array that each rank has a slice of: rank r the elements from r * share, `share` of them or what is left.
struct PeersArray {
  DevicePointer whole = 0;
  DevicePointer own = 0;  // this rank's slice: apart, or its place in `whole`
  uint64_t numel = 0;
  DType dtype = DType::kFloat32;
};

// Thread-safe. Calls of a kind are made in the same order by all ranks, with the same sizes; those of two kinds needn't
// be. Everything runs in the order of the given stream; nothing blocks, but for a driver whose queue is full.
//
// A rank that dies, or doesn't come within the timeout, or fails: streams go on, what they then write is undefined, and
// every later call, `status` too, says why: kPeerLost, kTimeout, kClosed where it has left in order, or the driver's.
// The data of a call are right if `status` is ok after an event behind it.
class GpuPeers {
 public:
  // `page` is shared by the ranks, zero-filled. kInvalid: kernels are missing, more than 8 ranks. kDevice: this driver
  // can't have streams wait; or what CUDA says.
  static Result<std::unique_ptr<GpuPeers>> Create(std::shared_ptr<Gpu> gpu, const KernelTable& kernels,
                                                  std::shared_ptr<SharedBuffer> page, PeersOptions options);
  // Waits for what is queued for some seconds, then has it go on. Freed memory isn't the others' to read any more: by
  // then all have left, or know that this has failed.
  ~GpuPeers();
  GpuPeers(const GpuPeers&) = delete;

  // For the others' `Join`: this rank's stage.
  Result<std::string> Export() const;
  // By rank. Before the first call, once. kDevice: the stage of some rank can't be mapped here.
  Status Join(std::span<const std::string> exported);

  // own[i] = (sum over ranks of whole[own slice][i], in their order, in fp32) / divisor. fp32, fp16, bf16.
  Status ReduceScatter(cuda::Stream stream, const PeersArray& array, uint32_t divisor);
  // whole = the `own` of all ranks.
  Status AllGather(cuda::Stream stream, const PeersArray& array);

  Status status() const;
  void Fail(Status why);  // no rank waits for this one any more. The first counts.

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Lane {
    // Held by calls, also where the driver blocks as a stream's queue is full: then only the watch can have it go on.
    std::mutex calls;
    std::vector<DevicePointer> stages;  // by rank
    std::atomic<uint32_t> step{0};      // meetings that are queued
    std::unique_ptr<GpuEvent> last;     // behind them
    bool issuing = false;               // a call is being queued
    bool flying = false;
    uint32_t seen = 0;  // the meeting that its stream waits at, and
    Time since{};       // from when on
  };
  struct Slice {
    uint64_t begin, numel;
  };

  GpuPeers(std::shared_ptr<Gpu> gpu, GpuPeerSum sum, PeersOptions options);
  Status Start(std::shared_ptr<SharedBuffer> page);
  Status WatchPids();

  uint32_t size() const { return static_cast<uint32_t>(options_.pids.size()); }
  Slice SliceOf(const PeersArray& array, uint32_t rank) const;
  Status Begin(Lane& lane, cuda::Stream stream);
  void SetIssuing(Lane& lane);
  Status End(Lane& lane, cuda::Stream stream, Status status);
  Status Meet(uint32_t lane, cuda::Stream stream);
  Status Copy(cuda::Stream stream, DevicePointer to, DevicePointer from, uint64_t bytes);
  Status ScatterPieces(cuda::Stream stream, const PeersArray& array, uint32_t divisor);
  Status GatherPieces(cuda::Stream stream, const PeersArray& array);
  Status SumOwn(cuda::Stream stream, const PeersArray& array, uint64_t at, uint64_t most, uint32_t divisor);

  // The watch: a thread that sleeps while nothing is in flight and nobody dies.
  void Watch();
  void Look();  // under mutex_, as all below
  void LookAt(uint32_t number, Time now);
  void OnDeath(uint32_t rank);
  void FailNow(Status why);
  Status StatusNow() const;
  bool Flying() const;
  bool AnyHere() const;
  std::string Named(uint32_t rank) const;
  void Wake() const;

  const std::shared_ptr<Gpu> gpu_;
  const GpuPeerSum sum_;
  const PeersOptions options_;
  std::unique_ptr<PeersPage> page_;
  std::unique_ptr<GpuMemory> stage_;
  std::vector<std::unique_ptr<GpuMemory>> mapped_;  // by rank
  std::vector<Fd> deaths_;                          // by rank
  Fd wake_;

  mutable std::mutex mutex_;  // of what the watch reads; never held where the driver may block
  std::condition_variable landed_;
  std::array<Lane, PeersPage::kLanes> lanes_;
  Status failure_;
  std::vector<bool> dead_;  // by rank
  bool joined_ = false, closing_ = false, ending_ = false;
  Thread watch_;
};

}  // namespace byteps_like
