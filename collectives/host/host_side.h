// The host's shared memory as the communicator sees it: the area comes into being with the first host group of a world,
// and regions are passed to a peer when an operation first needs them there.
//
// Everything goes as regions over the mesh: region 0 of the lowest rank of the host is the area; each rank's own
// regions are 1, 2, ...; and kAskForArea says to the lowest rank that its sender wants the area.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "collectives/host/host.h"
#include "collectives/mesh/mesh.h"
#include "csrc/base/thread.h"

namespace byteps_like {

// Any thread, but OnRegion, OnNoRegion and OnPeerLost: the loop's.
class HostSide final : public RegionResolver, public std::enable_shared_from_this<HostSide> {
 public:
  explicit HostSide(Mesh& mesh) : mesh_(&mesh) {}

  void SetWorld(const MeshWorld& world);
  Result<std::shared_ptr<SharedBuffer>> Allocate(size_t bytes);
  // The group of these world ranks, which are all on this host. Blocks until the area exists: once, for milliseconds,
  // unless the lowest rank of the host does not answer.
  Result<std::shared_ptr<HostGroup>> Group(uint64_t lane, const std::vector<uint32_t>& ranks, Deadline deadline);
  void OnRegion(uint32_t peer, uint32_t id, std::shared_ptr<SharedBuffer> buffer);
  void OnNoRegion(uint32_t peer, uint32_t id, bool refused);
  void OnPeerLost(uint32_t peer, const Status& why);
  size_t RegionsOf(uint32_t peer);  // of how many of the peer's it knows
  void CancelLane(uint64_t lane, const Status& why);
  void Close(const Status& why);

  Place Find(const std::byte* data, uint64_t bytes) override;
  View Resolve(uint32_t rank, uint32_t id) override;
  void Announce(uint32_t rank, uint32_t id) override;
  void Reach(uint32_t rank) override;

 private:
  struct Own {
    uint32_t id;
    const std::byte* data;
    uint64_t bytes;
    std::weak_ptr<SharedBuffer> buffer;
  };
  Result<uint32_t> LocalOf(uint32_t world_rank) const;
  Status AwaitArea(std::unique_lock<std::mutex>& lock, Deadline deadline);
  void MakeArea();
  void Attach(std::shared_ptr<SharedBuffer> area);
  void Pass(uint32_t peer, uint32_t id, std::shared_ptr<SharedBuffer> buffer);
  void Forget(uint32_t id);  // its memory is no longer in use: the peers let go of it, too

  std::mutex mutex_;
  ConditionVariable changed_;
  Mesh* mesh_;  // nullptr after Close
  uint32_t rank_ = 0;
  std::vector<uint32_t> locals_;  // world ranks of this host, ascending: index in the area -> world rank
  std::vector<std::string> names_;
  std::shared_ptr<SharedBuffer> buffer_;  // of the area
  std::shared_ptr<HostArea> area_;
  bool asked_ = false;
  std::set<uint32_t> answered_;  // of the host's ranks, by index: those that have asked for the area
  Status failed_;                // there will be no area, or no longer
  std::map<uint32_t, Status> lost_;
  std::vector<Own> own_;
  uint32_t next_region_ = 1;
  std::set<std::pair<uint32_t, uint32_t>> passed_;                               // (index, id) of own regions
  std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<SharedBuffer>> from_;  // (index, id)
  std::set<std::pair<uint32_t, uint32_t>> refused_;                              // likewise: they can't be had
  std::map<uint32_t, size_t> known_;                                             // how many in both, by index
};

}  // namespace byteps_like
