#include "csrc/base/thread.h"

#include <sched.h>

#include <system_error>

namespace byteps_like {
namespace {

constexpr auto kYield = std::chrono::microseconds(10);  // of a simulation's time

}  // namespace

Result<Thread> StartThread(const std::string& what, std::function<void()> body) {
  Thread thread;
  if (Simulation* const simulation = TheSimulation()) {
    thread.simulated_ = simulation->Start(std::move(body));
    return thread;
  }
  try {
    thread.thread_ = std::thread(std::move(body));
    return thread;
  } catch (const std::system_error& error) {
    return Status(Code::kCapacity, "no thread " + what + ": " + error.code().message() +
                                       " (ulimit -u, or the pids limit of the container)");
  }
}

void Thread::join() {
  if (simulated_ != 0) return TheSimulation()->Join(std::exchange(simulated_, 0));
  thread_.join();
}

void Thread::detach() {
  if (std::exchange(simulated_, 0) == 0) thread_.detach();
}

void SleepFor(Clock::duration time) {
  if (Simulation* const simulation = TheSimulation()) {
    simulation->Block(nullptr, simulation->Now() + time);
  } else {
    std::this_thread::sleep_for(time);
  }
}

void YieldCore() {
  if (TheSimulation() != nullptr) return SleepFor(kYield);
  ::sched_yield();
}

size_t CountCores() { return TheSimulation() == nullptr ? std::thread::hardware_concurrency() : 0; }

void Mutex::lock() {
  Simulation* const simulation = TheSimulation();
  if (simulation == nullptr) return mutex_.lock();
  while (locked_) simulation->Block(this, Deadline::max());
  locked_ = true;
}

bool Mutex::try_lock() {
  if (TheSimulation() == nullptr) return mutex_.try_lock();
  return !std::exchange(locked_, true);
}

void Mutex::unlock() {
  Simulation* const simulation = TheSimulation();
  if (simulation == nullptr) return mutex_.unlock();
  locked_ = false;
  simulation->Wake(this, false);
}

bool ConditionVariable::WaitOnce(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  if (Simulation* const simulation = TheSimulation()) {
    lock.unlock();
    const bool woken = simulation->Block(this, deadline);
    lock.lock();
    return woken;
  }
  if (deadline != Deadline::max()) return condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
  condition_.wait(lock);
  return true;
}

void ConditionVariable::Notify(bool all) {
  if (Simulation* const simulation = TheSimulation()) return simulation->Wake(this, all);
  if (all) {
    condition_.notify_all();
  } else {
    condition_.notify_one();
  }
}

void Semaphore::acquire() {
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [this] { return places_ > 0; });
  --places_;
}

void Semaphore::release() {
  const std::lock_guard lock(mutex_);
  ++places_;
  freed_.notify_one();
}

}  // namespace byteps_like
