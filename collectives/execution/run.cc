#include "collectives/execution/run.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <new>
#include <utility>

#include "collectives/timed_out.h"
#include "csrc/base/trace.h"

namespace byteps_like {
namespace {

constexpr double kGrace = 1, kLongest = 1e9;  // seconds
constexpr uint32_t kAlignment = 16;           // of segments: the largest element, so that none is ever cut

Clock::duration Seconds(double seconds) {
  const double bounded = seconds >= 0 ? std::min(seconds, kLongest) : 0;  // no number: 0
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bounded));
}

uint32_t SegmentOf(uint32_t bytes) { return std::clamp(bytes, kAlignment, kMaxPayload) / kAlignment * kAlignment; }

// Of addresses, not of pointers: the chunks of a buffer may lie in memories of their own, an empty one at address 0.
std::byte* At(const std::byte* base, int64_t offset) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(base) + static_cast<uintptr_t>(offset));
}

constexpr const char* kKinds[] = {"send to", "receive from", "receive and reduce from", "copy"};

}  // namespace

Run::Run(RunOwner& owner, RunOptions options)
    : owner_(owner),
      gate_(owner.exchange.gate()),
      rank_(owner.exchange.rank()),
      options_(std::move(options)),
      plan_(*options_.plan),
      launched_(Clock::now()),
      deadline_(launched_ + Seconds(options_.timeout)) {
  id = options_.id;
  description = std::move(options_.description);
  ranks = plan_.ranks;
  remaining_ = static_cast<uint32_t>(plan_.steps.size());
}

Run::~Run() = default;

bool Run::Wait(Deadline deadline) {
  const int64_t since = Tracing() && !done() ? TraceClock() : 0;
  const bool ended = WaitDriving(gate_.get(), deadline);
  if (since != 0) {
    TraceSince(since, {.kind = TraceKind::kWait, .detail = 1, .key = id.lane, .round = id.call, .member = rank_});
  }
  return ended;
}

void Run::Start() {
  started_ = true;
  if (Status status = Prepare(); !status.ok()) {
    // The others would wait for this rank: they are told, if they can be.
    if (owner_.exchange.Begin(*this).ok()) owner_.exchange.Abort(*this, status);
    return End(status);
  }
  if (Status status = owner_.exchange.Begin(*this); !status.ok()) return End(status);
  draining_ = true;
  PostReceives();
  for (uint32_t step = 0; step < plan_.steps.size() && !ended_; ++step) Try(step);
  draining_ = false;
  Drain();
}

Status Run::Prepare() {
  if (plan_.ranks[plan_.program->rank] != owner_.exchange.rank()) {
    return Status(Code::kInvalid, description + ": the plan is rank " +
                                      std::to_string(plan_.ranks[plan_.program->rank]) + "'s, this is rank " +
                                      std::to_string(owner_.exchange.rank()));
  }
  const size_t bytes =
      plan_.steps.size() * sizeof(State) + plan_.sends * sizeof(Send) + plan_.receives * sizeof(Receive);
  memory_.reset(new (std::nothrow) std::byte[bytes]);
  if (plan_.scratch_bytes > 0) scratch_ = owner_.pool.Take(plan_.scratch_bytes);
  if (memory_ == nullptr || (plan_.scratch_bytes > 0 && scratch_.data == nullptr)) {
    return Status(Code::kCapacity,
                  description + ": no memory for " + std::to_string(plan_.scratch_bytes) + " bytes of scratch");
  }
  PrepareSteps(memory_.get());
  return Status();
}

void Run::PrepareSteps(std::byte* memory) {
  static_assert(alignof(State) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__ && sizeof(State) % alignof(Send) == 0 &&
                sizeof(Send) % alignof(Receive) == 0);
  states_ = reinterpret_cast<State*>(memory);
  sends_ = reinterpret_cast<Send*>(states_ + plan_.steps.size());
  receives_ = reinterpret_cast<Receive*>(sends_ + plan_.sends);
  const std::byte* const bases[] = {options_.input, options_.output, scratch_.data};
  const uint32_t segment = SegmentOf(options_.segment_bytes);
  for (uint32_t i = 0; i < plan_.steps.size(); ++i) {
    const PlanStep& step = plan_.steps[i];
    State& state = *new (&states_[i]) State();
    state.source = At(bases[static_cast<int>(step.source_buffer)], step.source);
    state.target = At(bases[static_cast<int>(step.target_buffer)], step.target);
    if (step.kind == StepKind::kSend) {
      Send& send = *new (&sends_[step.message]) Send();
      send.peer = step.peer;
      send.tag = step.tag;
      send.data = state.source;
      send.length = step.length;
      send.traffic = options_.traffic;
      send.priority = options_.priority;
      send.segment_bytes = segment;
      send.step = i;
    } else if (step.kind != StepKind::kCopy) {
      Receive& receive = *new (&receives_[step.message]) Receive();
      receive.peer = step.peer;
      receive.tag = step.tag;
      receive.length = step.length;
      receive.step = i;
    }
  }
}

