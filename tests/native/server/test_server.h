// A server of one shard for tests that are its workers themselves (raw_worker.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "server/server.h"
#include "tests/native/server/raw_worker.h"

namespace byteps_like::testing {

class TestServer {
 public:
  explicit TestServer(uint32_t workers, uint64_t memory_limit = 0, ShardWorld world = {},
                      const std::string& transport = "shm", std::span<const PolicyRow> policies = Policies()) {
    Server::Options options;
    options.job = "job";
    options.secret = std::string(32, 's');
    options.urls = {FreshUrl(transport)};
    options.memory_limit = memory_limit;
    options.policies = policies;
    options.on_event = [this](uint32_t, Code, const std::string&, bool fatal) { failures += fatal; };
    auto started = Server::Start(std::move(options));
    if (!started.ok()) throw std::runtime_error(started.status().message());
    server_ = std::move(*started);
    world.epoch = 1;
    world.workers = NumbersOf(workers);
    world.member = ServerNumberOf(0);
    server_->SetWorld(world);
  }
  RawLink Connect(uint32_t rank) { return RawLink::Connect(server_->urls().front(), rank); }
  Server& operator*() { return *server_; }
  // Within 5 s, so many frames by all links.
  bool HasReceived(uint64_t frames) {
    const Deadline end = In(5);
    while (stats().frames_received < frames && Clock::now() < end) std::this_thread::yield();
    return stats().frames_received >= frames;
  }
  const ShardStats& stats() { return server_->shards()[0]->stats(); }

  std::atomic<int> failures{0};  // that the scheduler would hear of

 private:
  std::unique_ptr<Server> server_;
};

// Shared memory full of ones, of int32.
inline std::shared_ptr<SharedBuffer> Ones(size_t bytes) {
  auto buffer = SharedBuffer::Create(bytes);
  if (!buffer.ok()) throw std::runtime_error(buffer.status().message());
  auto* values = reinterpret_cast<int32_t*>((*buffer)->data());
  std::fill(values, values + bytes / 4, 1);
  return *buffer;
}

// Within 5 s: a frame counts as received before it is handled.
inline bool Becomes(const std::atomic<uint64_t>& value, uint64_t wanted) {
  const Deadline end = In(5);
  while (value != wanted && Clock::now() < end) std::this_thread::yield();
  return value == wanted;
}

}  // namespace byteps_like::testing
