#include "collectives/host/host_group.h"

#include <algorithm>
#include <tuple>

#include "csrc/base/trace.h"

namespace byteps_like {
namespace {

constexpr auto kLookForInterrupt = std::chrono::milliseconds(200);
constexpr auto kLongest = std::chrono::hours(24 * 365);

Deadline DeadlineIn(double seconds, Deadline now) {
  const std::chrono::duration<double> most = kLongest;
  return now + std::chrono::duration_cast<Clock::duration>(
                   std::min(std::chrono::duration<double>(std::max(seconds, 0.0)), most));
}

}  // namespace

// A launched call: owns itself through `self` until it is done.
class HostOperation final : public Completion {
 public:
  HostOperation(std::shared_ptr<LocalHostGroup> group, const HostCall& call)
      : inputs_(call.input_chunks.begin(), call.input_chunks.end()),
        outputs_(call.output_chunks.begin(), call.output_chunks.end()),
        group_(std::move(group)) {
    task.call = call;
    task.call.input_chunks = inputs_;
    task.call.output_chunks = outputs_;
    task.operation = this;
  }
  bool Wait(Deadline deadline) override {
    if (done()) return true;
    const auto group = group_;
    if (!group->WaitFor(task, deadline)) return false;
    return Completion::Wait(Clock::now() + kLongest);  // being finished now, if by another thread
  }
  void End(const Status& status) {
    const auto keep = std::move(self);
    Completion::Finish(status);
  }

  HostTask task;
  std::shared_ptr<HostOperation> self;

