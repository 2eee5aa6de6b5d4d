// What stands behind the stand-in for libcuda.so.1 (libcuda.cc): devices whose memory is the host's and whose streams
// are threads, with what was queued when, so that misuse shows. Test-only.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/gpu/cuda_abi.h"

namespace software_gpu {

using namespace byteps_like::cuda;  // NOLINT: the driver's types

struct Range {
  uint64_t begin = 0, end = 0;
  bool written = false;
  bool Overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
};

class Queue;
using Clock = std::map<const Queue*, uint64_t>;  // of each stream, how much is known to be done before

struct Task {
  std::string what;
  std::vector<Range> ranges = {};  // memory that it reads and writes
  std::vector<uint64_t> pointers =
      {};                            // arguments of a kernel: it uses what they point to, we don't know how much of it
  std::function<bool()> ready = {};  // under the device's mutex; none: at once
  std::function<std::string()> run = {};  // without it; what went wrong, "" if nothing
  bool copies = false;                    // takes the copies' delay
  bool for_word = false;                  // waits until a word of memory is written
  uint64_t number = 0;                    // among those of all streams
};

class Software;

// A stream: its thread runs tasks in order.
class Queue {
 public:
  Queue(Software& software, int device);
  ~Queue();
  uint64_t Add(Task task);  // under the mutex; its number
  bool Idle() const { return tasks_.empty(); }
  std::shared_ptr<const uint64_t> done() const { return done_; }
  int device() const { return device_; }
  size_t created() const { return created_; }
  const std::deque<Task>& tasks() const { return tasks_; }
  Clock& clock() { return clock_; }

 private:
  void Work();
  std::string RaceOf(const Task& task) const;
  bool BehindAnother() const;
  Software& software_;
  const int device_;
  const size_t created_;    // how many streams there were: those of a multiple of the connections share a queue
  std::deque<Task> tasks_;  // the first is running
  uint64_t added_ = 0;
  const std::shared_ptr<uint64_t> done_ = std::make_shared<uint64_t>(0);  // tasks
  Clock clock_;
  bool ending_ = false;
  std::thread thread_;
};

struct Allocation {
  int device = 0;
  size_t bytes = 0;
  int fd = -1;      // of memory that other processes may map
  bool own = true;  // taken by cuMemAlloc: not opened, not adopted
  bool adopted = false;
};

struct Mark {  // an event
  int device = 0;
  std::shared_ptr<const uint64_t> done;  // of its stream, which may be gone
  uint64_t number = 0;
  Clock clock;
  bool Done() const { return !done || *done >= number; }
};

// All devices of this process. One mutex; public members under it.
class Software {
 public:
  static Software& Get();

  std::mutex mutex;
  std::condition_variable changed;
  std::map<void*, std::shared_ptr<Queue>> streams;
  std::map<void*, std::unique_ptr<Mark>> events;
  std::map<int, std::shared_ptr<Queue>> defaults;
  std::map<uint64_t, Allocation> memory;
  std::map<uint64_t, size_t> pinned;
  std::map<std::string, std::pair<uint32_t, int>> failures;
  std::map<int, int> retained;
  std::map<const void*, uint32_t> most_shared;  // of kernels that asked for more than every device has
  std::atomic<bool> lost{false};
  bool waits = true;
  bool capturing = false;  // somewhere in the process, in CUDA's own mode ("global")
  uint32_t delay_us = 0;
  std::thread::id
      program;       // the only thread that may wait for the whole device while a stream waits for a word; none: any
  std::string held;  // the function that doesn't return
  size_t connections = 0;   // queues of the hardware that streams share; 0: each has its own
  uint64_t added = 0;       // tasks, to all streams
  size_t created = 0;       // streams
  size_t queue_length = 0;  // tasks that a stream takes before waits and writes of words block; 0: any number

  void Misuse(const std::string& text);  // under the mutex
  const std::string& misuse() const { return misuse_; }
  void Forgive() { misuse_.clear(); }
  void Reset();
  std::vector<std::shared_ptr<Queue>> Queues();
  std::shared_ptr<Queue> QueueOf(Stream stream);  // nullptr: there is none
  const Allocation* Find(uint64_t address, size_t bytes) const;
  bool IsPinned(uint64_t address, size_t bytes) const;
  std::string UserOf(const Range& range);  // a task that is not over; "": none
  // CUDA documents, or is known, to have `call` wait until all streams of the device are through: for ever, where one
  // waits for a word, and whoever is to write it for the caller.
  void Quiesce(const std::string& call);
  void AwaitRoom(std::unique_lock<std::mutex>& lock, const Queue& queue);
  // Something that is still queued uses the range: that is misuse, and waited for, as the driver does.
  void AwaitUnused(std::unique_lock<std::mutex>& lock, const std::string& call, uint64_t address, size_t bytes);

 private:
  std::string misuse_;
};

extern thread_local std::vector<int> contexts;  // current: the last
extern thread_local bool in_host_function;
extern thread_local int32_t capture_mode;

}  // namespace software_gpu
