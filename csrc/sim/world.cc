#include "csrc/sim/world.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace byteps_like::sim {
namespace {

constexpr auto kBeginning = std::chrono::hours(24);  // far from zero, which stands for "never"
constexpr auto kTurn = std::chrono::nanoseconds(500);

// While a world runs, its thread asks it for all that it would ask the system for.
class Within {
 public:
  explicit Within(Simulation& simulation) : before_(std::exchange(internal::simulation, &simulation)) {}
  ~Within() { internal::simulation = before_; }
  Within(const Within&) = delete;

 private:
  Simulation* const before_;
};

}  // namespace

World::World(uint64_t seed) : random_(seed), now_(Time(kBeginning)), beginning_(now_), processes_(1) {}

World::~World() {
  const Within within(*this);  // events hold ends of connections
  due_ = {};
}

Clock::duration World::age() const { return now_ - beginning_; }

uint32_t World::AddProcess() {
  processes_.emplace_back();
  return static_cast<uint32_t>(processes_.size() - 1);
}

void World::Run(uint32_t process, std::function<void()> body) { Start(process, std::move(body)); }

bool World::Step() {
  const Within within(*this);
  if (!RunDue()) {
    if (!ready_.empty()) {
      RunOne();
    } else if (!due_.empty()) {
      now_ = std::max(now_, due_.top().when);
    } else {
      return false;
    }
  }
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  return true;
}

bool World::RunDue() {
  if (due_.empty() || due_.top().when > now_) return false;
  const Due due = due_.top();
  due_.pop();
  if (due.event != nullptr) {
    (*due.event)();
    return true;
  }
  const auto found = threads_.find(due.wait >> 32);
  if (found == threads_.end() || found->second->wait != due.wait) return true;
  const bool misses = processes_[found->second->process].loses_timers && found->second->waits_on != nullptr;
  if (!misses) EndWait(*found->second, false);
  return true;
}

void World::RunOne() {
  std::swap(ready_[Draw(ready_.size())], ready_.back());
  Thread& thread = *ready_.back();
  ready_.pop_back();
  now_ += kTurn;
  ++turns_;
  running_ = &thread;
  thread.fiber.Enter();
  running_ = nullptr;
  if (thread.fiber.ended()) End(thread);
}

void World::End(Thread& thread) {
  const uint64_t number = thread.number;
  --living_;
  threads_.erase(number);
  Wake(reinterpret_cast<const void*>(number), true);
}

void World::Pause(uint32_t process) {
  processes_[process].paused = true;
  const auto held = std::stable_partition(ready_.begin(), ready_.end(),
                                          [process](const Thread* thread) { return thread->process != process; });
  processes_[process].held.insert(processes_[process].held.end(), held, ready_.end());
  ready_.erase(held, ready_.end());
}

void World::Continue(uint32_t process) {
  processes_[process].paused = false;
  for (Thread* const thread : std::exchange(processes_[process].held, {})) ready_.push_back(thread);
}

void World::Ready(Thread& thread) {
  Process& process = processes_[thread.process];
  (process.paused ? process.held : ready_).push_back(&thread);
}

void World::Log(LogLevel level, const std::string& text) {
  if (log_) log_(process(), level, text);
}

uint64_t World::Start(std::function<void()> body) { return Start(process(), std::move(body)); }

uint64_t World::Start(uint32_t process, std::function<void()> body) {
  const uint64_t number = ++order_;
  auto thread = std::make_unique<Thread>(number, process, [this, body = std::move(body)] {
    try {
      body();
    } catch (...) {
      thrown_ = std::current_exception();
    }
  });
  ++living_;
  Ready(*thread);
  threads_.emplace(number, std::move(thread));
  return number;
}

void World::Join(uint64_t thread) {
  while (threads_.contains(thread)) Block(reinterpret_cast<const void*>(thread), Time::max());
}

const void* World::Self() const { return running_ == nullptr ? static_cast<const void*>(this) : running_; }

uint32_t World::process() const { return running_ == nullptr ? 0 : running_->process; }

bool World::Block(const void* what, Time until) {
  if (running_ == nullptr) throw std::logic_error("an event of a simulation waits for something");
  Thread& self = *running_;
  self.waits_on = what;
  self.wait = (self.number << 32) | (++order_ & 0xFFFFFFFF);
  if (what != nullptr) waiting_[what].push_back(&self);
  if (until != Time::max()) due_.push({until, ++order_, self.wait, nullptr});
  self.fiber.Leave();
  return self.woken;
}

void World::EndWait(Thread& thread, bool woken) {
  if (thread.waits_on != nullptr) {
    const auto waiting = waiting_.find(thread.waits_on);
    std::erase(waiting->second, &thread);
    if (waiting->second.empty()) waiting_.erase(waiting);
  }
  thread.waits_on = nullptr;
  thread.wait = 0;
  thread.woken = woken;
  Ready(thread);
}

void World::Wake(const void* what, bool all) {
  for (auto found = waiting_.find(what); found != waiting_.end(); found = waiting_.find(what)) {
    EndWait(*found->second.front(), true);
    if (!all) return;
  }
}

void World::At(Time when, std::function<void()> event) {
  due_.push({when, ++order_, 0, std::make_shared<std::function<void()>>(std::move(event))});
}

}  // namespace byteps_like::sim
