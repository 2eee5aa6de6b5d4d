#include "collectives/host/host_area.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

#include "collectives/host/host_group.h"
#include "csrc/base/thread.h"

namespace byteps_like {
namespace {

uint64_t PidSpace() {
  struct stat about{};
  return ::stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

uint64_t HashOf(const std::vector<uint32_t>& members) {
  uint64_t hash = members.size();
  for (const uint32_t member : members) hash = (hash ^ (member + 1)) * 0x9E3779B97F4A7C15u;
  return hash | 1;
}

// The value that stands for a lane in a slot: never 0.
uint64_t KeyOf(uint64_t lane) { return lane == 0 ? 0x9E3779B97F4A7C15u : lane; }

}  // namespace

LocalArea::LocalArea(HostOptions options)
    : options_(std::move(options)),
      layout_(options_.area->data(), ranks(), HostGroupsIn(options_.area->size(), ranks())),
      may_spin_(ranks() <= static_cast<uint32_t>(std::max(1, ::get_nprocs()))),
      lost_(ranks()),
      processes_(ranks()),
      reached_for_(ranks()) {
  // Few of its pages are ever used, here and there: none may become a huge one, and no core dump wants the rest.
  ::madvise(options_.area->data(), options_.area->size(), MADV_NOHUGEPAGE);
  ::madvise(options_.area->data(), options_.area->size(), MADV_DONTDUMP);
  HostCell& cell = layout_.cell(index());
  cell.pid_space.store(PidSpace());
  cell.pid.store(::getpid());
}

void LocalArea::Ring(uint32_t rank) {
  HostCell& cell = layout_.cell(rank);
  if (cell.sleepers.load() == 0) return;
  cell.bell.fetch_add(1);
  WakeAll(cell.bell);
}

Status LocalArea::LossOf(uint32_t rank) {
  const HostCell& cell = layout_.cell(rank);
  if (cell.gone.load() == 2) return FailureIn(cell.code, cell.text);
  std::lock_guard lock(mutex_);
  return lost_[rank];
}

void LocalArea::Fail(uint32_t rank, const Status& why) {
  if (rank >= ranks()) return;
  {
    std::lock_guard lock(mutex_);
    if (!lost_[rank].ok()) return;
    lost_[rank] = why;
  }
  // Who is given up by the others has no say about them: it may live, cut off, and miss all of them.
  if (rank != index() && layout_.cell(index()).gone.load() != 0) return;
  HostCell& cell = layout_.cell(rank);
  uint32_t nobody = 0;
  // Should the one that writes it die meanwhile, the others still find out by themselves.
  if (cell.gone.compare_exchange_strong(nobody, 1)) {
    cell.code = static_cast<uint32_t>(why.code());
    std::snprintf(cell.text, sizeof(cell.text), "%s", why.message().c_str());
    cell.gone.store(2);
  }
  layout_.header().losses.fetch_add(1);
  for (uint32_t other = 0; other < ranks(); ++other) Ring(other);
}

bool LocalArea::Died(uint32_t rank) {
  const HostCell& cell = layout_.cell(rank);
  const pid_t pid = cell.pid.load();
  if (pid == 0 || cell.pid_space.load() != layout_.cell(index()).pid_space.load()) return false;
  std::lock_guard lock(mutex_);
  Fd& process = processes_[rank];
  if (!process) process.Reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return errno == ESRCH || (::kill(pid, 0) != 0 && errno == ESRCH);  // no descriptor is free, say
  pollfd look{process.get(), POLLIN, 0};
  return ::poll(&look, 1, 0) == 1;
}

void LocalArea::CheckLives(std::span<const uint32_t> ranks) {
  for (const uint32_t rank : ranks) {
    if (rank == index() || !LossOf(rank).ok()) continue;
    if (layout_.cell(rank).pid.load() == 0) ReachFor(rank);
    if (!Died(rank)) continue;
    Fail(rank, Status(Code::kPeerLost, name(rank) + " is lost: its process has ended"));
  }
}

void LocalArea::ReachFor(uint32_t rank) {
  {
    std::lock_guard lock(mutex_);
    if (reached_for_[rank] || regions() == nullptr) return;
    reached_for_[rank] = true;
  }
  regions()->Reach(rank);
}

// The lanes of slots change only under this lock. It is held only briefly. A dead owner is no obstacle, because
// everything it guards is changed by single stores.
Status LocalArea::Lock() {
  auto& lock = layout_.header().lock;
  const std::chrono::duration<double> patience(options_.lock_timeout);
  const Deadline deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
  for (uint32_t turn = 1;; ++turn) {
    uint32_t owner = 0;
    if (lock.compare_exchange_strong(owner, index() + 1)) return {};
    YieldCore();
    if (turn % 1024 != 0) continue;
    if (owner > ranks()) return Status(Code::kCorrupt, "host area: its lock belongs to no rank of this host");
    if (Died(owner - 1) && lock.compare_exchange_strong(owner, index() + 1)) return {};
    if (Clock::now() < deadline) continue;
    return Status(Code::kTimeout, "host area: " + name(owner - 1) + " keeps its lock: is that process stopped?");
  }
}

Result<uint32_t> LocalArea::SlotFor(uint64_t lane, uint64_t members) {
  const uint64_t key = KeyOf(lane);
  const uint32_t groups = layout_.groups();
  uint32_t free = groups;
  for (uint32_t i = 0; i < groups; ++i) {
    const uint64_t taken = layout_.lane(i).load();
    if (taken == 0 && free == groups) free = i;
    if (taken != key) continue;
    if (layout_.slot(i).members.load() == members) return i;
    return Status(Code::kInvalid, "host area: this lane belongs to a group with other ranks");
  }
  if (free == groups) {
    return Status(Code::kCapacity, "host area: all " + std::to_string(groups) + " groups are in use");
  }
  layout_.slot(free).members.store(members);
  layout_.lane(free).store(key);
  return free;
}

Result<std::shared_ptr<LocalHostGroup>> LocalArea::Group(uint64_t lane, std::vector<uint32_t> members) {
  const auto mine = std::find(members.begin(), members.end(), index());
  if (mine == members.end()) return Status(Code::kInvalid, "host area: the group does not include this rank");
  if (members.size() > ranks() ||
      std::any_of(members.begin(), members.end(), [&](uint32_t m) { return m >= ranks(); })) {
    return Status(Code::kInvalid, "host area: the group has ranks that are not on this host");
  }
  const auto me = static_cast<uint32_t>(mine - members.begin());
  std::lock_guard lock(groups_mutex_);
  if (auto group = groups_[lane].lock()) {
    if (group->members() != members) return Status(Code::kInvalid, "host area: this lane has other members");
    return group;
  }
  if (Status locked = Lock(); !locked.ok()) return locked;
  auto slot = SlotFor(lane, HashOf(members));
  if (slot.ok()) layout_.member(*slot, me).joined.fetch_add(1);
  Unlock();
  if (!slot.ok()) return slot.status();
  auto group = std::make_shared<LocalHostGroup>(shared_from_this(), *slot, std::move(members), me);
  std::erase_if(groups_, [](const auto& known) { return known.second.expired(); });
  groups_[lane] = group;
  return group;
}

void LocalArea::CancelLane(uint64_t lane, const Status& why) {
  std::shared_ptr<LocalHostGroup> group;  // let go of without the lock: it may be the last to hold it
  {
    std::lock_guard lock(groups_mutex_);
    if (const auto known = groups_.find(lane); known != groups_.end()) group = known->second.lock();
  }
  if (group != nullptr) group->CancelAll(why);
}

// The last member to leave makes the slot a fresh one.
void LocalArea::Release(uint32_t slot, uint32_t member, uint32_t members) {
  if (!Lock().ok()) return;  // the slot stays taken
  layout_.member(slot, member).left.fetch_add(1);
  bool all_left = true;
  for (uint32_t j = 0; j < members; ++j) {
    const HostMember& each = layout_.member(slot, j);
    all_left &= each.joined.load() > 0 && each.joined.load() == each.left.load();
  }
  if (all_left) {
    HostSlot& words = layout_.slot(slot);
    for (uint32_t j = 0; j < members; ++j) {
      HostMember& each = layout_.member(slot, j);
      each.in.store(0);
      each.mid.store(0);
      each.out.store(0);
      each.taken.store(0);
      each.joined.store(0);
      each.left.store(0);
    }
    for (auto& failed : words.failed) failed.store(0);
    for (auto& work : words.work) {
      work.finished.store(0);
    }
    // Otherwise up to stage_bytes() of each member would stay in use until a group takes the slot again.
    ::madvise(layout_.stage(slot, 0), layout_.stage_bytes() * ranks(), MADV_REMOVE);
    layout_.lane(slot).store(0);
  }
  Unlock();
}

Status LocalArea::Adopt(std::shared_ptr<LocalHostGroup> group) {
  std::lock_guard lock(mutex_);
  if (stop_.load()) return Status(Code::kClosed, name(index()) + " has left");
  if (!thread_.joinable()) {
    auto thread = StartThread("for calls that no thread waits for", [this] { Progress(); });
    if (!thread.ok()) return thread.status();
    thread_ = std::move(*thread);
  }
  if (std::find(adopted_.begin(), adopted_.end(), group) == adopted_.end()) adopted_.push_back(std::move(group));
  Nudge();
  return {};
}

void LocalArea::Nudge() {
  nudges_.fetch_add(1);
  if (resting_.load() != 0) WakeAll(nudges_);
}

bool LocalArea::DriveAdopted(bool look_at_time) {
  std::vector<std::shared_ptr<LocalHostGroup>> groups;  // the idle ones are let go after the lock
  {
    std::lock_guard lock(mutex_);
    groups = adopted_;
    std::erase_if(adopted_, [](const auto& group) { return group->idle(); });
  }
  bool moved = false;
  for (const auto& group : groups) {
    if (!group->awaited()) moved |= group->Drive(look_at_time);
  }
  return moved;
}

bool LocalArea::HasWork() {
  std::lock_guard lock(mutex_);
  return std::any_of(adopted_.begin(), adopted_.end(),
                     [](const auto& group) { return !group->idle() && !group->awaited(); });
}

// Sleeps where the other ranks' words don't wake it.
void LocalArea::Rest() {
  const uint32_t nudges = nudges_.load();
  resting_.store(1);
  if (!HasWork() && !stop_.load()) SleepOn(nudges_, nudges, Clock::now() + std::chrono::hours(24));
  resting_.store(0);
}

void LocalArea::Progress() {
  Patience patience(may_spin_);
  while (!stop_.load()) {
    if (DriveAdopted(false)) {
      patience.Reset();
      continue;
    }
    if (!HasWork()) {
      Rest();
      patience.Reset();
      continue;
    }
    if (patience.Step()) continue;
    DriveAdopted(true);
    const auto now = Clock::now();
    Sleep(NextLook(now), [&] { return stop_.load() || DriveAdopted(false); });
    if (Clock::now() - now >= kLookAtProcesses) CheckAdopted();
    DriveAdopted(true);
    patience.Reset();
  }
}

Deadline LocalArea::NextLook(Deadline now) {
  std::lock_guard lock(mutex_);
  Deadline next = adopted_.empty() ? Deadline::max() : now + kLookAtProcesses;
  for (const auto& group : adopted_) next = std::min(next, group->NextDeadline());
  return next;
}

void LocalArea::CheckAdopted() {
  std::vector<std::shared_ptr<LocalHostGroup>> groups;
  {
    std::lock_guard lock(mutex_);
    groups = adopted_;
  }
  for (const auto& group : groups) CheckLives(group->members());
}

// The remaining calls have failed already, but their waiters must still be told.
void LocalArea::Close(const Status& reason) {
  Fail(index(), reason);
  Thread thread;
  {
    std::lock_guard lock(mutex_);
    if (stop_.exchange(true)) return;
    thread = std::move(thread_);
  }
  Ring(index());
  Nudge();
  if (thread.joinable()) thread.join();
  for (bool left = true; left;) {
    DriveAdopted(true);
    const std::lock_guard lock(mutex_);
    left = std::any_of(adopted_.begin(), adopted_.end(), [](const auto& group) { return !group->idle(); });
  }
  std::vector<std::shared_ptr<LocalHostGroup>> groups;  // each holds this area: to be let go, after the lock
  std::lock_guard lock(mutex_);
  adopted_.swap(groups);
}

}  // namespace byteps_like
