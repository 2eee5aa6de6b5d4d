// Partitions of tensors on a GPU, between the device and their mirror in page-locked host memory. Down: on a stream of
// ours that waits for what the user's stream held at Submit, (feedback and encoding, where the codec has a twin on the
// GPU, then) an async copy; a host function hands the partition to its channel, or to the codec threads. Up, when the
// result has landed: an async copy on another stream, (decoding); a host function ends it. Several are under way at a
// time, each on a lane; more urgent ones take the next free lane.
//
// One thread issues all of it. It never synchronises with the device, and allocates only until every lane has had its
// largest partition. Callers' streams wait for a word of page-locked memory per operation (Words), written when the
// operation ends, by whichever thread ends it: also where it fails.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/coding.h"
#include "csrc/engine/operation.h"
#include "csrc/gpu/codec.h"
#include "csrc/gpu/feedback.h"
#include "csrc/gpu/memory.h"
#include "csrc/gpu/stream.h"

namespace byteps_like {

class Engine;

// What the user's stream held at a Submit; shared by the partitions of it.
struct UserWork {
  std::unique_ptr<GpuEvent> event;
  uint32_t waiting = 0;  // partitions that have not been issued. Under the stager's mutex
};

// A partition's way over the device. Belongs to Submit, then to the stager, then (on the wire, or with the codec
// threads) to nobody, then to the stager.
struct Staging {
  explicit Staging(Part& of) : part(&of) {}
  Part* const part;
  bool active = false;       // its round is of a tensor on the device
  bool encodes = false;      // on the device
  DevicePointer device = 0;  // the partition
  std::byte* mirror = nullptr;
  UserWork* start = nullptr;
};

// Words that streams wait for. A word only ever grows, so it serves the next operation while streams may still be about
// to look at it for the last.
class Words {
 public:
  static Result<std::unique_ptr<Words>> Create(const std::shared_ptr<Gpu>& gpu);
  void Take(Operation& operation);        // none if all are taken. Under the engine's mutex, as the next
  void Give(const Operation& operation);  // it has ended: opens it

 private:
  struct Word {
    uint32_t* at;
    uint32_t value;
  };
  std::unique_ptr<PinnedMemory> memory_;
  uint64_t device_ = 0;
  std::vector<Word> words_;
  std::vector<uint32_t> free_;
};

class Stager {
 public:
  static Result<std::unique_ptr<Stager>> Create(Engine& engine, std::shared_ptr<Gpu> gpu, const KernelTable& kernels);
  ~Stager();
  Stager(const Stager&) = delete;

  // Submit's. kInvalid while a graph is captured on `stream`.
  Result<UserWork*> Record(uint64_t stream, uint32_t parts);
  void Begin(Staging& staging);  // after Record; `staging` is set up
  void Drop(UserWork* start);    // nothing will begin with it
  Words& words() { return *words_; }
  bool waits() const { return waits_; }
  // Whether what comes later in `stream` now waits for the operation. False: this driver can't.
  Result<bool> Block(const Operation& operation, uint64_t stream);

  void Landed(Part& part, const Status& status);  // any thread: its result is in the mirror, or it has failed
  void Stop();   // what is on a lane runs on, all else ends with kClosed, also what lands later
  void Drain();  // after Stop, when no operation is on the wire: until no lane is busy, or the device says nothing

  uint64_t down() const { return down_; }  // bytes copied
  uint64_t up() const { return up_; }
  const std::shared_ptr<Gpu>& gpu() const { return gpu_; }
  bool feeds_back() const { return feedback_ != nullptr; }

 private:
  struct Lane {
    Stager* stager = nullptr;
    std::unique_ptr<GpuStream> stream;
    std::unique_ptr<GpuMemory> scratch;  // payload, then workspace, then the report
    GpuReport* report = nullptr;         // page-locked
    Staging* staging = nullptr;          // on it. Under the mutex
    bool is_up = false;
    int64_t began = 0, coded = 0;  // while a timeline is recorded: set by host functions of the lane
  };
  struct Task {
    int32_t priority;
    uint64_t order;
    Staging* staging;
    bool operator<(const Task& other) const {
      return priority != other.priority ? priority < other.priority : order > other.order;
    }
  };
  using Lanes = std::vector<std::unique_ptr<Lane>>;

  Stager(Engine& engine, std::shared_ptr<Gpu> gpu) : engine_(engine), gpu_(std::move(gpu)) {}
  Status Prepare(const KernelTable& kernels);
  Status AddLane(Lanes& lanes, bool is_up, size_t index);
  void Work();
  bool Issue(Lanes& lanes, std::priority_queue<Task>& queue, std::unique_lock<std::mutex>& lock);
  Status Down(Lane& lane, const Staging& staging);
  Status Up(Lane& lane, const Staging& staging);
  Status Encode(Lane& lane, const Staging& staging);
  Status Decode(Lane& lane, const Staging& staging);
  Status Reserve(Lane& lane, const Coding& coding);
  Status Stamp(Lane& lane, cuda::HostFunction function);
  static void Fired(void* lane);
  void Finish(Lane& lane, Staging& staging);
  void TraceLane(const Lane& lane, const Staging& staging) const;
  void Look();  // whether the device has failed: then no host function comes
  void Break(const Status& status);
  Lane* Free(const Lanes& lanes) const;
  bool Busy() const;

  Engine& engine_;
  const std::shared_ptr<Gpu> gpu_;
  std::unique_ptr<GpuFeedbackKernels> feedback_;
  std::unique_ptr<Words> words_;
  std::atomic<bool> waits_{true};
  std::unique_ptr<PinnedMemory> reports_;
  std::atomic<uint64_t> down_{0}, up_{0};
  mutable std::mutex mutex_;  // guards what follows; never held while the driver is called
  std::condition_variable changed_;
  Lanes down_lanes_, up_lanes_;
  std::priority_queue<Task> down_queue_, up_queue_;
  std::vector<std::unique_ptr<UserWork>> starts_;
  std::vector<UserWork*> free_starts_;
  uint64_t order_ = 0;
  bool ending_ = false, joined_ = false;
  Status broken_;
  std::thread thread_;
};

}  // namespace byteps_like
