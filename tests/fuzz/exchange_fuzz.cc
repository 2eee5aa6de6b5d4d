// libFuzzer target (`make fuzz`): the exchange of rank 0, with collectives and point to point calls on top of it, whose
// two peers are the fuzzer: they have links, and send frames that are valid one by one in any order, mixed with calls
// of rank 0's own, good and bad, given up or not.
//
// An input is a byte of options, then a row of actions of a few bytes each; `exchange_fuzz --seeds=FOLDER` writes some.
// What must hold whatever they are: no error of memory (that of a call goes when it ends); no more memory for a peer
// than it is charged with; a call that ends well has heard all that it needs, and comes to what a slow interpreter
// makes of that; one that ends badly says why; every call ends when the peers are gone; and as long as they are not, a
// good call comes to its sum, whatever came before.
#include <sanitizer/allocator_interface.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/host/host_side.h"
#include "tests/fuzz/exchange_peers.h"

namespace byteps_like {
namespace {

using namespace fuzzing;  // NOLINT

constexpr int kMostFloods = 2;        // each takes its time
constexpr uint32_t kFlood = 2048;     // frames, and what they may cost that nobody is charged with: less than the
constexpr size_t kSlack = 64u << 10;  // smallest thing that could be kept of each
constexpr uint32_t kSmallSegment = 4096;

enum Option : uint8_t { kOneHost = 1, kSmallSegments = 2 };

class World final : private EventLoop::Deferred {
 public:
  World(Input& input)
      : input_(input),
        options_(static_cast<uint8_t>(input.Byte())),
        mesh_(core_, WorldOf(options_)),
        peers_(input, next_, said_, (options_ & kOneHost) != 0) {
    core_.Attach(mesh_);
    core_.Prepare(mesh_.world());
    own_.emplace(input_, core_, next_, said_,
                 (options_ & kSmallSegments) != 0 ? kSmallSegment : RunOptions().segment_bytes);
    host_ = std::make_shared<HostSide>(mesh_);
    host_->SetWorld(mesh_.world());
    core_.SetHostSide(host_.get());
  }

  void Run() {
    peers_.Connect(mesh_);
    mesh_.loop().Defer(*this);
    mesh_.loop().Run();
    host_->Close(Status(Code::kClosed, "the end"));
    core_.gate()->Close();
    own_->RequireAllFailed();
  }

 private:
  struct Flooded {
    uint32_t rank;
    size_t memory, charged;  // before
    std::vector<Header> frames;
  };

  static MeshWorld WorldOf(uint8_t options) {
    MeshWorld world;
    world.epoch = kEpoch;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const std::string host = (options & kOneHost) != 0 ? "host" : "host " + std::to_string(rank);
      world.peers.push_back({{}, host, "rank " + std::to_string(rank), kFirstMember + rank});
    }
    return world;
  }

  // Nothing has moved for a few turns: then the next action.
  void RunDeferred() override {
    const uint64_t moved = peers_.Moved();
    quiet_ = moved == moved_ ? quiet_ + 1 : 0;
    moved_ = moved;
    if (quiet_ >= kQuiet) {
      quiet_ = 0;
      moved_ = 0;
      Look();
      if (!Next()) return mesh_.loop().Stop();
    }
    mesh_.loop().Defer(*this);
  }

  // False: that was all.
  bool Next() {
    if (!input_.empty()) return Act(), true;
    switch (ending_++) {
      case 0:
        peers_.ForWires([](WayTo, Wire& wire) {
          wire.withheld = 0;
          wire.reads = true;
          wire.Ring();
        });
        return true;
      case 1:
        good_ = !mesh_.lost(1) && !mesh_.lost(2) && core_.failed().ok();
        if (good_) own_->Launch({kLastLane, 0}, false, 1800);
        return true;
      case 2:
        for (uint32_t peer = 1; good_ && peer < kRanks; ++peer) peers_.SayAllOf(peer, {kLastLane, 0});
        return true;
      case 3:
        Require(!good_ || own_->last_ended_well());
        peers_.ForWires([](WayTo, Wire& wire) {
          wire.closed = true;
          wire.Ring();
        });
        return true;
      case 4:
        own_->End();
        return true;
      default:
        return false;
    }
  }

  void Look() {
    if (flood_) LookAtFlood();
    peers_.Look();
    own_->Look();
    for (uint32_t peer = 1; peer < kRanks; ++peer) Require(core_.remembered(peer) <= kMostRemembered);
  }

  void Act() {
    const uint32_t first = input_.Byte(), second = input_.Byte();
    const uint32_t rank = first % kRanks;
    if (rank == 0) return own_->Act(static_cast<Own>(first / kRanks % kOwns), second);
    const auto action = static_cast<Theirs>(first / kRanks % kTheirs);
    if (action == kFloodLast) return Flood(rank);
    peers_.Act(action, rank, second);
  }

  // The last frame again and again, a field of it counting up: what the peer makes rank 0 keep, it is charged with.
  void Flood(uint32_t rank) {
    const uint32_t field = input_.Byte() % 5;
    auto [header, by] = peers_.last(rank);
    if (by.peer == 0 || ++floods_ > kMostFloods) return;
    header.length = std::min(header.length, 1u);
    flood_ = {rank, Memory(), Charged(rank), {}};
    flood_->frames.reserve(kFlood);
    for (uint32_t i = 0; i < kFlood; ++i) {
      (field == 0 ? header.round : field == 1 ? header.root : header.aux) += field < 3 ? 1 : 0;
      header.key += field == 3 ? 1 : 0;
      header.offset += field == 4 ? 1 : 0;
      const Buffer frame = FrameOf(header, Buffer(header.length));
      if (frame.empty()) return;
      flood_->frames.push_back(header);
      peers_.WireTo({rank, by.way})->Put(frame);
    }
  }

