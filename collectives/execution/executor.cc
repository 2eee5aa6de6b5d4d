#include "collectives/execution/executor.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "collectives/execution/run.h"

namespace byteps_like {
namespace {

class LoopExecutor final : public Executor, public RunOwner, private EventLoop::Deferred {
 public:
  explicit LoopExecutor(Exchange& exchange) : RunOwner(exchange) {}
  ~LoopExecutor() override;

  std::shared_ptr<Completion> Launch(RunOptions options) override;
  void Cancel(const std::shared_ptr<Completion>& run, const Status& why) override;
  void CancelLane(uint64_t lane, const Status& why) override;
  void OnEnded(Run& run) override;

 private:
  void RunDeferred() override { ended_.clear(); }
  void StartLaunched();
  void WatchDeadline(Deadline deadline);
  void OnTimer();

  std::mutex mutex_;  // guards launched_
  std::vector<std::shared_ptr<Run>> launched_;
  std::vector<std::shared_ptr<Run>> starting_, active_, ended_;
  uint64_t timer_ = 0;  // for the soonest deadline, or one that was sooner; 0: none
  Deadline timer_at_{};
};

struct Ended final : Completion {
  explicit Ended(const Status& status) { Finish(status); }
};

Status Check(const RunOptions& options) {
  if (options.plan == nullptr) return Status(Code::kInvalid, "launch: no plan");
  const Plan& plan = *options.plan;
  const std::string what = "launch of " + options.description + ": ";
  if (static_cast<int>(options.dtype) >= kDTypeCount) return Status(Code::kInvalid, what + "there is no such dtype");
  if (static_cast<int>(options.op) >= kOpCount) return Status(Code::kInvalid, what + "there is no such operation");
  if (options.divisor == 0) return Status(Code::kInvalid, what + "the divisor is 0");
  if (static_cast<uint8_t>(options.traffic) > static_cast<uint8_t>(TrafficClass::kBulk)) {
    return Status(Code::kInvalid, what + "there is no such traffic class");
  }
  if (plan.reduced_lengths % SizeOf(options.dtype) != 0) {
    return Status(Code::kInvalid, what + "a chunk that is reduced is no whole number of elements of " +
                                      std::to_string(SizeOf(options.dtype)) + " bytes");
  }
  if (plan.reduces && !Supports(options.op, options.dtype)) {
    return Status(Code::kInvalid,
                  what + "there is no " + NameOf(options.op) + " of " + std::string(NameOf(options.dtype)));
  }
  if ((plan.needs_input && options.input == nullptr) || (plan.needs_output && options.output == nullptr)) {
    return Status(Code::kInvalid, what + (options.output == nullptr ? "the output" : "the input") + " is at address 0");
  }
  return Status();
}

LoopExecutor::~LoopExecutor() {
  const Status closed(Code::kClosed, "the communicator was closed");
  for (const auto& run : launched_) run->Refuse(closed);
  while (!active_.empty()) active_.back()->Sever(closed);
  exchange.loop().Forget(*this);
  if (timer_ != 0) exchange.loop().CancelTimer(timer_);
}

std::shared_ptr<Completion> LoopExecutor::Launch(RunOptions options) {
  if (const Status status = Check(options); !status.ok()) return std::make_shared<Ended>(status);
  if (options.plan->steps.empty() && options.plan->program->size == 1) return std::make_shared<Ended>(Status());
  auto run = std::make_shared<Run>(*this, std::move(options));
  bool first;
  {
    std::lock_guard lock(mutex_);
    first = launched_.empty();
    launched_.push_back(run);
  }
  if (first) exchange.loop().PostOrRun([this] { StartLaunched(); });  // small enough to need no allocation
  return run;
}

void LoopExecutor::StartLaunched() {
  {
    std::lock_guard lock(mutex_);
    starting_.swap(launched_);
  }
  for (auto& run : starting_) {
    run->slot = active_.size();
    active_.push_back(run);
    WatchDeadline(run->deadline());
    run->Start();
  }
  starting_.clear();
}

void LoopExecutor::Cancel(const std::shared_ptr<Completion>& run, const Status& why) {
  if (auto own = std::dynamic_pointer_cast<Run>(run)) exchange.loop().Post([own, why] { own->Abort(why); });
}

void LoopExecutor::CancelLane(uint64_t lane, const Status& why) {
  exchange.loop().Post([this, lane, why] {
    std::vector<std::shared_ptr<Run>> runs;  // those that end leave `active_`
    for (const auto& run : active_) {
      if (run->id.lane == lane) runs.push_back(run);
    }
    for (const auto& run : runs) run->Abort(why);
  });
}

void LoopExecutor::OnEnded(Run& run) {
  ended_.push_back(std::move(active_[run.slot]));
  if (run.slot + 1 < active_.size()) {
    active_[run.slot] = std::move(active_.back());
    active_[run.slot]->slot = run.slot;
  }
  active_.pop_back();
  exchange.loop().Defer(*this);
}

// One timer for all: it is moved forward when a run needs that, and left alone when a run ends.
void LoopExecutor::WatchDeadline(Deadline deadline) {
  if (timer_ != 0 && timer_at_ <= deadline) return;
  if (timer_ != 0) exchange.loop().CancelTimer(timer_);
  timer_at_ = deadline;
  timer_ = exchange.loop().CallAt(deadline, [this] { OnTimer(); });
}

void LoopExecutor::OnTimer() {
  timer_ = 0;
  const auto now = Clock::now();
  std::vector<std::shared_ptr<Run>> due;
  for (const auto& run : active_) {
    if (run->deadline() <= now) due.push_back(run);
  }
  for (const auto& run : due) run->OnDeadline();
  for (const auto& run : active_) WatchDeadline(run->deadline());
}

}  // namespace

std::unique_ptr<Executor> MakeExecutor(Exchange& exchange) { return std::make_unique<LoopExecutor>(exchange); }

}  // namespace byteps_like
