// The links of rank 0 in the fuzzer of exchanges: those of a mesh, all there from the beginning, so nobody dials.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/mesh/mesh_dial.h"
#include "collectives/mesh/mesh_peer.h"
#include "tests/fuzz/fuzzing.h"
#include "tests/native/collectives/linkless_mesh.h"

namespace byteps_like::fuzzing {

inline constexpr uint32_t kEpoch = 1, kFirstMember = 40;

struct OwnLoop {  // outlives the mesh on it
  EventLoop own_loop;
};

class FuzzMesh final : private OwnLoop, public testing::LinklessMesh {
 public:
  FuzzMesh(MeshHandler& handler, MeshWorld of)
      : LinklessMesh(own_loop, std::move(of)),
        handler_(handler),
        context_{own_loop, handler,  options_,
                 world(),  dialers_, [this](uint32_t rank, const Status& why) { Lose(rank, why); },
                 [] {}} {
    for (uint32_t rank = 0; rank < kRanks; ++rank)
      for (const Way way : {Way::kMain, Way::kUrgent})
        ways_.push_back(std::make_unique<MeshPeer>(context_, WayTo(rank, way)));
  }

  MeshPeer& at(WayTo to) { return *ways_[to.peer * kWays + static_cast<size_t>(to.way)]; }
  bool lost(uint32_t rank) const { return told_.contains(rank); }

  void Kick(WayTo to) override { at(to).Kick(); }
  void PassRegion(uint32_t peer, uint32_t id, std::shared_ptr<SharedBuffer> buffer) override {
    at(peer).PassRegion(id, std::move(buffer));
  }
  void Cut(uint32_t peer, const Status& why) override {
    for (const Way way : {Way::kMain, Way::kUrgent}) at({peer, way}).Cut(why);
  }
  void Redirect(WayTo from, std::byte* place) override { at(from).Redirect(place); }
  bool TakesOffers(WayTo from) override { return at(from).TakesOffers(); }
  bool Offer(WayTo from, const Header& about, std::byte* place, uint64_t bytes) override {
    return at(from).OfferPlace(about, place, bytes);
  }
  bool Withdraw(WayTo from, const OfferId& what) override { return at(from).Withdraw(what); }
  void Keep(WayTo to) override { at(to).Keep(); }
  bool KeepShort(WayTo to, bool on) override { return at(to).KeepShort(on); }

 private:
  void Lose(uint32_t rank, const Status& why) override {
    bool open = false;
    for (const Way way : {Way::kMain, Way::kUrgent}) open = at({rank, way}).Leave() || open;
    reasons_.try_emplace(rank, why);
    if (open) return own_loop.Post([this, rank] { Cut(rank, reasons_.at(rank)); });
    Require(told_.insert(rank).second && !why.ok() && !why.message().empty());
    handler_.OnPeerLost(rank, reasons_.at(rank));
  }

  const MeshOptions options_{};
  MeshHandler& handler_;
  MeshDialers dialers_;
  const MeshContext context_;
  std::vector<std::unique_ptr<MeshPeer>> ways_;
  std::map<uint32_t, Status> reasons_;
  std::set<uint32_t> told_;
};

}  // namespace byteps_like::fuzzing
