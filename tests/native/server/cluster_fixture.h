// A whole job in one process: servers, and one engine per rank, over any transport.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/engine/engine.h"
#include "server/server.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {

// Workers whose sums go by aggregators of their own, which are servers behind the others.
struct ClusterRack {
  std::string name;
  std::vector<uint32_t> ranks;
  uint32_t aggregators = 1;
};

struct ClusterOptions {
  uint32_t workers = 2, servers = 1, shards = 1;
  std::string scheme = "inproc";
  std::string chaos = "";  // query of a chaos wrapper around every worker's links, "" for none; "seed=" is added
  uint64_t seed = 1;
  size_t segment_bytes = 4096, credit_bytes = 1 << 20;
  size_t least_segment = EngineOptions().least_segment;
  uint32_t partition_bytes = 16384;
  double stall_warning = 5, stall_timeout = 20, drain_timeout = 5;
  uint64_t memory_limit = 0;
  uint32_t local_workers = 1;  // how many cores the workers want, as each of them is told
  std::chrono::milliseconds lend_after = EngineOptions().lend_after;
  std::vector<ClusterRack> racks = {};
  bool tells_all = false;   // as a scheduler does: a failure that anybody reports is that of all
  bool elastic = false;     // sums go on without ranks that are gone, and all without servers that are
  size_t bounce_bytes = 0;  // so that what is in private memory goes as a stream, even to servers of this host
};

class Cluster {
 public:
  explicit Cluster(ClusterOptions options) : options_(std::move(options)) {
    for (uint32_t i = 0; i < options_.servers; ++i) servers_.push_back(StartServer());
    for (const ClusterRack& rack : options_.racks)
      for (uint32_t i = 0; i < rack.aggregators; ++i) AddAggregator(rack);
    for (uint32_t index = 0; index < servers_.size(); ++index) SetWorld(index);
    for (uint32_t rank = 0; rank < options_.workers; ++rank) engines_.push_back(StartEngine(rank));
    formed_ = true;
  }
  ~Cluster() {
    formed_ = false;
    for (auto& engine : engines_)
      if (engine) engine->Close();
  }

  Engine& engine(uint32_t rank) { return *engines_[rank]; }
  void Kill(uint32_t rank) { engines_[rank].reset(); }
  Server& server(uint32_t index) { return *servers_[index]; }
  // Its links end without a word, and then all are told.
  void KillServer(uint32_t index) {
    servers_[index]->Stop();
    for (uint32_t other = 0; other < options_.servers; ++other)
      if (other != index) servers_[other]->GoOnWithout(1, index);
    for (auto& engine : engines_)
      if (engine) engine->GoOnWithout(index, "server " + std::to_string(index) + " has died");
  }
  const ClusterOptions& options() const { return options_; }

  // The partitions of a tensor of `bytes`, round-robin over all shards; keys from `first_key` on. A rank in a rack has
  // them go by its aggregators.
  std::vector<PartitionSpec> Cut(uint64_t bytes, uint64_t first_key, uint32_t rank = 0) const {
    std::vector<PartitionSpec> parts;
    const uint32_t channels = options_.servers * options_.shards;
    for (uint64_t offset = 0; offset < bytes; offset += options_.partition_bytes) {
      const auto index = static_cast<uint32_t>(parts.size());
      const auto length = static_cast<uint32_t>(std::min<uint64_t>(options_.partition_bytes, bytes - offset));
      parts.push_back({first_key + index, offset, length, index % channels});
      if (const ClusterRack* const rack = RackOf(rank)) {
        parts.back().owner = {index % channels / options_.shards, index % options_.shards};
        parts.back().channel = channels + index % (rack->aggregators * options_.shards);
      }
    }
    return parts;
  }
  const ClusterRack* RackOf(uint32_t rank) const {
    for (const ClusterRack& rack : options_.racks)
      if (std::ranges::find(rack.ranks, rank) != rack.ranks.end()) return &rack;
    return nullptr;
  }
  // The aggregators of a rack, by the numbers of their servers.
  std::vector<uint32_t> AggregatorsOf(const ClusterRack& rack) const {
    std::vector<uint32_t> found;
    for (uint32_t i = 0; i < aggregators_.size(); ++i)
      if (aggregators_[i].rack == rack.name) found.push_back(options_.servers + i);
    return found;
  }

  // Runs `body(rank)` on a thread per rank.
  void Everybody(const std::function<void(uint32_t)>& body) const {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < options_.workers; ++rank) threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::string> warnings;  // of all engines and servers
  std::mutex warnings_mutex;

 private:
  Credentials MakeCredentials() const { return {"job", std::string(32, 's'), 1}; }

  void Note(Code code, const std::string& text, bool fatal) {
    {
      std::lock_guard lock(warnings_mutex);
      warnings.push_back(text);
    }
    if (!fatal || !options_.tells_all || !formed_) return;
    for (const auto& server : servers_) server->Fail(1, code, text);
  }

  std::unique_ptr<Server> StartServer() {
    Server::Options server;
    server.job = MakeCredentials().job;
    server.secret = MakeCredentials().secret;
    server.urls = {FreshUrl(options_.scheme)};
    server.shards = options_.shards;
    server.segment_bytes = options_.segment_bytes;
    server.memory_limit = options_.memory_limit;
    server.on_event = [this](uint32_t, Code code, const std::string& text, bool fatal) { Note(code, text, fatal); };
    auto started = Server::Start(std::move(server));
    if (!started.ok()) throw std::runtime_error(started.status().message());
    return std::move(*started);
  }

