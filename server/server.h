// A summation server: listens, admits peers that prove to belong to the job, and hands each link to the shard it asks
// for.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/transport/entrance/admission.h"
#include "server/shard.h"

namespace byteps_like {

class Server {
 public:
  struct Options {
    std::string job;
    std::string secret;
    std::vector<std::string> urls;  // to listen on
    uint32_t shards = 1;
    uint64_t memory_limit = 0;                           // bytes over all shards, 0: unlimited
    size_t segment_bytes = kDefaultSegment;              // of results whose contributions show no segment
    uint32_t kernel_queue_bytes = kDefaultKernelQueue;   // Stream::LimitQueue of each link
    size_t credit_bytes = EngineOptions().credit_bytes;  // of an aggregator's links to owners
    ShardEvent on_event;                                 // called on a shard's thread
    std::span<const PolicyRow> policies = Policies();    // which lives longer
  };

  static Result<std::unique_ptr<Server>> Start(Options options);
  ~Server();
  Server(const Server&) = delete;

  std::vector<std::string> urls() const;   // as bound
  void SetWorld(const ShardWorld& world);  // links of another epoch are refused from here on
  // Of an aggregator: `owners` are the shards that its sums go on to. Blocks while it connects to them.
  void SetWorld(const ShardWorld& world, const std::vector<ShardAddress>& owners, size_t least_segment);
  void Fail(uint32_t epoch, Code code, const std::string& text);  // this epoch, for all workers
  void LeaveOut(uint32_t epoch, uint32_t rank);       // a worker of this epoch has died, and the others go on
  void GoOnWithout(uint32_t epoch, uint32_t server);  // the same of another server
  // This server is to leave: others get copies of all values that it keeps, and have the same ever after. `sealed`: its
  // links to workers are closed until it is called without that, so that nothing changes in the last moment.
  void HandOver(uint32_t epoch, bool sealed);
  // How much nobody else has, as of the last HandOver; nullopt: that isn't known yet.
  std::optional<uint64_t> to_hand_over() const;
  void Stop();

  Admission& entrance() { return *admission_; }
  const std::vector<std::unique_ptr<Shard>>& shards() const { return shards_; }

 private:
  explicit Server(Options options);
  Status Listen();
  EngineOptions Relaying(const ShardWorld& world, size_t least_segment) const;

  const Options options_;
  std::atomic<bool> stopping_{false};
  std::vector<std::unique_ptr<Shard>> shards_;
  std::unique_ptr<Admission> admission_;
};

}  // namespace byteps_like
