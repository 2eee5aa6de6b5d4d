#include "collectives/host/host.h"

#include "collectives/host/host_group.h"

namespace byteps_like {
namespace {

class AttachedArea final : public HostArea {
 public:
  explicit AttachedArea(HostOptions options) : area_(std::make_shared<LocalArea>(std::move(options))) {}
  ~AttachedArea() override { AttachedArea::Close(Status(Code::kClosed, area_->name(area_->index()) + " has left")); }

  Result<std::shared_ptr<HostGroup>> Group(uint64_t lane, std::vector<uint32_t> members) override {
    auto group = area_->Group(lane, std::move(members));
    if (!group.ok()) return group.status();
    return std::shared_ptr<HostGroup>(std::move(*group));
  }
  void Fail(uint32_t index, const Status& why) override { area_->Fail(index, why); }
  void CancelLane(uint64_t lane, const Status& why) override { area_->CancelLane(lane, why); }
  void Wake() override { area_->Ring(area_->index()); }
  void Close(const Status& reason) override { area_->Close(reason); }

 private:
  const std::shared_ptr<LocalArea> area_;
};

}  // namespace

Result<std::unique_ptr<HostArea>> HostArea::Attach(HostOptions options) {
  const size_t ranks = options.names.size();
  if (options.area == nullptr || ranks == 0 || ranks > kMostHostRanks || options.index >= ranks) {
    return Status(Code::kInvalid, "host area: rank " + std::to_string(options.index) + " of " + std::to_string(ranks));
  }
  if (HostGroupsIn(options.area->size(), ranks) == 0)
    return Status(Code::kCorrupt, "host area: the shared memory is too small");
  return std::unique_ptr<HostArea>(std::make_unique<AttachedArea>(std::move(options)));
}

}  // namespace byteps_like
