#include "collectives/host/host_side.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace byteps_like {
namespace {

constexpr uint32_t kArea = 0, kAskForArea = 0xFFFFFFFF;
constexpr size_t kQuestionBytes = 4096;

}  // namespace

void HostSide::SetWorld(const MeshWorld& world) {
  std::lock_guard lock(mutex_);
  if (!locals_.empty()) return;
  rank_ = world.rank;
  for (uint32_t peer = 0; peer < world.peers.size(); ++peer) {
    const std::string& host = world.peers[peer].host_id;  // empty: shares no memory
    if (peer != rank_ && (host.empty() || host != world.peers[rank_].host_id)) continue;
    locals_.push_back(peer);
    names_.push_back(world.peers[peer].name);
  }
}

// The caller's hold on the memory tells when it is over: not in a forked child, which has but a copy of it.
Result<std::shared_ptr<SharedBuffer>> HostSide::Allocate(size_t bytes) {
  auto buffer = SharedBuffer::Create(bytes);
  if (!buffer.ok()) return buffer;
  SharedBuffer* const raw = buffer->get();
  std::lock_guard lock(mutex_);
  const uint32_t id = next_region_++;
  own_.push_back({id, raw->data(), raw->size(), *buffer});
  return std::shared_ptr<SharedBuffer>(
      raw, [memory = std::move(*buffer), side = weak_from_this(), id, pid = ::getpid()](SharedBuffer*) mutable {
        memory.reset();
        if (::getpid() != pid) return;
        if (const auto still = side.lock()) still->Forget(id);
      });
}

void HostSide::Forget(uint32_t id) {
  std::lock_guard lock(mutex_);
  std::erase_if(own_, [id](const Own& own) { return own.id == id; });
  for (auto at = passed_.begin(); at != passed_.end();) {
    if (at->second != id) {
      ++at;
      continue;
    }
    Pass(locals_[at->first], id, nullptr);
    at = passed_.erase(at);
  }
}

Result<uint32_t> HostSide::LocalOf(uint32_t world_rank) const {
  const auto at = std::find(locals_.begin(), locals_.end(), world_rank);
  if (at != locals_.end()) return static_cast<uint32_t>(at - locals_.begin());
  return Status(Code::kInvalid, "host group: rank " + std::to_string(world_rank) + " is not on this host");
}

Result<std::shared_ptr<HostGroup>> HostSide::Group(uint64_t lane, const std::vector<uint32_t>& ranks,
                                                   Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (ranks.empty() || locals_.empty()) return Status(Code::kInvalid, "host group: no ranks, or no world yet");
  std::vector<uint32_t> members;
  for (const uint32_t rank : ranks) {
    auto local = LocalOf(rank);
    if (!local.ok()) return local.status();
    members.push_back(*local);
  }
  if (const Status there = AwaitArea(lock, deadline); !there.ok()) return there;
  const auto area = area_;
  lock.unlock();
  return area->Group(lane, std::move(members));
}

Status HostSide::AwaitArea(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  if (!failed_.ok()) return failed_;
  if (area_ != nullptr) return {};
  if (locals_.size() > kMostHostRanks) {
    return Status(Code::kCapacity, "host group: shared memory supports at most " + std::to_string(kMostHostRanks) +
                                       " ranks per host, but there are " + std::to_string(locals_.size()));
  }
  if (rank_ == locals_.front()) {
    MakeArea();
  } else if (!std::exchange(asked_, true)) {
    auto question = SharedBuffer::Create(kQuestionBytes);
    if (!question.ok()) return question.status();
    Pass(locals_.front(), kAskForArea, std::move(*question));
  }
  const auto ended = [this] { return area_ != nullptr || !failed_.ok(); };
  if (!changed_.wait_until(lock, deadline, ended)) {
    return Status(Code::kTimeout,
                  "host group: " + names_.front() + " did not pass on the host's shared memory in time");
  }
  return failed_;
}

// On the lowest rank of the host.
void HostSide::MakeArea() {
  if (area_ != nullptr || !failed_.ok()) return;
  auto area = MakeHostArea(locals_.size());
  if (!area.ok()) {
    failed_ = area.status();
    return;
  }
  Attach(std::move(*area));
}

void HostSide::Attach(std::shared_ptr<SharedBuffer> buffer) {
  auto index = LocalOf(rank_);
  auto area = HostArea::Attach({buffer, *index, names_, shared_from_this()});
  if (area.ok()) {
    buffer_ = std::move(buffer);
    area_ = std::move(*area);
    for (const auto& [local, why] : lost_) area_->Fail(local, why);
  } else {
    failed_ = area.status();
  }
  changed_.notify_all();
}

void HostSide::Pass(uint32_t peer, uint32_t id, std::shared_ptr<SharedBuffer> buffer) {
  if (mesh_ == nullptr) return;
  Mesh* mesh = mesh_;
  mesh->loop().Post([mesh, peer, id, buffer = std::move(buffer)] { mesh->PassRegion(peer, id, buffer); });
}

