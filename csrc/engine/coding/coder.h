// The codec threads: they encode partitions before these go to the channels, and decode results that have landed. One
// queue: more urgent partitions first, among equally urgent ones decoding first, then age.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <queue>
#include <span>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/thread.h"
#include "csrc/engine/coding/coding.h"
#include "csrc/engine/operation.h"

namespace byteps_like {

class Coder {
 public:
  // With at least one thread, and fewer than asked for if no more can be had. kCapacity: none.
  static Result<std::unique_ptr<Coder>> Start(PartSink& sink, uint32_t threads);
  ~Coder();  // after Stop
  Coder(const Coder&) = delete;

  // Any thread. `coding.part` has its operation; its next round begins.
  void Begin(Coding& coding);
  // I/O thread: a part of it (prelude or payload) has come back, or failed.
  void Landed(Part& part, const Status& status);
  // Finishes the partitions that are being coded; all others end with kClosed, including those that land later. Blocks.
  // Idempotent.
  void Stop();

  uint64_t bytes_in() const { return bytes_in_; }    // encoded: before,
  uint64_t bytes_out() const { return bytes_out_; }  // and after

 private:
  explicit Coder(PartSink& sink) : sink_(sink) {}
  struct Task {
    int32_t priority;
    CodingStage stage;
    uint64_t order;
    Coding* coding;
    bool operator<(const Task& other) const {
      if (priority != other.priority) return priority < other.priority;
      return stage != other.stage ? stage < other.stage : order > other.order;
    }
  };

  void Queue(Coding& coding, CodingStage stage);
  void Work();
  void Step(Coding& coding, PooledBuffer& own);  // `own`: the thread's workspace
  void Prepare(Coding& coding);
  void Encode(Coding& coding, PooledBuffer& own);
  void Decode(Coding& coding, PooledBuffer& own);
  Status DecodeResult(Coding& coding, std::byte* workspace);
  // Decodes a result, of so many contributions, to an array.
  using DecodeAs = std::function<Status(uint32_t contributors, std::span<float> out)>;
  Status DecodeInParts(Coding& coding, const DecodeAs& decode);
  std::byte* Workspace(const Coding& coding, PooledBuffer& own);
  void End(Coding& coding, const Status& status);

  PartSink& sink_;
  BufferPool pool_;
  std::atomic<uint64_t> bytes_in_{0}, bytes_out_{0};
  std::mutex mutex_;  // guards the members below; never held while bytes are coded
  ConditionVariable changed_;
  std::priority_queue<Task> queue_;
  uint64_t order_ = 0;
  bool ending_ = false;
  std::vector<Thread> threads_;
};

}  // namespace byteps_like
