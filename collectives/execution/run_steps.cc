// The steps of a run: advances those that can make progress, and those that they make possible.
#include <algorithm>
#include <cstring>

#include "collectives/execution/run.h"
#include "csrc/base/trace.h"
#include "csrc/kernels/kernels.h"

namespace byteps_like {
namespace {

constexpr uint64_t kSlice = 256u << 10;      // of a copy: the most that links wait for
constexpr uint64_t kCopyAtOnce = 32u << 10;  // a smaller copy costs less than coming back for it

}  // namespace

bool Run::IsFree(uint32_t step) const {
  const PlanStep& planned = plan_.steps[step];
  for (uint32_t i = planned.after_begin; i < planned.after_end; ++i) {
    if (!states_[plan_.after[i].step].done) return false;
  }
  return true;
}

uint64_t Run::LimitOf(uint32_t step) const {
  const PlanStep& planned = plan_.steps[step];
  auto limit = static_cast<int64_t>(planned.length);
  for (uint32_t i = planned.after_begin; i < planned.after_end; ++i) {
    const State& earlier = states_[plan_.after[i].step];
    if (!earlier.done) limit = std::min(limit, static_cast<int64_t>(earlier.progress) + plan_.after[i].lead);
  }
  return static_cast<uint64_t>(std::max<int64_t>(limit, 0));
}

void Run::OnSent(SendMessage& message) {
  if (ended_) return;
  const auto& send = static_cast<const Send&>(message);
  Progress(send.step, send.sent);
  Drain();
}

std::byte* Run::PlaceFor(ReceiveMessage& message, uint64_t offset, uint32_t length) {
  if (ended_) return nullptr;
  const uint32_t step = static_cast<const Receive&>(message).step;
  State& state = states_[step];
  if (LimitOf(step) < offset + length) {
    state.wanted = offset + length;
    return nullptr;
  }
  state.wanted = 0;
  if (Tracing() && state.begun == 0) state.begun = TraceClock();
  if (plan_.steps[step].kind == StepKind::kReceive) return state.target + offset;
  return kAnywhere;
}

void Run::OnBytes(ReceiveMessage& message, uint64_t offset, const std::byte* bytes, uint32_t length) {
  if (ended_) return;
  const uint32_t step = static_cast<const Receive&>(message).step;
  State& state = states_[step];
  const PlanStep& planned = plan_.steps[step];
  if (planned.length == 0) {
    state.arrived = true;
    Wake(step);
    return Drain();
  }
  if (planned.kind == StepKind::kReceive) {
    if (bytes != state.target + offset) std::memcpy(state.target + offset, bytes, length);
  } else if ((offset | length) % SizeOf(options_.dtype) != 0) {
    return Abort(
        Status(Code::kCorrupt, description + ": rank " + std::to_string(message.peer) + " sent a part of an element"));
  } else {
    Reduce(step, offset, bytes, length);
  }
  Progress(step, offset + length);
  Drain();
}

// Two ranks that exchange their partial results must get the same bits, but minimum and maximum return the first of two
// NaNs, or of two zeros. So the lower rank's operand comes first on both.
void Run::Reduce(uint32_t step, uint64_t offset, const std::byte* bytes, uint32_t length) {
  const PlanStep& planned = plan_.steps[step];
  void* const target = states_[step].target + offset;
  const void* const source = states_[step].source + offset;
  const size_t count = length / SizeOf(options_.dtype);
  const uint32_t divisor = planned.final && options_.op == Op::kAverage ? options_.divisor : 1;
  if (source == target && divisor == 1 && !planned.theirs_first) {
    return kernels::Reduce(options_.op, options_.dtype, target, bytes, count);
  }
  const void* const sources[] = {planned.theirs_first ? bytes : source, planned.theirs_first ? source : bytes};
  kernels::ReduceMany(options_.op, options_.dtype, {&target, 1}, sources, count, divisor);
}

void Run::Progress(uint32_t step, uint64_t progress) {
  State& state = states_[step];
  const PlanStep& planned = plan_.steps[step];
  state.progress = progress;
  if (progress == planned.length && !state.done) {
    state.done = true;
    --remaining_;
    if (Tracing()) TraceStep(step);
  }
  for (uint32_t i = planned.wakes_begin; i < planned.wakes_end; ++i) Wake(plan_.wakes[i]);
}

// A receive is asked for when its bytes come: it only needs waking when it has refused some, or its place may be the
// peer's now.
void Run::Wake(uint32_t step) {
  State& state = states_[step];
  if (state.queued || state.done) return;
  const StepKind kind = plan_.steps[step].kind;
  const bool waits = state.wanted > 0 || state.arrived || state.offerable;
  if (kind != StepKind::kSend && kind != StepKind::kCopy && !waits) return;
  state.queued = true;
  state.next = kNone;
  (woken_.first == kNone ? woken_.first : states_[woken_.last].next) = step;
  woken_.last = step;
}

void Run::Drain() {
  if (draining_) return;
  draining_ = true;
  while (woken_.first != kNone && !ended_) {
    const uint32_t step = woken_.first;
    woken_.first = states_[step].next;
    states_[step].queued = false;
    Try(step);
  }
  draining_ = false;
  if (ended_ || remaining_ > 0) return;
  owner_.exchange.End(*this);
  End(Status());
}

void Run::Try(uint32_t step) {
  if (states_[step].done) return;
  switch (plan_.steps[step].kind) {
    case StepKind::kSend:
      return TrySend(step);
    case StepKind::kCopy:
      return TryCopy(step);
    default:
      return TryReceive(step);
  }
}

// Posted when its first bytes are ready, so that the links choose among messages that can be sent.
void Run::TrySend(uint32_t step) {
  State& state = states_[step];
  Send& send = sends_[plan_.steps[step].message];
  const uint64_t limit = LimitOf(step);
  const bool grown = limit > send.ready;
  send.ready = limit;
  if (state.posted) {
    if (grown) owner_.exchange.Advance(send);
  } else if (send.length == 0 ? IsFree(step) : grown) {
    state.posted = true;
    if (Tracing()) state.begun = TraceClock();
    owner_.exchange.Post(*this, send);
  }
}

// When every earlier step is done with all of these bytes: the peer writes unseen.
void Run::TryOffer(uint32_t step) {
  State& state = states_[step];
  const PlanStep& planned = plan_.steps[step];
  if (LimitOf(step) < planned.length) return;
  state.offerable = false;
  owner_.exchange.Offer(receives_[planned.message], state.target);
}

void Run::TryReceive(uint32_t step) {
  State& state = states_[step];
  if (state.offerable) TryOffer(step);
  if (state.arrived) {
    if (IsFree(step)) Progress(step, 0);
  } else if (state.wanted > 0 && LimitOf(step) >= state.wanted) {
    state.wanted = 0;
    owner_.exchange.Retry(receives_[plan_.steps[step].message]);
  }
}

void Run::TryCopy(uint32_t step) {
  State& state = states_[step];
  if (plan_.steps[step].length == 0) {
    if (IsFree(step)) Progress(step, 0);
    return;
  }
  const uint64_t ready = LimitOf(step) - state.progress;
  if (ready == 0 || state.copying) return;
  if (ready <= kCopyAtOnce) return CopySlice(step, ready);
  state.copying = true;
  state.next_copy = kNone;
  (copies_.first == kNone ? copies_.first : states_[copies_.last].next_copy) = step;
  copies_.last = step;
  owner_.exchange.loop().Defer(*this);
}

void Run::CopySlice(uint32_t step, uint64_t bytes) {
  State& state = states_[step];
  if (Tracing() && state.begun == 0) state.begun = TraceClock();
  std::memcpy(state.target + state.progress, state.source + state.progress, bytes);
  Progress(step, state.progress + bytes);
}

void Run::TraceStep(uint32_t step) {
  const PlanStep& planned = plan_.steps[step];
  TraceSince(states_[step].begun, {.kind = TraceKind::kStep,
                                   .detail = static_cast<uint8_t>(planned.kind),
                                   .key = id.lane,
                                   .bytes = planned.length,
                                   .round = id.call,
                                   .priority = options_.priority,
                                   .member = rank_,
                                   .peer = planned.peer,
                                   .step = step});
}

void Run::RunDeferred() {
  if (ended_ || copies_.first == kNone) return;
  const uint32_t step = copies_.first;
  State& state = states_[step];
  CopySlice(step, std::min(LimitOf(step) - state.progress, kSlice));
  if (state.done || LimitOf(step) == state.progress) {
    copies_.first = state.next_copy;
    state.copying = false;
  }
  Drain();
  if (!ended_ && copies_.first != kNone) owner_.exchange.loop().Defer(*this);
}

}  // namespace byteps_like
