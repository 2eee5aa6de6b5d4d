// Events on their way to Python: native threads push and go on, a Python thread waits here without the GIL. So nothing
// on the data path ever waits for an interpreter.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "csrc/base/status.h"

namespace byteps_like {

// Raises the exception of byteps_like/errors.py that mirrors a failed status.
void ThrowIfFailed(const Status& status);

inline bool InterpreterIsEnding() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

// Runs something that blocks, without the GIL. A daemon thread that comes back while the interpreter ends would be
// unwound by force through C++ frames, which aborts the process: it stays here instead, as from Python 3.14 on.
template <typename Function>
auto BlockWithoutGil(Function&& function) {
  PyThreadState* const state = PyEval_SaveThread();
  auto result = function();
  while (InterpreterIsEnding()) ::pause();
  PyEval_RestoreThread(state);
  return result;
}

// A forked child has the memory of what it inherits but none of its threads, and shares its connections with the
// parent: to close or join there would hang the child or cut off the parent.
class ForkGuard {
 public:
  bool forked() const { return Forks() != forks_; }
  // For calls: raises the typed error in a forked child.
  void Check() const {
    if (forked()) ThrowIfFailed(Status(Code::kInvalid, "this process was forked: call init() in it, or use spawn"));
  }

 private:
  // Counted by the C library's own hook: to ask for the process id is a system call.
  static uint32_t Forks() {
    static std::atomic<uint32_t> forks{0};
    static const int hooked = ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
    (void)hooked;
    return forks.load(std::memory_order_relaxed);
  }
  const uint32_t forks_ = Forks();
};

template <typename... Fields>
class EventQueue {
 public:
  using Event = std::tuple<Fields...>;

  void Push(Fields... fields) {
    std::lock_guard lock(mutex_);
    if (events_.size() >= kMost) events_.pop_front();
    events_.emplace_back(std::move(fields)...);
    changed_.notify_one();
  }

  // The next event; nothing after `seconds`, or at once when the queue was closed.
  std::optional<Event> Pop(double seconds) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return closed_ || !events_.empty(); });
    if (events_.empty()) return std::nullopt;
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  static constexpr size_t kMost = 1024;  // the oldest go first: nobody reads them
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  bool closed_ = false;
};

void BindBuffer(nanobind::module_& m);
void BindCodec(nanobind::module_& m);
void BindCommunicator(nanobind::module_& m);
void BindEngine(nanobind::module_& m);
void BindFeedback(nanobind::module_& m);
void BindFilters(nanobind::module_& m);
void BindFunctions(nanobind::module_& m);
void BindOwnFilters();
void BindGpu(nanobind::module_& m);
void BindGpuCodec(nanobind::module_& m);
void BindGpuPeers(nanobind::module_& m);
void BindHost(nanobind::module_& m);
void BindInprocLink(nanobind::module_& m);
void BindKernels(nanobind::module_& m);
void BindLedger(nanobind::module_& m);
void BindRdma(nanobind::module_& m);
void BindLowRank(nanobind::module_& m);
void BindProgram(nanobind::module_& m);
void BindEntrances(nanobind::module_& m);
void BindServer(nanobind::module_& m);
void BindSim(nanobind::module_& m);
void BindStoreKey(nanobind::module_& m);
void BindTls(nanobind::module_& m);
void BindTrace(nanobind::module_& m);
void BindUpdates(nanobind::module_& m);

}  // namespace byteps_like
