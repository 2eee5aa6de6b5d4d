// Passes regions of shared memory to a peer, and takes its own: a descriptor each, announced by a REGION frame.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "collectives/mesh/mesh_context.h"

namespace byteps_like {

// All calls come on the loop's thread.
class RegionChannel {
 public:
  // `kick`: of the link, if there is one.
  RegionChannel(const MeshContext& mesh, uint32_t peer, std::function<void()> kick)
      : mesh_(mesh), peer_(peer), kick_(std::move(kick)) {}
  RegionChannel(const RegionChannel&) = delete;

  void Pass(uint32_t id, std::shared_ptr<SharedBuffer> buffer);  // with the next frames; nullptr: there is no such
  // The next region's frame. False: none waits, or there is no room for a descriptor now, and `kick` follows.
  bool Next(Link& link, Outgoing& next);
  void Take(Link& link, const Header& header);  // the peer's, to the handler; closes the link if it is not as announced

 private:
  struct Region {
    uint32_t id;
    std::shared_ptr<SharedBuffer> buffer;
  };

  void Retry();

  const MeshContext& mesh_;
  const uint32_t peer_;
  const std::function<void()> kick_;
  std::deque<Region> regions_;
  bool retries_ = false;
};

}  // namespace byteps_like
