#include "csrc/engine/staging/stager.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "csrc/base/thread.h"

namespace byteps_like {
namespace {

// One that waits for users' streams, one that is copied, and one that is encoded or issued meanwhile; and up. With the
// program's streams no more than the queues that a device has for a process (kLeastConnections).
constexpr size_t kLanes[] = {3, 2};
static_assert(kLanes[0] + kLanes[1] <= kLeastConnections - 3);

}  // namespace

// Its beginning and its end -------------------------------------------------------------------------------------------

Result<std::unique_ptr<Stager>> Stager::Create(PartSink& sink, const EngineContext& context, std::shared_ptr<Gpu> gpu,
                                               const KernelTable& kernels) {
  std::unique_ptr<Stager> stager(new Stager(sink, context, std::move(gpu)));
  const Status status = stager->Prepare(kernels);
  if (!status.ok()) return status;
  auto thread = StartThread("to stage with", [stager = stager.get()] { stager->Work(); });
  if (!thread.ok()) return thread.status();
  stager->thread_ = std::move(*thread);
  return stager;
}

Stager::Stager(PartSink& sink, const EngineContext& context, std::shared_ptr<Gpu> gpu)
    : sink_(sink),
      context_(context),
      longest_drain_(
          std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(context.options.drain_timeout))),
      supplies_(std::move(gpu)) {}

Status Stager::Prepare(const KernelTable& kernels) {
  auto gates = GpuGates::Create(supplies_.gpu);
  if (!gates.ok()) return gates.status();
  gates_ = std::move(*gates);
  AddKernels(kernels);
  for (size_t group = 0; group < kGroups; ++group)
    for (size_t i = 0; i < kLanes[group]; ++i) {
      auto lane = Lane::Create(supplies_);
      if (!lane.ok()) return lane.status();
      auto slot = std::make_unique<Slot>();
      slot->stager = this;
      slot->lane = std::move(*lane);
      slot->waits = group == kDowns && i == 0;
      slots_[group].push_back(std::move(slot));
    }
  return Status();
}

void Stager::AddKernels(const KernelTable& kernels) {
  auto feedback = GpuFeedbackKernels::Make(kernels);
  if (!supplies_.feedback && feedback.ok()) supplies_.feedback = std::make_unique<GpuFeedbackKernels>(*feedback);
}

Stager::~Stager() {
  Stop();
  Drain();
}

void Stager::Stop() {
  std::vector<Staging*> left;
  Status why;
  {
    Lock lock(mutex_);
    ending_ = true;
    why = WhyNoMore();
    left = TakeQueued();
    changed_.notify_all();
    changed_.wait(lock, [this] { return !Any([](const Slot& slot) { return slot.ending; }); });
  }
  for (Staging* const staging : left) End(*staging->part, why);
}

bool Stager::stuck() const {
  std::lock_guard lock(mutex_);
  return stuck_;
}

void Stager::End(Part& part, const Status& status) {
  if (part.coding != nullptr && part.coding->on_gpu) {
    GiveBack(*part.staging, supplies_.pool);
    part.coding->on_gpu = false;
  }
  sink_.Done(part, status);
}

Status Stager::WhyNoMore() const {
  if (!broken_.ok() || !ending_) return broken_;
  return Status(Code::kClosed, "this rank was shut down while the operation was in flight");
}

// From callers --------------------------------------------------------------------------------------------------------

Status Stager::Reserve(std::span<const Coding* const> codings) {
  std::vector<size_t> pinned;
  size_t scratch = 0;
  for (const Coding* const coding : codings) {
    const LaneNeeds needs(*coding);
    pinned.insert(pinned.end(), needs.pinned.begin(), needs.pinned.end());
    scratch = std::max(scratch, needs.scratch);
  }
  const Status status = supplies_.scratch.Reserve(scratch);
  return status.ok() ? supplies_.pool.Reserve(pinned) : status;
}

void Stager::Release(std::span<const Coding* const> codings) {
  for (const Coding* const coding : codings) supplies_.pool.Release(LaneNeeds(*coding).pinned);
}

Result<UserWork*> Stager::Record(uint64_t stream, uint32_t parts) {
  const auto handle = reinterpret_cast<cuda::Stream>(stream);
  Status status = CheckNotCapturing(gpu(), handle);
  if (!status.ok()) return status;
  auto gate = gates_->Make();
  if (!gate.ok()) return gate.status();
  auto start = Unused();
  if (!start.ok()) return start.status();
  {
    std::lock_guard lock(mutex_);
    UserWork& work = **start;
    work.gate = std::move(*gate);
    work.thread = ThisThread();
    work.stream = stream;
    work.number = 0;
    work.waiting = parts;
    work.fired = false;
  }
  status = (*start)->event->Record(handle);
  if (status.ok()) return start;
  Drop(*start);
  return status;
}

Result<UserWork*> Stager::Unused() {
  {
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
    if (!free_starts_.empty()) {
      UserWork* const start = free_starts_.back();
      free_starts_.pop_back();
      return start;
    }
  }
  auto event = GpuEvent::Create(supplies_.gpu);
  if (!event.ok()) return event.status();
  auto start = std::make_unique<UserWork>();
  start->event = std::move(*event);
  std::lock_guard lock(mutex_);
  return starts_.emplace_back(std::move(start)).get();
}

void Stager::Drop(UserWork* start) {
  std::lock_guard lock(mutex_);
  free_starts_.push_back(start);
}

// Also after a failure or during shutdown: the thread, or Stop, ends the partitions that it finds.
void Stager::Begin(Staging& staging) {
  std::lock_guard lock(mutex_);
  staging.order = order_++;
  if (staging.start->number == 0) {
    staging.start->number = ++uses_;
    late_starts_.push_back(staging.start);
  }
  Queue(kDowns, staging);
}

// Its stream no longer has to be waited for: it is on its lane, or has ended.
void Stager::LetGo(Staging& staging) {
  UserWork* const start = std::exchange(staging.start, nullptr);
  if (start == nullptr || --start->waiting != 0) return;
  std::erase(late_starts_, start);
  free_starts_.push_back(start);
}

void Stager::Landed(Part& part, const Status& status) {
  Part& whole = part.coding != nullptr ? *part.coding->part : part;
  Status why = status;
  if (why.ok()) {
    std::lock_guard lock(mutex_);
    why = WhyNoMore();
    if (why.ok()) {
      const bool agreed = &part != &whole;
      const bool encoded = whole.coding != nullptr && whole.coding->on_gpu;
      whole.staging->stage = agreed ? StagingStage::kEncode : encoded ? StagingStage::kDecode : StagingStage::kUp;
      return Queue(agreed ? kDowns : kUps, *whole.staging);
    }
  }
  End(whole, why);
}

void Stager::Queue(Group group, Staging& staging) {
  queues_[group].push_back(&staging);
  changed_.notify_all();
}

}  // namespace byteps_like
