// Ranks of one host as threads of this process, with an area and regions that all of them see.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "collectives/host/host.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {

// One region per rank, id 1; always resolvable.
class SharedRegions {
 public:
  SharedRegions(size_t ranks, size_t bytes) {
    for (size_t i = 0; i < ranks; ++i) buffers_.push_back(std::move(*SharedBuffer::Create(bytes)));
  }
  SharedBuffer& of(size_t rank) { return *buffers_[rank]; }

 private:
  std::vector<std::shared_ptr<SharedBuffer>> buffers_;
};

class RankRegions final : public RegionResolver {
 public:
  RankRegions(SharedRegions& all, uint32_t rank) : all_(all), rank_(rank) {}
  Place Find(const std::byte* data, uint64_t bytes) override {
    SharedBuffer& own = all_.of(rank_);
    if (data < own.data() || data + bytes > own.data() + own.size()) return {};
    return {1, static_cast<uint64_t>(data - own.data())};
  }
  View Resolve(uint32_t rank, uint32_t) override { return {all_.of(rank).data(), all_.of(rank).size()}; }
  void Announce(uint32_t, uint32_t) override {}
  void Reach(uint32_t) override {}

 private:
  SharedRegions& all_;
  const uint32_t rank_;
};

struct HostRank {
  uint32_t rank;
  HostArea& area;
  std::byte* region;  // this rank's shared memory, nullptr if there is none
};

inline std::vector<std::string> RankNames(uint32_t ranks) {
  std::vector<std::string> names;
  for (uint32_t i = 0; i < ranks; ++i) names.push_back("rank " + std::to_string(i));
  return names;
}

// The area exists in this process before ranks are threads or forked children.
class HostWorld {
 public:
  explicit HostWorld(uint32_t ranks, size_t region_bytes = 0) : ranks_(ranks) {
    area_ = std::move(*MakeHostArea(ranks));
    if (region_bytes > 0) regions_ = std::make_unique<SharedRegions>(ranks, region_bytes);
  }

  // In the calling thread or process, as that rank.
  void Be(uint32_t rank, const std::function<void(HostRank)>& body) {
    std::shared_ptr<RankRegions> regions;
    if (regions_) regions = std::make_shared<RankRegions>(*regions_, rank);
    auto area = HostArea::Attach({area_, rank, RankNames(ranks_), regions});
    REQUIRE(area.ok());
    body({rank, **area, regions_ ? regions_->of(rank).data() : nullptr});
  }

  void Run(const std::function<void(HostRank)>& body) {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([this, rank, &body] { Be(rank, body); });
    }
    for (auto& thread : threads) thread.join();
  }

  uint32_t ranks() const { return ranks_; }
  const std::shared_ptr<SharedBuffer>& area() const { return area_; }
  std::vector<uint32_t> everybody() const {
    std::vector<uint32_t> members(ranks_);
    std::iota(members.begin(), members.end(), 0u);
    return members;
  }

 private:
  const uint32_t ranks_;
  std::shared_ptr<SharedBuffer> area_;
  std::unique_ptr<SharedRegions> regions_;
};

}  // namespace byteps_like::testing
