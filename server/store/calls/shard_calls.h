// What workers call on the values of one shard: each call is run once, when its rank may read all that it is about, and
// is answered again if the answer was lost. All of its partitions here are changed together, or none. On the shard's
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/wire/call.h"
#include "csrc/wire/frame.h"
#include "server/memory.h"
#include "server/store/calls/called.h"
#include "server/store/requests.h"
#include "server/store/store_key.h"

namespace byteps_like {

// The store keys of the shard.
class CalledKeys : public virtual RequestHost {
 public:
  virtual void Replaced(uint64_t key) = 0;  // it has a new value

 protected:
  ~CalledKeys() = default;
};

class ShardCalls {
 public:
  ShardCalls(CalledKeys& keys, ShardMemory& memory) : keys_(keys), memory_(memory), requests_(keys, "call") {}

  void Reset(uint32_t ranks) {
    requests_.Reset(ranks);
    waits_ = std::vector<std::optional<Waiting>>(ranks);
  }
  void OnCall(uint32_t rank, const Header& header, std::span<const std::byte> payload);
  void OnChange(uint64_t key);                              // something has happened to it: who waits for it may go on
  void OnLinkGone(uint32_t rank) { waits_[rank].reset(); }  // it will ask again

  struct Wait {
    uint32_t rank = 0;
    uint64_t key = 0;  // that it may not read yet
    double since = 0;
  };
  std::vector<Wait> Waits() const;

 private:
  struct Waiting {
    Header header;
    ServerCall call;
    uint64_t blocked_by = 0;
    double since = 0;
  };
  using All = std::vector<std::unique_ptr<CalledValues>>;

  void TryToRun(uint32_t rank);
  Status Collect(const Header& header, const ServerCall& call, All* found);
  static bool IsBlocked(uint32_t rank, const All& all, uint64_t* by);
  static Status Run(const ServerCall& call, const All& all, Figures* figures);
  void Conclude(uint32_t rank, const Header& header, const Status& status, const Figures& figures);

  CalledKeys& keys_;
  ShardMemory& memory_;
  NumberedRequests requests_;
  std::vector<std::optional<Waiting>> waits_;  // by rank
};

}  // namespace byteps_like
