#include "server/server.h"

#include <algorithm>
#include <utility>

namespace byteps_like {

Server::Server(Options options) : options_(std::move(options)) {
  for (uint32_t index = 0; index < options_.shards; ++index) {
    Shard::Options shard;
    shard.index = index;
    shard.memory_limit = options_.memory_limit / options_.shards;
    shard.kernel_queue_bytes = options_.kernel_queue_bytes;
    shard.segment_bytes = std::clamp<size_t>(options_.segment_bytes, 1, kMaxPayload);
    shard.policies = options_.policies;
    shard.on_event = [this](uint32_t epoch, Code code, const std::string& text, bool fatal) {
      if (fatal) Fail(epoch, code, text);
      if (options_.on_event) options_.on_event(epoch, code, text, fatal);
    };
    shards_.push_back(std::make_unique<Shard>(std::move(shard)));
  }
}

Result<std::unique_ptr<Server>> Server::Start(Options options) {
  if (options.shards == 0) return Status(Code::kInvalid, "a server needs at least one shard");
  std::unique_ptr<Server> server(new Server(std::move(options)));
  for (auto& shard : server->shards_) {
    if (Status started = shard->Start(); !started.ok()) return started;
  }
  Status listening = server->Listen();
  if (!listening.ok()) return listening;
  return server;
}

Server::~Server() { Stop(); }

Status Server::Listen() {
  Admission::Options options;
  options.job = options_.job;
  options.secret = options_.secret;
  options.shards = options_.shards;
  options.admit = [this](std::unique_ptr<Stream> stream, const Admitted& who) {
    shards_[who.shard]->AddLink(std::move(stream), who);
  };
  auto admission = Admission::Open(options_.urls, std::move(options));
  if (admission.ok()) admission_ = std::move(*admission);
  return admission.status();
}

std::vector<std::string> Server::urls() const { return admission_->urls(); }

void Server::SetWorld(const ShardWorld& world) { SetWorld(world, {}, EngineOptions().least_segment); }

void Server::SetWorld(const ShardWorld& world, const std::vector<ShardAddress>& owners, size_t least_segment) {
  for (auto& shard : shards_) shard->SetWorld(world, Relaying(world, least_segment), owners);
  AdmissionWorld door{world.incarnation, world.epoch, {Role::kServer, world.member}, world.server, world.workers};
  for (const Aggregator& one : world.aggregators) door.servers.push_back({one.member, one.shards});
  for (const ShardAddress& one : world.chain) {
    if (door.servers.empty() || door.servers.back().member != one.member) door.servers.push_back({one.member, 0});
    ++door.servers.back().shards;
  }
  admission_->SetWorld(std::move(door));
}

EngineOptions Server::Relaying(const ShardWorld& world, size_t least_segment) const {
  EngineOptions relaying;
  relaying.credentials = {options_.job, options_.secret, world.epoch, world.incarnation};
  relaying.standing = {world.server, 1};
  relaying.role = Role::kServer;
  relaying.member = world.member;
  relaying.segment_bytes = options_.segment_bytes;
  relaying.least_segment = least_segment;
  relaying.credit_bytes = options_.credit_bytes;
  relaying.kernel_queue_bytes = options_.kernel_queue_bytes;
  relaying.stall_warning = world.stall_warning;
  relaying.stall_timeout = world.stall_timeout;
  return relaying;
}

void Server::Fail(uint32_t epoch, Code code, const std::string& text) {
  for (auto& shard : shards_) shard->Fail(epoch, code, text);
}

void Server::LeaveOut(uint32_t epoch, uint32_t rank) {
  for (auto& shard : shards_) shard->LeaveOut(epoch, rank);
}

void Server::GoOnWithout(uint32_t epoch, uint32_t server) {
  for (auto& shard : shards_) shard->GoOnWithout(epoch, server);
}

void Server::HandOver(uint32_t epoch, bool sealed) {
  for (auto& shard : shards_) shard->HandOver(epoch, sealed);
}

std::optional<uint64_t> Server::to_hand_over() const {
  uint64_t all = 0;
  for (const auto& shard : shards_) {
    const uint64_t left = shard->stats().to_hand_over;
    if (left == kNotCounted) return std::nullopt;
    all += left;
  }
  return all;
}

void Server::Stop() {
  if (stopping_.exchange(true)) return;
  if (admission_) admission_->Close();
  // All of them before any is destroyed: a shard's last words go to the others.
  for (auto& shard : shards_) shard->Stop();
}

}  // namespace byteps_like