 private:
  const std::vector<Chunk> inputs_, outputs_;
  const std::shared_ptr<LocalHostGroup> group_;
};

LocalHostGroup::LocalHostGroup(std::shared_ptr<LocalArea> area, uint32_t slot, std::vector<uint32_t> members,
                               uint32_t me)
    : area_(std::move(area)), machine_(*area_, slot, std::move(members), me) {}

LocalHostGroup::~LocalHostGroup() { area_->Release(machine_.slot(), machine_.me(), machine_.size()); }

Status LocalHostGroup::Run(const HostCall& call, const std::function<bool()>& interrupted) {
  const auto now = Clock::now();
  HostTask task;
  task.call = call;
  task.deadline = DeadlineIn(call.timeout, now);
  Enqueue(task);
  bool done = WaitFor(task, now + kLookForInterrupt);
  while (!done) {
    if (interrupted && interrupted()) CancelTask(task, Status(Code::kClosed, "interrupted on one rank"));
    done = WaitFor(task, Clock::now() + kLookForInterrupt);
  }
  return task.status;
}

std::shared_ptr<Completion> LocalHostGroup::Launch(const HostCall& call) {
  auto operation = std::make_shared<HostOperation>(shared_from_this(), call);
  operation->task.deadline = DeadlineIn(call.timeout, Clock::now());
  operation->self = operation;
  Enqueue(operation->task);
  if (TakeBaton(false)) {  // so that the others see at once that this rank has come
    if (HostTask* task = Oldest()) machine_.Advance(*task, true);
    driven_.store(false);
    if (asked_.exchange(false)) Drive(false);
  }
  if (const Status adopted = area_->Adopt(shared_from_this()); !adopted.ok()) {
    CancelTask(operation->task, adopted);
    while (!operation->done()) Drive(true);
  }
  return operation;
}

void LocalHostGroup::Cancel(const std::shared_ptr<Completion>& call, const Status& why) {
  auto* operation = dynamic_cast<HostOperation*>(call.get());
  if (operation != nullptr && !call->done()) CancelTask(operation->task, why);
}

void LocalHostGroup::CancelAll(const Status& why) {
  std::lock_guard lock(mutex_);
  for (HostTask* task = Oldest(); task != nullptr; task = task->next) Mark(*task, why);
}

void LocalHostGroup::CancelTask(HostTask& task, const Status& why) {
  std::lock_guard lock(mutex_);
  Mark(task, why);
}

void LocalHostGroup::Mark(HostTask& task, const Status& why) {
  if (task.cancelled.load()) return;
  task.cancel = why;
  task.cancelled.store(true);
  area_->Ring(area_->index());
  area_->Nudge();
}

void LocalHostGroup::Enqueue(HostTask& task) {
  task.launched = Tracing() ? TraceClock() : 0;
  std::lock_guard lock(mutex_);
  if (last_ == nullptr) {
    first_.store(&task, std::memory_order_release);
  } else {
    last_->next = &task;
  }
  last_ = &task;
}

Deadline LocalHostGroup::NextDeadline() {
  std::lock_guard lock(mutex_);
  const HostTask* const oldest = Oldest();
  return oldest == nullptr ? Deadline::max() : oldest->deadline;
}

// A thread that asks looks again after asking, and a thread that drives checks, after letting go, whether it was asked.
bool LocalHostGroup::TakeBaton(bool ask) {
  if (!driven_.load(std::memory_order_relaxed) && !driven_.exchange(true)) return true;
  if (!ask) return false;
  asked_.store(true);
  return !driven_.exchange(true);
}

bool LocalHostGroup::Drive(bool look_at_time) { return TakeBaton(false) && DriveOn(look_at_time); }

bool LocalHostGroup::DriveOrAsk() { return TakeBaton(true) && DriveOn(false); }

bool LocalHostGroup::DriveOn(bool look_at_time) {
  bool moved = false;
  do {
    while (HostTask* task = Oldest()) {
      if (look_at_time) CheckTime(*task);
      moved |= machine_.Advance(*task, false);
      if (task->phase != HostTask::Phase::kDone) break;
      Finish(*task);
      moved = true;
    }
    driven_.store(false);
  } while (asked_.exchange(false) && !driven_.exchange(true));
  return moved;
}

void LocalHostGroup::CheckTime(HostTask& task) {
  if (task.cancelled.load()) {
    machine_.Fail(task, task.cancel);
  } else if (Clock::now() >= task.deadline) {
    machine_.FailLate(task);
  }
}

// The thread that waits for the task may destroy it as soon as it is done.
void LocalHostGroup::Finish(HostTask& task) {
  {
    std::lock_guard lock(mutex_);
    first_.store(task.next, std::memory_order_release);
    if (task.next == nullptr) last_ = nullptr;
  }
  HostOperation* operation = task.operation;
  const Status status = operation == nullptr ? Status() : task.status;
  if (task.launched != 0 && task.status.ok()) TraceCall(task);
  task.done.store(true);
  if (operation != nullptr) operation->End(status);
  // The thread that waits for it may be asleep, because another thread had the baton.
  if (waiters_.load() > 0 || operation == nullptr) area_->Ring(area_->index());
}

// Records the call, and in it the time spent waiting for the others and the work after that.
void LocalHostGroup::TraceCall(const HostTask& task) const {
  const int64_t now = TraceClock(), agreed = task.agreed == 0 ? now : task.agreed;
  TraceRecord record{.kind = TraceKind::kCall,
                     .detail = static_cast<uint8_t>(static_cast<uint8_t>(task.call.kind) + 1),
                     .begin = task.launched,
                     .duration = now - task.launched,
                     .key = task.call.lane,
                     .bytes = task.call.bytes,
                     .round = static_cast<uint32_t>(task.number),
                     .member = machine_.members()[machine_.me()]};
  Trace(record);
  record.kind = TraceKind::kStep;
  record.detail = kTraceGather;
  record.duration = agreed - task.launched;
  Trace(record);
  record.detail = kTraceWork;
  record.step = 1;
  record.begin = agreed;
  record.duration = now - agreed;
  Trace(record);
}

bool LocalHostGroup::WaitFor(HostTask& task, Deadline deadline) {
  // The task may be gone with its call once it is done.
  const int64_t since = Tracing() && !task.done.load() ? TraceClock() : 0;
  const uint64_t lane = task.call.lane;
  waiters_.fetch_add(1);
  Patience patience(area_->may_spin());
  while (!task.done.load()) {
    if (Drive(false)) {
      patience.Reset();
      continue;
    }
    if (patience.Step()) continue;
    Drive(true);
    const auto now = Clock::now();
    if (task.done.load() || now >= deadline) break;
    area_->Sleep(std::min({deadline, NextDeadline(), now + kLookAtProcesses}),
                 [&] { return task.done.load() || DriveOrAsk(); });
    if (Clock::now() - now >= kLookAtProcesses) area_->CheckLives(members());
    Drive(true);
  }
  waiters_.fetch_sub(1);
  const bool done = task.done.load();
  if (since != 0) {
    const uint32_t rank = machine_.members()[machine_.me()];
    TraceSince(since, {.kind = TraceKind::kWait, .detail = 1, .key = lane, .member = rank});
  }
  // They are now up to the area's thread, if there is one; otherwise they go on when a thread waits again.
  if (!done) std::ignore = area_->Adopt(shared_from_this());
  if (done && !idle()) area_->Nudge();
  return done;
}

}  // namespace byteps_like
