// State that all peers of a mesh share.
#pragma once

#include <chrono>
#include <functional>

#include "collectives/mesh/mesh.h"
#include "collectives/mesh/mesh_dial.h"

namespace byteps_like {

struct MeshContext {
  EventLoop& loop;
  MeshHandler& handler;
  const MeshOptions& options;
  const MeshWorld& world;
  MeshDialers& dialers;
  std::function<void(uint32_t rank, const Status& why)> on_lost;  // by one of its ways, each at most once
  std::function<void()> on_closed;                                // a link is closed

  Header HeaderOf(FrameType type) const {
    Header header;
    header.type = type;
    header.view = world.epoch;
    header.member = world.number();
    return header;
  }
};

}  // namespace byteps_like