  void AddAggregator(const ClusterRack& rack) {
    const auto index = static_cast<uint32_t>(servers_.size());
    aggregators_.push_back({rack.name, rack.ranks, ServerNumberOf(index), options_.shards});
    servers_.push_back(StartServer());
  }

  void SetWorld(uint32_t index) {
    ShardWorld world{1,     NumbersOf(options_.workers), options_.stall_warning, options_.stall_timeout,
                     index, ServerNumberOf(index)};
    world.elastic = options_.elastic;
    if (options_.elastic) world.chain = AddressesOf(0, options_.servers, 2000 + index);
    std::vector<ShardAddress> owners;
    if (index < options_.servers) {
      world.aggregators = aggregators_;
    } else {
      world.own = aggregators_[index - options_.servers];
      owners = AddressesOf(0, options_.servers, 1000 + index);
    }
    servers_[index]->SetWorld(world, owners, options_.least_segment);
  }

  // Of the shards of servers from `first` to `last`, as one end sees them.
  std::vector<ShardAddress> AddressesOf(uint32_t first, uint32_t last, uint32_t end) const {
    std::vector<ShardAddress> shards;
    for (uint32_t index = first; index < last; ++index)
      for (uint32_t shard = 0; shard < options_.shards; ++shard) {
        std::string url = servers_[index]->urls().front();
        if (!options_.chaos.empty())
          url = "chaos+" + url + (url.find('?') == url.npos ? "?" : "&") + options_.chaos +
                "&seed=" + std::to_string(options_.seed * 1000 + end * 10 + shard);
        shards.push_back({index, shard, {url}, ServerNumberOf(index)});
      }
    return shards;
  }

  std::unique_ptr<Engine> StartEngine(uint32_t rank) {
    EngineOptions engine;
    engine.credentials = MakeCredentials();
    engine.standing = {rank, options_.workers};
    engine.member = NumberOf(rank);
    engine.local_workers = options_.local_workers;
    engine.segment_bytes = options_.segment_bytes;
    engine.least_segment = options_.least_segment;
    engine.lend_after = options_.lend_after;
    engine.credit_bytes = options_.credit_bytes;
    engine.bounce_bytes = options_.bounce_bytes;
    engine.stall_warning = options_.stall_warning;
    engine.stall_timeout = options_.stall_timeout;
    engine.drain_timeout = options_.drain_timeout;
    engine.outlives_servers = options_.elastic && options_.servers > 1;
    engine.on_event = [this](Code code, const std::string& text, bool fatal) { Note(code, text, fatal); };
    std::vector<ShardAddress> shards = AddressesOf(0, options_.servers, rank);
    if (const ClusterRack* const rack = RackOf(rank))
      for (const uint32_t server : AggregatorsOf(*rack))
        for (ShardAddress& shard : AddressesOf(server, server + 1, rank)) shards.push_back(std::move(shard));
    auto started = Engine::Start(std::move(engine), std::move(shards));
    if (!started.ok()) throw std::runtime_error(started.status().message());
    return std::move(*started);
  }

  const ClusterOptions options_;
  std::vector<std::unique_ptr<Server>> servers_;  // aggregators last
  std::vector<Aggregator> aggregators_;
  std::atomic<bool> formed_{false};
  std::vector<std::unique_ptr<Engine>> engines_;
};

// One rank's tensor: its memory and its id; Run pushes, pulls and waits.
template <typename T>
class Tensor {
 public:
  Tensor(Cluster& cluster, uint32_t rank, size_t count, DType dtype, uint64_t first_key, bool shared = false)
      : cluster_(cluster), rank_(rank), count_(count) {
    if (shared) {
      auto buffer = SharedBuffer::Create(std::max<size_t>(count * sizeof(T), 1));
      if (!buffer.ok()) throw std::runtime_error(buffer.status().message());
      buffer_ = *buffer;
      cluster.engine(rank).Register(buffer_);
      data_ = reinterpret_cast<T*>(buffer_->data());
    } else {
      memory_.resize(count);
      data_ = memory_.data();
    }
    const auto parts = cluster.Cut(count * sizeof(T), first_key, rank);
    parts_ = static_cast<uint32_t>(parts.size());
    id_ = cluster.engine(rank).Declare(dtype, parts);
  }

  T* data() { return data_; }
  size_t size() const { return count_; }
  uint32_t id() const { return id_; }

  Result<std::shared_ptr<Operation>> Start(Op op, uint32_t root = 0, int32_t priority = 0) {
    Engine::Request request;
    request.tensor = id_;
    request.address = reinterpret_cast<std::byte*>(data_);
    request.last_part = parts_;
    request.op = op;
    request.root = root;
    request.priority = priority;
    return cluster_.engine(rank_).Submit(request);
  }

  Status Run(Op op, uint32_t root = 0, double seconds = 30) {
    auto operation = Start(op, root);
    if (!operation.ok()) return operation.status();
    return cluster_.engine(rank_).Wait(**operation, Clock::now() + std::chrono::milliseconds(int64_t(seconds * 1e3)));
  }

 private:
  Cluster& cluster_;
  const uint32_t rank_;
  const size_t count_;
  std::shared_ptr<SharedBuffer> buffer_;
  std::vector<T> memory_;
  T* data_ = nullptr;
  uint32_t id_ = 0, parts_ = 0;
};

// Which ranks have a tensor in shared memory.
inline bool Nobody(uint32_t) { return false; }
inline bool All(uint32_t) { return true; }

}  // namespace byteps_like::testing
