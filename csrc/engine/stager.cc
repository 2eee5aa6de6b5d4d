#include "csrc/engine/stager.h"

#include <chrono>
#include <utility>

#include "csrc/engine/engine.h"

namespace byteps_like {
namespace {

// Each way: one is copied, others encode, or wait for the user's stream. All together no more than the queues that a
// device has for a process unless it is told otherwise (CUDA_DEVICE_MAX_CONNECTIONS).
constexpr size_t kLanes[] = {3, 2, 3};

Status Stopped() { return Status(Code::kClosed, "this rank was shut down while the operation was in flight"); }

}  // namespace

// Its beginning and its end -------------------------------------------------------------------------------------------

Result<std::unique_ptr<Stager>> Stager::Create(Engine& engine, std::shared_ptr<Gpu> gpu, const KernelTable& kernels) {
  std::unique_ptr<Stager> stager(new Stager(engine, std::move(gpu)));
  const Status status = stager->Prepare(kernels);
  if (!status.ok()) return status;
  stager->thread_ = std::thread([stager = stager.get()] { stager->Work(); });
  return stager;
}

Stager::Stager(Engine& engine, std::shared_ptr<Gpu> gpu)
    : engine_(engine),
      longest_drain_(
          std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(engine.options_.drain_timeout))),
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
      slot->oldest_first = group == kDowns && i == 0;
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
  {
    Lock lock(mutex_);
    ending_ = true;
    left = TakeQueued();
    changed_.notify_all();
    changed_.wait(lock, [this] { return !Any([](const Slot& slot) { return slot.ending; }); });
  }
  for (Staging* const staging : left) End(*staging->part, Stopped());
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
  engine_.Done(part, status);
}

// From callers --------------------------------------------------------------------------------------------------------

Result<UserWork*> Stager::Record(uint64_t stream, uint32_t parts) {
  const auto handle = reinterpret_cast<cuda::Stream>(stream);
  Status status = CheckNotCapturing(gpu(), handle);
  if (!status.ok()) return status;
  auto gate = gates_->Make();
  if (!gate.ok()) return gate.status();
  UserWork* start = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
    if (!free_starts_.empty()) {
      start = free_starts_.back();
      free_starts_.pop_back();
    }
  }
  if (start == nullptr) {
    auto event = GpuEvent::Create(supplies_.gpu);
    if (!event.ok()) return event.status();
    std::lock_guard lock(mutex_);
    start = starts_.emplace_back(std::make_unique<UserWork>()).get();
    start->event = std::move(*event);
  }
  start->gate = std::move(*gate);
  start->waiting = parts;
  status = start->event->Record(handle);
  if (status.ok()) return start;
  Drop(start);
  return status;
}

void Stager::Drop(UserWork* start) {
  std::lock_guard lock(mutex_);
  free_starts_.push_back(start);
}

void Stager::Begin(Staging& staging) {
  std::lock_guard lock(mutex_);
  Queue(kDowns, staging);
}

void Stager::Landed(Part& part, const Status& status) {
  Part& whole = part.coding != nullptr ? *part.coding->part : part;
  Status why = status;
  if (why.ok()) {
    std::lock_guard lock(mutex_);
    if (broken_.ok() && !ending_) {
      const bool agreed = &part != &whole;
      const bool encoded = whole.coding != nullptr && whole.coding->on_gpu;
      whole.staging->stage = agreed ? StagingStage::kEncode : encoded ? StagingStage::kDecode : StagingStage::kUp;
      return Queue(agreed ? kEncodes : kUps, *whole.staging);
    }
    why = broken_.ok() ? Stopped() : broken_;
  }
  End(whole, why);
}

void Stager::Queue(Group group, Staging& staging) {
  queues_[group].push_back({staging.part->priority, order_++, &staging});
  changed_.notify_all();
}

}  // namespace byteps_like
