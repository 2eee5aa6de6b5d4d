// A simulated world: its clock, its processes and their threads, all on the thread that steps it, in an order that the
// seed decides. The same seed and the same calls give the same history.
//
// A thread runs until it waits; each turn takes a moment. When all wait, the clock goes on to the next time that one of
// them, or an event, waits for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/log.h"
#include "csrc/base/simulation.h"
#include "csrc/sim/fiber.h"
#include "csrc/sim/random.h"

namespace byteps_like::sim {

class World final : public Simulation {
 public:
  using Time = Clock::time_point;
  using LogSink = std::function<void(uint32_t process, LogLevel level, const std::string& text)>;

  explicit World(uint64_t seed);
  ~World();  // all threads have ended
  World(const World&) = delete;

  // One turn of a thread, or one event. False: nothing is left that could happen. An exception that a thread throws
  // comes out here.
  bool Step();
  size_t threads() const { return living_; }
  uint64_t turns() const { return turns_; }
  Clock::duration age() const;  // since the beginning

  uint32_t AddProcess();  // its number, from 1
  void Run(uint32_t process, std::function<void()> body);
  // Its threads don't run, but time goes by for them.
  void Pause(uint32_t process);
  void Continue(uint32_t process);
  // Its threads miss their deadlines from now on: they sleep until they are woken.
  void LoseTimers(uint32_t process) { processes_[process].loses_timers = true; }
  void SetLogSink(LogSink sink) { log_ = std::move(sink); }

  Time Now() const override { return now_; }
  uint64_t Draw(uint64_t below) override { return random_.Below(below); }
  void Log(LogLevel level, const std::string& text) override;
  uint64_t Start(std::function<void()> body) override;
  void Join(uint64_t thread) override;
  const void* Self() const override;
  uint32_t process() const override;
  bool Block(const void* what, Time until) override;
  void Wake(const void* what, bool all) override;
  void At(Time when, std::function<void()> event) override;

 private:
  struct Thread {
    Thread(uint64_t number_, uint32_t process_, std::function<void()> body)
        : number(number_), process(process_), fiber(std::move(body)) {}
    const uint64_t number;
    const uint32_t process;
    Fiber fiber;
    const void* waits_on = nullptr;
    uint64_t wait = 0;  // number of the wait that it is in; 0: none
    bool woken = false;
  };
  struct Process {
    bool paused = false;
    bool loses_timers = false;
    std::vector<Thread*> held;  // that would run
  };
  struct Due {
    Time when;
    uint64_t order;
    uint64_t wait = 0;  // whose end it is, if there is no event
    std::shared_ptr<std::function<void()>> event;
    bool operator<(const Due& other) const { return when != other.when ? when > other.when : order > other.order; }
  };

  uint64_t Start(uint32_t process, std::function<void()> body);
  bool RunDue();  // false: nothing is due
  void RunOne();
  void Ready(Thread& thread);
  void EndWait(Thread& thread, bool woken);
  void End(Thread& thread);

  Random random_;
  Time now_;
  const Time beginning_;
  uint64_t order_ = 0, turns_ = 0;
  size_t living_ = 0;
  std::deque<Process> processes_;
  std::map<uint64_t, std::unique_ptr<Thread>> threads_;  // those that have not ended
  std::vector<Thread*> ready_;
  std::priority_queue<Due> due_;
  std::unordered_map<const void*, std::deque<Thread*>> waiting_;
  Thread* running_ = nullptr;
  std::exception_ptr thrown_;
  LogSink log_;
};

}  // namespace byteps_like::sim
