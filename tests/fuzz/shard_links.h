// A server's shard, and the far ends of the links of its three ranks: what the targets share that send it frames.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "server/shard.h"
#include "tests/fuzz/fuzzing.h"

namespace byteps_like::fuzzing {

class ShardLinks {
 public:
  explicit ShardLinks(uint64_t memory_limit) : limit_(memory_limit) {
    Shard::Options options;
    options.memory_limit = memory_limit;
    options.on_event = [this](uint32_t epoch, Code code, const std::string&, bool fatal) {
      Require(epoch == kEpoch);
      Require(code != Code::kOk && CodeFrom(static_cast<uint32_t>(code)) == code);
      failures_ += fatal;
      Require(failures_ <= 1);
    };
    shard_ = std::make_unique<Shard>(std::move(options));
    Require(shard_->Start().ok());
    ShardWorld world;
    world.epoch = kEpoch;
    for (uint32_t rank = 0; rank < kRanks; ++rank) world.workers.push_back(kFirstMember + rank);
    shard_->SetWorld(world);
    for (uint32_t rank = 0; rank < kRanks; ++rank) Connect(rank);
  }
  virtual ~ShardLinks() { shard_->Stop(); }
  ShardLinks(const ShardLinks&) = delete;
  ShardLinks& operator=(const ShardLinks&) = delete;

 protected:
  virtual void OnFrame(uint32_t rank, const Header& header, const std::byte* payload) = 0;  // from the shard

  static Header HeaderOf(FrameType type, uint32_t rank) {
    Header header;
    header.type = type;
    header.view = kEpoch;
    header.rank = rank;
    return header;
  }

  // A new link in place of the old one.
  void Connect(uint32_t rank) {
    Link& one = links_[rank];
    if (one.wire) Take(rank);
    one.wire = std::make_shared<Wire>();
    shard_->AddLink(std::make_unique<WireStream>(one.wire), {.rank = rank, .view = kEpoch, .number = ++one.number});
  }

  // False: no receiver would take it for a frame.
  bool PutFrame(uint32_t rank, Header header, const Buffer& payload) {
    header.member = kFirstMember + header.rank;
    const Buffer frame = FrameOf(header, payload);
    if (!frame.empty()) links_[rank].wire->Put(frame);
    return !frame.empty();
  }

  // Whether the rank reads what comes.
  void Read(uint32_t rank, bool on) {
    Wire& wire = WireOf(rank);
    std::lock_guard lock(wire.mutex);
    wire.reads = on;
    wire.Ring();
  }

  // Until the shard has done all that follows from what it was given.
  void Settle() {
    for (Link& one : links_) {
      std::unique_lock lock(one.wire->mutex);
      one.wire->changed.wait(
          lock, [&] { return one.wire->closed || (one.wire->drained && one.wire->taken == one.wire->in.size()); });
    }
    for (int turn = 0; turn < 3; ++turn) {  // a link of another epoch is shut down when the shard comes to it
      auto hook = std::make_shared<Wire>();
      shard_->AddLink(std::make_unique<WireStream>(hook), {.view = kEpoch + 1, .number = 1});
      std::unique_lock lock(hook->mutex);
      hook->changed.wait(lock, [&] { return hook->closed; });
    }
    for (uint32_t rank = 0; rank < kRanks; ++rank) Take(rank);
    Require(shard_->stats().memory <= limit_);
  }

  Wire& WireOf(uint32_t rank) { return *links_[rank].wire; }

 private:
  static constexpr uint32_t kEpoch = 1;
  static constexpr uint32_t kFirstMember = 40;  // rank 0's member number; the others' follow

  struct Link {
    std::shared_ptr<Wire> wire;
    uint64_t number = 0;
  };

  void Take(uint32_t rank) {
    links_[rank].wire->Take([&](const Header& header, const std::byte* payload) { OnFrame(rank, header, payload); });
  }

  const uint64_t limit_;
  std::unique_ptr<Shard> shard_;
  std::array<Link, kRanks> links_;
  int failures_ = 0;
};

}  // namespace byteps_like::fuzzing
