// A mesh of which a test makes what it needs: it has a world and a loop, and nothing else.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/mesh/mesh.h"

namespace byteps_like::testing {

class LinklessMesh : public Mesh {
 public:
  LinklessMesh(EventLoop& loop, MeshWorld world) : loop_(loop), world_(std::move(world)) {}
  std::vector<std::string> urls() const override { return {}; }
  void SetWorld(MeshWorld) override {}
  const MeshWorld& world() const override { return world_; }
  EventLoop& loop() override { return loop_; }
  LinkCounters counters() const override { return {}; }
  LinkCounters counters(uint32_t) const override { return {}; }
  std::map<std::string, uint32_t> links() const override { return {}; }
  void Kick(WayTo) override {}
  void PassRegion(uint32_t, uint32_t, std::shared_ptr<SharedBuffer>) override {}
  bool SameHost(uint32_t peer) const override {
    return world_.peers[peer].host_id == world_.peers[world_.rank].host_id;
  }
  void Cut(uint32_t, const Status&) override {}
  void Lose(uint32_t, const Status&) override {}
  void Redirect(WayTo, std::byte*) override {}
  bool TakesOffers(WayTo) override { return false; }
  bool Offer(WayTo, const Header&, std::byte*, uint64_t) override { return false; }
  bool Withdraw(WayTo, const OfferId&) override { return false; }
  void Keep(WayTo) override {}
  bool KeepShort(WayTo, bool) override { return false; }
  void Goodbye(std::function<void()> done) override { done(); }
  void StopListening() override {}

 private:
  EventLoop& loop_;
  const MeshWorld world_;
};

}  // namespace byteps_like::testing