  // What the process holds, but for what lies in wires and was noted of a flood.
  size_t Memory() {
    size_t wires = 0;
    peers_.ForWires([&](WayTo, const Wire& wire) { wires += wire.in.capacity() + wire.out.capacity(); });
    const size_t noted = flood_ ? flood_->frames.capacity() * sizeof(Header) : 0;
    return __sanitizer_get_current_allocated_bytes() - wires - noted;
  }
  size_t Charged(uint32_t rank) {
    return core_.remembered(rank) + core_.held({rank, Way::kMain}) + core_.held({rank, Way::kUrgent});
  }

  void LookAtFlood() {
    const uint32_t rank = flood_->rank;
    const size_t kept = Memory() - std::min(Memory(), flood_->memory);
    const size_t charged =
        (Charged(rank) - std::min(Charged(rank), flood_->charged)) * 3 / 2;  // it is a rough estimate
    if (kept > charged + kSlack) {
      std::fprintf(stderr, "%zu frames of type %d: %zu bytes are kept, %zu charged\n", flood_->frames.size(),
                   static_cast<int>(flood_->frames.front().type), kept, charged);
    }
    Require(kept <= charged + kSlack);
    for (const Header& header : flood_->frames) peers_.Note(rank, header, Buffer(header.length));
    flood_.reset();
  }

  static constexpr int kQuiet = 4;
  Input& input_;
  const uint8_t options_;
  CallNumbers next_;
  Said said_;
  ExchangeCore core_;
  FuzzMesh mesh_;
  std::optional<OwnCalls> own_;
  std::shared_ptr<HostSide> host_;
  Peers peers_;
  std::optional<Flooded> flood_;
  uint64_t moved_ = 0;
  int quiet_ = 0, ending_ = 0, floods_ = 0;
  bool good_ = false;
};

// As it should go, and once not: what a fuzzer varies.
void WriteSeeds(const std::string& folder) {
  const auto name = [&](const char* what, int option) { return folder + "/" + what + std::to_string(option); };
  for (const uint8_t option : {0, 1, 2}) {
    Play calls({option}), ahead({option}), points({option}), failing({option});
    for (int call = 0; call < 12; ++call) {
      calls.One(kLaunch, 0, call % kLanes);
      for (const uint32_t peer : {1, 2}) calls.One(kSayAll, peer, call % kLanes).One(kSayCredit, peer);
      for (const uint32_t peer : {1, 2}) ahead.One(kSayAll, peer, 2 + call % kLanes);
      ahead.One(kLaunch, 0, call % kLanes);
      for (const uint32_t peer : {2, 1}) ahead.One(kSayAll, peer, call % kLanes).One(kSayCredit, peer);
    }
    for (uint8_t length = 0; length < std::size(kLengths); ++length) {
      for (const uint8_t tag : {0, 2}) {
        const auto how = static_cast<uint8_t>(tag + length * 4 % 32);
        points.One(kReceive, 0, 0, {length, tag}).One(kSayPoint, 1, 0, {how}).One(kSayPoint, 1, 0, {how});
        points.One(kSayPoint, 2, 0, {how}).One(kReceiveAny, 0, 0, {length, tag}).One(kSayPoint, 2, 0, {how});
        points.One(kSend, 0, 2, {length, tag}).One(kSayPointClear, 2, 0, {tag}).One(kSayCredit, 2);
      }
    }
    failing.One(kLaunch, 0).One(kComeLate, 1, 0, {9}).One(kSayData, 1, 0, {0}).One(kCancel, 0).One(kSayClear, 2);
    failing.One(kLaunchOther, 0).One(kSayAll, 1).One(kLaunch, 0, 0x40).One(kSayAbort, 2, 0, {4}).One(kLaunch, 0);
    failing.One(kSend, 0, 0x40, {6, 0}).One(kReceive, 0, 0x40, {6, 0}).One(kSayPointAbort, 1, 0, {0x80});
    for (uint8_t field = 0; field < 5; ++field) {
      Play floods({option});
      floods.One(kSayLaunch, 1, 4, {1}).One(kFloodLast, 1, 0, {field}).One(kSayPoint, 2, 0, {6});
      floods.One(kFloodLast, 2, 0, {field}).Write(name("flood", option * 10 + field));
    }
    Play regions({option}), unread({option});
    regions.One(kSayRegion, 1, 0, {0x32}).One(kFloodLast, 1, 0, {2}).Write(name("regions", option));
    unread.One(kLaunch, 0).One(kSayAll, 1).One(kSayAll, 2).One(kStopReading, 1);
    unread.One(kSayLaunch, 1, 0, {3}).One(kFloodLast, 1, 0, {4}).Write(name("unread", option));
    calls.Write(name("calls", option));
    ahead.Write(name("ahead", option));
    points.Write(name("points", option));
    failing.Write(name("failing", option));
  }
}

}  // namespace
}  // namespace byteps_like

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  return byteps_like::fuzzing::WriteSeedsIfAsked(*count, *arguments, byteps_like::WriteSeeds);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  byteps_like::fuzzing::Input input(data, std::min<size_t>(size, 250));
  byteps_like::World(input).Run();
  return 0;
}
