// Threads, and what they wait on: those of the system, or of the simulation in which the caller runs. Objects are used
// where they were made, in or out of a simulation.
//
// A mutex that is never held while its holder waits may be std::mutex: in a simulation nobody ever finds it locked.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "csrc/base/clock.h"
#include "csrc/base/status.h"

namespace byteps_like {

// As std::thread: joined or detached before its end.
class Thread {
 public:
  Thread() = default;
  Thread(Thread&& other) noexcept : thread_(std::move(other.thread_)), simulated_(std::exchange(other.simulated_, 0)) {}
  Thread& operator=(Thread&& other) noexcept {
    thread_ = std::move(other.thread_);
    simulated_ = std::exchange(other.simulated_, 0);
    return *this;
  }

  bool joinable() const { return simulated_ != 0 || thread_.joinable(); }
  void join();
  void detach();

 private:
  friend Result<Thread> StartThread(const std::string& what, std::function<void()> body);
  std::thread thread_;
  uint64_t simulated_ = 0;
};

// Threads may not be had: a limit of processes (ulimit -u, a container's pids) or of memory is an error of the
// operation that wants one, not the end of the process. kCapacity with what was wanted and why it can't be had.
Result<Thread> StartThread(const std::string& what, std::function<void()> body);

// The caller's: another one for each thread that lives.
inline const void* ThisThread() {
  const Simulation* const simulation = TheSimulation();
  return simulation == nullptr ? static_cast<const void*>(&internal::simulation) : simulation->Self();
}

void SleepFor(Clock::duration time);
void YieldCore();     // to other threads that could use it
size_t CountCores();  // that threads of this process may run on at once

// A mutex that may be held while its holder waits.
class Mutex {
 public:
  void lock();
  bool try_lock();
  void unlock();

 private:
  std::mutex mutex_;
  bool locked_ = false;  // in a simulation
};

// As std::condition_variable, with its mutexes.
class ConditionVariable {
 public:
  void notify_one() { Notify(false); }
  void notify_all() { Notify(true); }

  void wait(std::unique_lock<std::mutex>& lock) { WaitOnce(lock, Deadline::max()); }
  template <typename Until>
  void wait(std::unique_lock<std::mutex>& lock, Until until) {
    while (!until()) wait(lock);
  }
  template <typename Until>
  bool wait_until(std::unique_lock<std::mutex>& lock, Deadline deadline, Until until) {
    while (!until())
      if (!WaitOnce(lock, deadline)) return until();
    return true;
  }
  bool wait_until(std::unique_lock<std::mutex>& lock, Deadline deadline) { return WaitOnce(lock, deadline); }
  template <typename... Until>
  bool wait_for(std::unique_lock<std::mutex>& lock, Clock::duration time, Until... until) {
    return wait_until(lock, Clock::now() + time, std::move(until)...);
  }

 private:
  bool WaitOnce(std::unique_lock<std::mutex>& lock, Deadline deadline);  // false: the deadline has passed
  void Notify(bool all);

  std::condition_variable condition_;
};

// So many places.
class Semaphore {
 public:
  explicit Semaphore(int places) : places_(places) {}
  void acquire();  // waits for one
  void release();

 private:
  std::mutex mutex_;  // guards places_
  ConditionVariable freed_;
  int places_;
};

}  // namespace byteps_like
