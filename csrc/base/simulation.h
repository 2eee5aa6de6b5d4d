// What stands in for the operating system where everything runs on one thread, on a clock of its own and from one seed:
// time, threads, waiting, random numbers and the log. csrc/sim implements it; the seams that ask for it are clock.h,
// entropy.h, thread.h and log.h here, and the pollers of event loops and the transport "sim" in csrc/transport. Outside
// of simulations they ask the system.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace byteps_like {

enum class LogLevel : uint8_t;

// All calls come on its thread. Simulated threads give way to one another only in Block, Join and Yield, so what one
// does between two of those is seen by the others at once.
class Simulation {
 public:
  using Time = std::chrono::steady_clock::time_point;

  virtual Time Now() const = 0;
  virtual uint64_t Draw(uint64_t below) = 0;  // from 0 on, evenly
  virtual void Log(LogLevel level, const std::string& text) = 0;

  // Threads, each of the process that started it.
  virtual uint64_t Start(std::function<void()> body) = 0;  // its number, never 0
  virtual void Join(uint64_t thread) = 0;                  // once
  virtual const void* Self() const = 0;                    // another one for each thread that runs
  virtual uint32_t process() const = 0;                    // whose thread runs; 0: the world's own
  // Until somebody wakes who waits on `what`, or until that time: false for the latter. nullptr: nobody does.
  virtual bool Block(const void* what, Time until) = 0;
  virtual void Wake(const void* what, bool all) = 0;  // of those that wait there, one or all; none is fine
  // Has `event` happen then, outside of all threads; it must not wait for anything.
  virtual void At(Time when, std::function<void()> event) = 0;

 protected:
  ~Simulation() = default;
};

namespace internal {
inline constinit thread_local Simulation* simulation = nullptr;
}

// That of this thread. nullptr: there is none, and the system does all that.
inline Simulation* TheSimulation() { return internal::simulation; }

}  // namespace byteps_like