// Posts all at once: early bytes then go straight to their place, or wait for that place rather than for their turn.
void Run::PostReceives() {
  for (uint32_t i = 0; i < plan_.receives && !ended_; ++i) {
    const uint32_t step = receives_[i].step;
    states_[step].posted = true;
    owner_.exchange.Post(*this, receives_[i]);
    if (ended_ || !MayOffer(step)) continue;
    states_[step].offerable = true;
    TryOffer(step);
  }
}

// Operands of a reduction are added from where they arrived, so their place is not offered. Looked at here, so that
// other transports pay nothing later.
bool Run::MayOffer(uint32_t step) const {
  const PlanStep& planned = plan_.steps[step];
  return planned.kind == StepKind::kReceive && owner_.exchange.TakesOffers(planned.peer, planned.length);
}

void Run::OnFailed(const Status& why) {
  if (!over_) End(why);
}

void Run::Abort(const Status& why) {
  if (ended_) return;
  const Status status = why;  // NOLINT(performance-unnecessary-copy-initialization): `why` may go with the call
  ended_ = true;
  if (owner_.exchange.Abort(*this, status)) return End(status);
  deadline_ = launched_ + Seconds(kLongest);  // OnFailed follows
}

void Run::Sever(const Status& why) {
  Abort(why);
  if (over_) return;
  owner_.exchange.Sever(*this);
  End(why);
}

void Run::Refuse(const Status& why) {
  ended_ = over_ = true;  // later cancellations find nothing to do
  Finish(why);
}

// From here on nothing is read or written any more.
void Run::End(const Status& status) {
  ended_ = over_ = true;
  if (Tracing() && status.ok()) {
    TraceSince(TraceNanoseconds(launched_), {.kind = TraceKind::kCall,
                                             .key = id.lane,
                                             .round = id.call,
                                             .priority = options_.priority,
                                             .member = rank_,
                                             .text = TraceText(description)});
  }
  owner_.exchange.loop().Forget(*this);
  owner_.pool.Give(scratch_);
  // `status` may be part of the object that the owner destroys.
  const Status copy = status;  // NOLINT(performance-unnecessary-copy-initialization)
  owner_.OnEnded(*this);
  Finish(copy);
}

void Run::OnDeadline() {
  if (ended_) return;
  if (!granted_ && owner_.exchange.Silent(*this).empty()) {
    granted_ = true;
    owner_.exchange.Probe(*this);
    deadline_ += Seconds(kGrace);
    return;
  }
  Abort(Status(Code::kTimeout, Overdue()));
}

std::string Run::Overdue() const {
  char head[64];
  std::snprintf(head, sizeof(head), " (call %u of lane %016llx) ", id.call, static_cast<unsigned long long>(id.lane));
  const std::string silent = owner_.exchange.Silent(*this);
  return description + head + TimedOut(options_.timeout) + ": " + (silent.empty() ? "" : silent + "; ") + WaitingStep();
}

// The first step that waits for no other step, only for a peer.
std::string Run::WaitingStep() const {
  for (uint32_t i = 0; i < plan_.steps.size(); ++i) {
    const PlanStep& step = plan_.steps[i];
    const State& state = states_[i];
    if (state.done || (step.length == 0 ? !IsFree(i) : LimitOf(i) <= state.progress)) continue;
    std::string text = "rank " + std::to_string(owner_.exchange.rank()) + " is in step " + std::to_string(i + 1) +
                       " of " + std::to_string(plan_.steps.size()) + ", " + kKinds[static_cast<int>(step.kind)];
    if (step.kind != StepKind::kCopy) text += " rank " + std::to_string(step.peer);
    return text + ", " + std::to_string(state.progress) + " of " + std::to_string(step.length) + " bytes";
  }
  return "rank " + std::to_string(owner_.exchange.rank()) + " has no step to do";
}

}  // namespace byteps_like