void HostSide::OnRegion(uint32_t peer, uint32_t id, std::shared_ptr<SharedBuffer> buffer) {
  std::shared_ptr<HostArea> area;
  {
    std::lock_guard lock(mutex_);
    auto local = LocalOf(peer);
    if (!local.ok() || mesh_ == nullptr) return;
    if (id == kAskForArea) {
      if (rank_ != locals_.front() || !answered_.insert(*local).second) return;  // a rank asks once
      MakeArea();
      Pass(peer, kArea, buffer_);  // none: it is told so
    } else if (id == kArea) {
      if (area_ == nullptr && peer == locals_.front()) Attach(std::move(buffer));
    } else {
      auto& region = from_[{*local, id}];
      known_[*local] += region == nullptr ? 1 : 0;
      region = std::move(buffer);
    }
    area = area_;
  }
  if (area != nullptr) area->Wake();
}

void HostSide::OnNoRegion(uint32_t peer, uint32_t id, bool refused) {
  if (id == kAskForArea) return OnRegion(peer, id, nullptr);  // the answer is what matters
  std::shared_ptr<HostArea> area;
  {
    std::lock_guard lock(mutex_);
    auto local = LocalOf(peer);
    if (!local.ok()) return;
    if (id == kArea) {
      if (area_ != nullptr || peer != locals_.front() || !failed_.ok()) return;
      failed_ = Status(Code::kSystem,
                       "host group: " + names_.front() + " can't share memory with " + names_[*LocalOf(rank_)] +
                           (refused ? ": their link can't pass it, or no file descriptor is free" : ": none arrived"));
      changed_.notify_all();
    } else if (refused) {
      known_[*local] += refused_.emplace(*local, id).second ? 1 : 0;
    } else {
      known_[*local] -= from_.erase({*local, id});
    }
    area = area_;
  }
  if (area != nullptr) area->Wake();
}

size_t HostSide::RegionsOf(uint32_t peer) {
  std::lock_guard lock(mutex_);
  auto local = LocalOf(peer);
  return local.ok() ? known_[*local] : 0;
}

void HostSide::OnPeerLost(uint32_t peer, const Status& why) {
  std::shared_ptr<HostArea> area;
  std::unique_lock lock(mutex_);
  auto local = LocalOf(peer);
  if (!local.ok()) return;
  lost_.emplace(*local, why);
  if (area_ == nullptr && peer == locals_.front()) failed_ = why;
  changed_.notify_all();
  area = area_;
  lock.unlock();
  if (area != nullptr) area->Fail(*local, why);
}

void HostSide::CancelLane(uint64_t lane, const Status& why) {
  std::shared_ptr<HostArea> area;
  {
    std::lock_guard lock(mutex_);
    area = area_;
  }
  if (area != nullptr) area->CancelLane(lane, why);
}

void HostSide::Close(const Status& why) {
  std::shared_ptr<HostArea> area;
  {
    std::lock_guard lock(mutex_);
    mesh_ = nullptr;
    if (failed_.ok()) failed_ = why;
    area = std::exchange(area_, nullptr);
    changed_.notify_all();
  }
  if (area != nullptr) area->Close(why);
}

RegionResolver::Place HostSide::Find(const std::byte* data, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < own_.size(); ++i) {
    const Own& own = own_[i];
    if (data < own.data || bytes > own.bytes || data - own.data > static_cast<int64_t>(own.bytes - bytes)) continue;
    if (!own.buffer.expired()) return {own.id, static_cast<uint64_t>(data - own.data)};
    own_.erase(own_.begin() + static_cast<int64_t>(i--));
  }
  return {};
}

RegionResolver::View HostSide::Resolve(uint32_t rank, uint32_t id) {
  std::lock_guard lock(mutex_);
  const auto found = from_.find({rank, id});
  if (found != from_.end()) return {found->second->data(), found->second->size(), found->second};
  View none;
  none.refused = refused_.contains({rank, id});
  return none;
}

// By a link: nothing else tells of a process that has left no trace in the area.
void HostSide::Reach(uint32_t rank) {
  std::lock_guard lock(mutex_);
  if (mesh_ == nullptr) return;
  mesh_->loop().Post([mesh = mesh_, peer = locals_[rank]] { mesh->Kick(peer); });
}

void HostSide::Announce(uint32_t rank, uint32_t id) {
  std::lock_guard lock(mutex_);
  if (!passed_.emplace(rank, id).second) return;
  const auto own = std::find_if(own_.begin(), own_.end(), [id](const Own& each) { return each.id == id; });
  if (own == own_.end()) return;
  if (auto buffer = own->buffer.lock()) Pass(locals_[rank], id, std::move(buffer));
}

}  // namespace byteps_like
