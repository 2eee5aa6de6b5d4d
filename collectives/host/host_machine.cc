#include "collectives/host/host_machine.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "collectives/timed_out.h"

namespace byteps_like {
namespace {

// How long a failed call waits for others that are at work in this rank's memory. They look at the failure after each
// part, so only a rank that is stopped or starved takes longer.
constexpr auto kGrace = std::chrono::seconds(1);

uint64_t IdentityOf(const std::vector<uint32_t>& members) {
  uint64_t hash = members.size();
  for (const uint32_t member : members) hash = (hash ^ member) * 0x9E3779B97F4A7C15u + 1;
  return hash;
}

// To the others, a rank that has left counts as one that has died.
Status AsLoss(const Status& why) { return why.code() == Code::kClosed ? Status(Code::kPeerLost, why.message()) : why; }

}  // namespace

HostMachine::HostMachine(LocalArea& area, uint32_t slot, std::vector<uint32_t> members, uint32_t me)
    : area_(area),
      slot_(slot),
      members_(std::move(members)),
      me_(me),
      identity_(IdentityOf(members_)),
      lost_(members_.size()),
      agreed_(members_.size()),
      brought_(members_.size()),
      pieces_(members_.size()),
      source_(members_.size()),
      target_(members_.size()),
      seen_out_(members_.size()) {
  for (uint32_t j = 0; j < size(); ++j) words_.push_back(&area_.layout().member(slot_, j));
  next_ = std::max<uint64_t>(1, CallOf(member(me_).out.load()));
  // Others may still read pieces that this rank staged before it left this lane for a while.
  std::fill(std::begin(source_use_), std::end(source_use_), next_ - 1);
  std::fill(std::begin(result_use_), std::end(result_use_), next_ - 1);
}

std::string HostMachine::name(uint32_t j) const { return area_.name(members_[j]); }

bool HostMachine::AllReached(std::atomic<uint64_t> HostMember::* word, uint64_t value) const {
  for (uint32_t j = 0; j < size(); ++j) {
    if (j != me_ && (member(j).*word).load() < value) return false;
  }
  return true;
}

// Having seen a word once is enough: these words only grow, and each look costs a cache line that its owner takes back.
bool HostMachine::AllOut(uint64_t value) {
  for (uint32_t j = 0; j < size(); ++j) {
    if (j == me_ || seen_out_[j] >= value) continue;
    seen_out_[j] = member(j).out.load();
    if (seen_out_[j] < value) return false;
  }
  return true;
}

void HostMachine::Publish(std::atomic<uint64_t> HostMember::* word, uint64_t value) {
  (member(me_).*word).store(value);
  RingOthers();
}

void HostMachine::RingOthers() {
  for (const uint32_t rank : members_) {
    if (rank != area_.index()) area_.Ring(rank);
  }
}

bool HostMachine::Advance(HostTask& task, bool only_begin) {
  bool moved = false;
  while (task.phase != HostTask::Phase::kDone && Step(task)) {
    moved = true;
    if (only_begin && task.phase == HostTask::Phase::kPosted) break;
  }
  if (task.phase == HostTask::Phase::kDone) held_.clear();
  return moved;
}

// The work that a lost rank has completed still counts: a rank that exits after its last call has let no other rank
// down.
bool HostMachine::Step(HostTask& task) {
  if (area_.closed() && task.status.ok()) Fail(task, area_.LossOf(area_.index()));
  return Noticed(task) || Go(task) || Bereaved(task);
}

bool HostMachine::Go(HostTask& task) {
  switch (task.phase) {
    case HostTask::Phase::kQueued:
      return Begin(task);
    case HostTask::Phase::kPosted:
      return Agree(task);
    case HostTask::Phase::kWorking:
      if (task.route == HostTask::Route::kDirect) return Direct(task);
      return task.route == HostTask::Route::kShare ? Share(task) : Pull(task);
    case HostTask::Phase::kLeaving:
      return Leave(task);
    case HostTask::Phase::kDone:
      break;
  }
  return false;
}

// Only a rank that has not left the call is missed: one that has done its part may exit, and its words show that part.
bool HostMachine::Bereaved(HostTask& task) {
  if (!task.status.ok() || task.phase == HostTask::Phase::kDone) return false;
  if (const uint32_t losses = area_.losses(); losses != seen_losses_) {
    seen_losses_ = losses;
    for (uint32_t j = 0; j < size(); ++j) lost_[j] = area_.LossOf(members_[j]);
    any_lost_ = std::any_of(lost_.begin(), lost_.end(), [](const Status& loss) { return !loss.ok(); });
    if (any_lost_) return true;  // looks once more at what was written before
  }
  if (!any_lost_) return false;
  if (!lost_[me_].ok()) {
    Fail(task, lost_[me_]);
    return true;
  }
  Status missed;
  for (uint32_t j = 0; j < size(); ++j) {
    if (lost_[j].ok() || CallOf(member(j).out.load()) > task.number) continue;
    // A rank that died is the reason why others leave.
    if (missed.ok() || (missed.code() == Code::kClosed && lost_[j].code() == Code::kPeerLost)) missed = lost_[j];
  }
  if (missed.ok()) return false;
  Fail(task, AsLoss(missed));
  return true;
}

// Another has failed this call.
bool HostMachine::Noticed(HostTask& task) {
  if (!task.status.ok() || task.phase == HostTask::Phase::kDone || task.number == 0) return false;
  const uint64_t failed = slot_words().failed[task.number % kHostRing].load();
  if (CallOf(failed) != task.number) return false;
  const uint32_t who = std::min(static_cast<uint32_t>(failed & 0xFFFFFFFF) - 1, size() - 1);
  const HostPost& reason = post(who, task.number);
  // The others may have been faster to note that this rank leaves; the status it was given says why.
  const Status mine = area_.LossOf(members_[me_]);
  const Status why = mine.ok() ? FailureIn(reason.failure_code, reason.failure) : mine;
  const bool left = mine.ok() && why.code() == Code::kClosed && !area_.LossOf(members_[who]).ok();
  EndFailed(task, left ? AsLoss(why) : why);
  return true;
}

void HostMachine::Fail(HostTask& task, const Status& why) {
  if (!task.status.ok() || task.phase == HostTask::Phase::kDone) return;
  if (task.number == 0) task.number = next_++;
  // Without a place among the calls of the others there is nowhere to say so: those that come find this rank gone on.
  if (task.phase != HostTask::Phase::kQueued || MayPost(task)) {
    HostPost& mine = post(me_, task.number);
    mine.failure_code = static_cast<uint32_t>(why.code());
    std::snprintf(mine.failure, sizeof(mine.failure), "%s", why.message().c_str());
    auto& failed = slot_words().failed[task.number % kHostRing];
    uint64_t seen = failed.load();
    while (CallOf(seen) < task.number && !failed.compare_exchange_weak(seen, PackWord(task.number, me_ + 1))) {
    }
    if (CallOf(seen) == task.number) return;  // another was first: noticed next
  }
  EndFailed(task, why);
}

// From here on this rank no longer touches the memory of others.
void HostMachine::EndFailed(HostTask& task, const Status& why) {
  task.status = why;
  task.phase = HostTask::Phase::kLeaving;
  task.grace = Clock::now() + kGrace;
  const uint64_t left = PackWord(task.number + 1, 0);
  member(me_).in.store(left);
  member(me_).mid.store(left);
  Publish(&HostMember::out, left);
}

bool HostMachine::Leave(HostTask& task) {
  if (task.status.ok()) {
    if (task.exposed && !AllOut(PackWord(task.number, kReadAll))) return false;
    Publish(&HostMember::out, PackWord(task.number + 1, 0));
  } else if (task.exposed && Clock::now() < task.grace) {
    for (uint32_t j = 0; j < size(); ++j) {
      const bool inside = CallOf(member(j).in.load()) == task.number && CallOf(member(j).out.load()) <= task.number;
      if (j != me_ && inside && area_.LossOf(members_[j]).ok()) return false;
    }
  }
  task.phase = HostTask::Phase::kDone;
  return true;
}

void HostMachine::FailLate(HostTask& task) {
  if (!task.status.ok() || task.phase == HostTask::Phase::kDone) return;
  if (task.number == 0) task.number = next_++;
  Fail(task, Status(Code::kTimeout, Describe(task) + " " + TimedOut(task.call.timeout) + ": " + Missing(task)));
}

std::string HostMachine::Missing(const HostTask& task) const {
  std::string late;
  const bool queued = task.phase == HostTask::Phase::kQueued;
  const char* why = queued ? "is still in an earlier call" : "has not begun it";
  for (uint32_t j = 0; j < size(); ++j) {
    const bool missing = queued ? member(j).out.load() < PackWord(task.number + 1 - kHostRing, 0)
                                : member(j).in.load() < PackWord(task.number, 1);
    if (j != me_ && missing) late += (late.empty() ? "" : ", ") + name(j);
  }
  if (!late.empty()) return late + " " + why;
  for (uint32_t j = 0; j < size(); ++j) {
    if (j != me_ && CallOf(member(j).out.load()) <= task.number) late += (late.empty() ? "" : ", ") + name(j);
  }
  return late + " has not finished it";
}

}  // namespace byteps_like
