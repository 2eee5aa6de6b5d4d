// Everything one process needs to talk to the other workers of its world: mesh, exchange, executor, point to point,
// shared memory with its host. Python holds this object. Any thread may call it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/completion.h"
#include "collectives/execution/executor.h"
#include "collectives/host/host.h"
#include "collectives/mesh/mesh.h"
#include "collectives/point_to_point/point_to_point.h"

namespace byteps_like {

class Communicator {
 public:
  // Listens; blocks for no peer.
  static Result<std::unique_ptr<Communicator>> Listen(MeshOptions options);
  virtual ~Communicator() = default;  // Close; calls in flight fail with kClosed

  virtual std::vector<std::string> urls() const = 0;
  virtual void SetWorld(MeshWorld world) = 0;
  virtual Executor& executor() = 0;
  virtual PointToPoint& point_to_point() = 0;
  virtual EventLoop& loop() = 0;
  virtual Mesh& mesh() = 0;
  // Memory that peers on this host may map. Passed to a peer when an operation first needs it.
  virtual Result<std::shared_ptr<SharedBuffer>> Allocate(size_t bytes) = 0;
  // The group of a lane whose world ranks are all on this host, in memory that they share: collectives without a link.
  // Blocks until that memory exists: some milliseconds for the first group of a world. kInvalid if a rank is elsewhere,
  // kTimeout naming the rank that did not pass it on. The group outlives the communicator, but its calls then fail.
  virtual Result<std::shared_ptr<HostGroup>> Group(uint64_t lane, const std::vector<uint32_t>& ranks,
                                                   Deadline deadline) = 0;
  virtual LinkCounters counters() const = 0;
  virtual LinkCounters counters(uint32_t peer) const = 0;
  virtual void Fail(const Status& why) = 0;                       // everything in flight and to come fails with this
  virtual void Lose(uint32_t peer, const Status& why) = 0;        // what needs this rank does: it has died
  virtual void CancelLane(uint64_t lane, const Status& why) = 0;  // its calls in flight fail with this, on all ranks
  virtual void Close() = 0;                                       // says goodbye; at most a second; idempotent
};

}  // namespace byteps_like
