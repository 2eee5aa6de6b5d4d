#include "tests/software_gpu/device.h"

#include <chrono>

namespace software_gpu {
namespace {

bool Known(const Clock& clock, const Queue* queue, uint64_t number) {
  const auto found = clock.find(queue);
  return found != clock.end() && found->second >= number;
}

}  // namespace

thread_local std::vector<int> contexts;
thread_local bool in_host_function = false;
thread_local int32_t capture_mode = 0;

Software& Software::Get() {
  static auto* const software = new Software();
  return *software;
}

Queue::Queue(Software& software, int device)
    : software_(software), device_(device), created_(software.created++), thread_([this] { Work(); }) {}

Queue::~Queue() {
  {
    std::lock_guard lock(software_.mutex);
    ending_ = true;
  }
  software_.changed.notify_all();
  thread_.join();
}

// A task on another stream that is not over, uses the same memory, and that nothing orders before this one.
std::string Queue::RaceOf(const Task& task) const {
  for (const Task& before : tasks_)
    if (before.for_word && !before.ready()) return "";  // it runs when the word is written, which orders it
  for (const auto& other : software_.Queues()) {
    if (other.get() == this) continue;
    uint64_t number = *other->done_;
    for (const Task& earlier : other->tasks()) {
      ++number;
      // What comes after runs when the word is written, which orders it as the program means it.
      if (earlier.for_word && !earlier.ready()) break;
      if (Known(clock_, other.get(), number)) continue;
      for (const Range& mine : task.ranges)
        for (const Range& its : earlier.ranges)
          if (mine.Overlaps(its) && (mine.written || its.written))
            return task.what + " uses memory that " + earlier.what + " on another stream is not through with";
    }
  }
  return "";
}

uint64_t Queue::Add(Task task) {
  const std::string race = RaceOf(task);
  if (!race.empty()) software_.Misuse(race);
  tasks_.push_back(std::move(task));
  tasks_.back().number = software_.added++;
  clock_[this] = ++added_;
  software_.changed.notify_all();
  return added_;
}

// One queue of the hardware is in order, whatever streams it serves.
bool Queue::BehindAnother() const {
  if (software_.connections == 0) return false;
  for (const auto& other : software_.Queues()) {
    const bool shared = other->created() % software_.connections == created_ % software_.connections;
    if (shared && !other->tasks().empty() && other->tasks().front().number < tasks_.front().number) return true;
  }
  return false;
}

void Queue::Work() {
  std::unique_lock lock(software_.mutex);
  for (;;) {
    software_.changed.wait(lock, [this] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task& task = tasks_.front();
    // A word of host memory changes without a signal.
    while (((task.ready && !task.ready()) || BehindAnother()) && !software_.lost && !ending_)
      software_.changed.wait_for(lock, std::chrono::microseconds(200));
    const auto delay = std::chrono::microseconds(task.copies ? software_.delay_us : 0);
    if (!software_.lost && task.run && !(ending_ && task.ready && !task.ready())) {
      lock.unlock();
      if (delay.count() != 0) std::this_thread::sleep_for(delay);
      const std::string wrong = software_.lost ? "" : task.run();
      lock.lock();
      if (!wrong.empty()) {
        software_.Misuse(wrong);
        software_.lost = true;
      }
    }
    tasks_.pop_front();
    ++*done_;
    software_.changed.notify_all();
  }
}

void Software::Misuse(const std::string& text) { misuse_ += (misuse_.empty() ? "" : "\n") + text; }

std::vector<std::shared_ptr<Queue>> Software::Queues() {
  std::vector<std::shared_ptr<Queue>> all;
  for (const auto& [handle, queue] : streams) all.push_back(queue);
  for (const auto& [device, queue] : defaults) all.push_back(queue);
  return all;
}

std::shared_ptr<Queue> Software::QueueOf(Stream stream) {
  if (stream != nullptr) {
    const auto found = streams.find(stream);
    return found == streams.end() ? nullptr : found->second;
  }
  if (contexts.empty()) return nullptr;
  auto& queue = defaults[contexts.back()];
  if (!queue) queue = std::make_shared<Queue>(*this, contexts.back());
  return queue;
}

const Allocation* Software::Find(uint64_t address, size_t bytes) const {
  auto found = memory.upper_bound(address);
  if (found == memory.begin()) return nullptr;
  --found;
  return address + bytes <= found->first + found->second.bytes ? &found->second : nullptr;
}

bool Software::IsPinned(uint64_t address, size_t bytes) const {
  auto found = pinned.upper_bound(address);
  if (found == pinned.begin()) return false;
  --found;
  return address + bytes <= found->first + found->second;
}

std::string Software::UserOf(const Range& range) {
  for (const auto& queue : Queues())
    for (const Task& task : queue->tasks()) {
      for (const Range& its : task.ranges)
        if (its.Overlaps(range)) return task.what;
      for (const uint64_t pointer : task.pointers)
        if (pointer >= range.begin && pointer < range.end) return task.what;
    }
  return "";
}

void Software::Quiesce(const std::string& call) {
  if (program == std::thread::id() || program == std::this_thread::get_id()) return;
  for (const auto& queue : Queues())
    for (const Task& task : queue->tasks())
      if (task.for_word && !task.ready())
        return Misuse(call + " while a stream waits for a word: it may wait for that");
}

void Software::AwaitRoom(std::unique_lock<std::mutex>& lock, const Queue& queue) {
  changed.wait(lock, [&] { return queue_length == 0 || queue.tasks().size() < queue_length || lost; });
}

void Software::AwaitUnused(std::unique_lock<std::mutex>& lock, const std::string& call, uint64_t address,
                           size_t bytes) {
  const Range range{address, address + bytes, true};
  const std::string user = UserOf(range);
  if (user.empty()) return;
  Misuse(call + " of memory that " + user + " is not through with");
  changed.wait(lock, [&] { return UserOf(range).empty(); });
}

void Software::Reset() {
  std::vector<std::shared_ptr<Queue>> ending;
  {
    std::lock_guard lock(mutex);
    ending = Queues();
    streams.clear();
    defaults.clear();
  }
  ending.clear();
  std::lock_guard lock(mutex);
  events.clear();
  memory.clear();
  pinned.clear();
  failures.clear();
  most_shared.clear();
  misuse_.clear();
  lost = false;
  waits = true;
  capturing = false;
  delay_us = 0;
  queue_length = 0;
  connections = 0;
  held.clear();
  program = {};
}

}  // namespace software_gpu
