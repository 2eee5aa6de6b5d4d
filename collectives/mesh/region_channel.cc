#include "collectives/mesh/region_channel.h"

#include <chrono>
#include <utility>

namespace byteps_like {
namespace {

constexpr auto kPause = std::chrono::milliseconds(1);  // until a descriptor is passed that found no room

}  // namespace

void RegionChannel::Pass(uint32_t id, std::shared_ptr<SharedBuffer> buffer) {
  regions_.push_back({id, std::move(buffer)});
}

// `offset` 0: there is no such region, `total` 1: as it can't be passed.
bool RegionChannel::Next(Link& link, Outgoing& next) {
  if (regions_.empty()) return false;
  const Region& region = regions_.front();
  next.header = mesh_.HeaderOf(FrameType::kRegion);
  next.header.aux = region.id;
  if (region.buffer != nullptr) {
    const Status passed = link.shares_memory() ? link.PassBuffer(*region.buffer) : Status(Code::kInvalid, "");
    if (passed.code() == Code::kCapacity) {  // nothing tells when the peer has taken those before
      Retry();
      return false;
    }
    next.header.offset = passed.ok() ? region.buffer->size() : 0;
    next.header.total = passed.ok() ? 0 : 1;
  }
  regions_.pop_front();
  return true;
}

void RegionChannel::Retry() {
  if (retries_) return;
  retries_ = true;
  mesh_.loop.CallAt(Clock::now() + kPause, [this] {
    retries_ = false;
    kick_();
  });
}

void RegionChannel::Take(Link& link, const Header& header) {
  if (header.offset == 0) return mesh_.handler.OnNoRegion(peer_, header.aux, header.total != 0);
  auto buffer = link.TakeBuffer();
  if (!buffer.ok()) return link.Close(buffer.status());
  if ((*buffer)->size() != header.offset) return link.Close(Status(Code::kCorrupt, "a region of another size"));
  mesh_.handler.OnRegion(peer_, header.aux, std::move(*buffer));
}

}  // namespace byteps_like
