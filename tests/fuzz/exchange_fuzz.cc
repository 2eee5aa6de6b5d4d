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
#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/exchange_core.h"
#include "collectives/executor.h"
#include "collectives/host_side.h"
#include "collectives/mesh_dial.h"
#include "collectives/mesh_peer.h"
#include "collectives/point_impl.h"
#include "tests/fuzz/fuzzing.h"
#include "tests/native/exact_buffer.h"
#include "tests/native/schedules.h"

namespace byteps_like {

// All links are there from the beginning.
Status MeshDialers::Start(std::shared_ptr<MeshDial>) { return Status(Code::kCapacity, "nobody dials here"); }
void MeshDialers::Close() {}
std::string TransportOf(const Link&) { return "fuzz"; }

namespace {

using namespace fuzzing;  // NOLINT
using testing::ExactBuffer;

constexpr uint32_t kEpoch = 1, kFirstMember = 40;
constexpr size_t kPage = 4096;
constexpr uint64_t kLanes = 2, kLastLane = 1000;
constexpr uint32_t kCounts[] = {0, 2, 33, 1000, 20000};                  // elements of a call
constexpr uint32_t kLengths[] = {0, 1, 64, 5000, 65536, 65537, 140000};  // bytes of a message
constexpr uint32_t kTags[] = {0, 1, kPointLines, 5000};
constexpr int kMostFloods = 2;        // each takes its time
constexpr uint32_t kFlood = 2048;     // frames, and what they may cost that nobody is charged with: less than the
constexpr size_t kSlack = 64u << 10;  // smallest thing that could be kept of each

enum Option : uint8_t { kOneHost = 1, kSmallSegments = 2 };

// The links of rank 0: those of a mesh that nobody dials.
class FuzzMesh final : public Mesh {
 public:
  FuzzMesh(MeshHandler& handler, MeshWorld world)
      : handler_(handler),
        world_(std::move(world)),
        context_{loop_,  handler,  options_,
                 world_, dialers_, [this](uint32_t rank, const Status& why) { Lose(rank, why); },
                 [] {}} {
    for (uint32_t rank = 0; rank < kRanks; ++rank)
      for (const Way way : {Way::kMain, Way::kUrgent})
        ways_.push_back(std::make_unique<MeshPeer>(context_, WayTo(rank, way)));
  }

  MeshPeer& at(WayTo to) { return *ways_[to.peer * kWays + static_cast<size_t>(to.way)]; }
  bool lost(uint32_t rank) const { return told_.contains(rank); }

  std::vector<std::string> urls() const override { return {}; }
  void SetWorld(MeshWorld) override {}
  const MeshWorld& world() const override { return world_; }
  EventLoop& loop() override { return loop_; }
  LinkCounters counters() const override { return {}; }
  LinkCounters counters(uint32_t) const override { return {}; }
  std::map<std::string, uint32_t> links() const override { return {}; }
  void Kick(WayTo to) override { at(to).Kick(); }
  void PassRegion(uint32_t peer, uint32_t id, std::shared_ptr<SharedBuffer> buffer) override {
    at(peer).PassRegion(id, std::move(buffer));
  }
  bool SameHost(uint32_t peer) const override { return world_.peers[peer].host_id == world_.peers[0].host_id; }
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
  void Goodbye(std::function<void()>) override {}
  void StopListening() override {}

 private:
  void Lose(uint32_t rank, const Status& why) {
    bool open = false;
    for (const Way way : {Way::kMain, Way::kUrgent}) open = at({rank, way}).Leave() || open;
    reasons_.try_emplace(rank, why);
    if (open) return loop_.Post([this, rank] { Cut(rank, reasons_.at(rank)); });
    Require(told_.insert(rank).second && !why.ok() && !why.message().empty());
    handler_.OnPeerLost(rank, reasons_.at(rank));
  }

  const MeshOptions options_{};
  EventLoop loop_;
  MeshHandler& handler_;
  const MeshWorld world_;
  MeshDialers dialers_;
  const MeshContext context_;
  std::vector<std::unique_ptr<MeshPeer>> ways_;
  std::map<uint32_t, Status> reasons_;
  std::set<uint32_t> told_;
};

// What all ranks do in a call follows from its number and lane, so that peers can be ahead.
struct Shape {
  Program (*make)(uint32_t rank, uint32_t size) = nullptr;
  std::vector<uint32_t> group;
  uint32_t count = 0;
  bool one_chunk = false, in_place = false;
};

Shape ShapeOf(const CallId& id) {
  using namespace testing;  // NOLINT
  const uint32_t count = kCounts[(id.call * 5 + id.lane) % std::size(kCounts)];
  const std::vector<uint32_t> groups[] = {{0, 1, 2}, {1, 0, 2}, {2, 1, 0}};
  const std::vector<uint32_t>& group = groups[id.call / 2 % std::size(groups)];
  if (id.lane == kLastLane) return {RingAllReduce, group, 1000};
  switch ((id.lane + id.call) % 6) {
    case 0:
      return {RingAllReduce, group, count};
    case 1:
      return {RingAllReduce, group, count, false, true};
    case 2:
      return {ChainBroadcast, group, count, true};
    case 3:
      return {AllToAll, group, count};
    case 4:
      return {Barrier, group, 0, true};
    default:
      return {DoublingAllReduce, {0, 1 + id.call / 6 % 2}, count, true};
  }
}

std::string WordsOf(const CallId& id) { return "call " + std::to_string(id.call); }

std::shared_ptr<const Plan> PlanOf(const Shape& shape) {
  const auto size = static_cast<uint32_t>(shape.group.size());
  const auto rank = static_cast<uint32_t>(std::find(shape.group.begin(), shape.group.end(), 0) - shape.group.begin());
  Program program = shape.make(rank, size);
  const auto chunks = testing::Lay(testing::Cut(shape.count, shape.one_chunk ? 1 : size), sizeof(int32_t));
  const ChunkTables tables{program.input_chunks == 0 ? std::vector<Chunk>() : chunks, chunks,
                           program.scratch_chunks == 0 ? std::vector<Chunk>() : chunks};
  auto compiled = Program::Compile(std::move(program), shape.in_place ? 0 : -1);
  Require(compiled.ok());
  auto plan = Plan::Make(*compiled, shape.group, tables);
  Require(plan.ok());
  return *plan;
}

// A message between rank 0 and a peer. `tag` is the line of a point to point message.
using MessageName = std::tuple<uint32_t, uint64_t, uint32_t, uint32_t>;  // peer, lane, call, tag

struct Message {  // as far as it was said
  Buffer bytes;
  uint32_t tag = 0;
  uint64_t length = 0;
  bool begun = false;
  bool claimed = false;
};
using Messages = std::map<MessageName, Message>;

// Step by step, in order: what a run comes to.
class Interpreter {
 public:
  Interpreter(const Plan& plan, const Buffer& input, const Buffer& output, const Messages& heard, const CallId& id)
      : buffers_{input, output, Buffer(plan.scratch_bytes)}, heard_(heard), id_(id) {
    for (const PlanStep& step : plan.steps) Do(step);
  }
  const Buffer& output() const { return buffers_[1]; }
  const Messages& sent() const { return sent_; }

 private:
  std::byte* At(BufferKind buffer, int64_t offset) { return buffers_[static_cast<size_t>(buffer)].data() + offset; }

  void Do(const PlanStep& step) {
    const MessageName name{step.peer, id_.lane, id_.call, step.tag};
    const std::byte* from = At(step.source_buffer, step.source);
    if (step.kind == StepKind::kSend) {
      Message& message = sent_[name];
      message.bytes.assign(from, from + step.length);
      return;
    }
    if (step.kind != StepKind::kCopy) {
      const auto said = heard_.find(name);
      Require(said != heard_.end() && said->second.begun && said->second.bytes.size() >= step.length);
      if (step.kind == StepKind::kReceiveReduce) return Add(step, said->second.bytes);
      from = said->second.bytes.data();
    }
    if (step.length > 0) std::memmove(At(step.target_buffer, step.target), from, step.length);
  }

  void Add(const PlanStep& step, const Buffer& theirs) {
    for (uint64_t at = 0; at < step.length; at += sizeof(uint32_t)) {
      uint32_t a, b;
      std::memcpy(&a, At(step.source_buffer, step.source) + at, sizeof(a));
      std::memcpy(&b, theirs.data() + at, sizeof(b));
      a += b;
      std::memcpy(At(step.target_buffer, step.target) + at, &a, sizeof(a));
    }
  }

  std::array<Buffer, 3> buffers_;
  const Messages& heard_;
  const CallId id_;
  Messages sent_;
};

struct OwnRun {
  CallId id;
  std::shared_ptr<const Plan> plan;
  Buffer given, before;  // copies of input and output as they were
  ExactBuffer input, output;
  std::shared_ptr<Completion> done;
};

struct OwnPoint {
  bool sends = false;
  uint64_t lane = 0;
  int32_t peer = 0;
  uint32_t tag = 0, id = 0;
  ExactBuffer memory;
  std::shared_ptr<Completion> done;
};

// Rank 0's.
enum Own : uint32_t { kLaunch, kLaunchOther, kCancel, kSend, kReceive, kReceiveAny, kFailAll, kOwns };

// A peer's, by the way that it should go unless the second byte says otherwise.
enum Theirs : uint32_t {
  kSayLaunch,
  kSayClear,
  kSayData,
  kSayAll,
  kSayAbort,
  kSayCredit,
  kSayHurry,
  kSayRegion,
  kSayPoint,
  kSayPointClear,
  kSayPointAbort,
  kFloodLast,
  kStopReading,
  kReadOn,
  kComeLate,
  kSayGoodbye,
  kHangUp,
  kTheirs
};

class World final : private EventLoop::Deferred {
 public:
  World(Input& input) : input_(input), options_(static_cast<uint8_t>(input.Byte())), mesh_(core_, WorldOf(options_)) {
    core_.Attach(mesh_);
    core_.Prepare(mesh_.world());
    executor_ = MakeExecutor(core_);
    points_ = std::make_unique<PointImpl>(core_);
    host_ = std::make_shared<HostSide>(mesh_);
    host_->SetWorld(mesh_.world());
    core_.SetHostSide(host_.get());
  }

  void Run() {
    for (uint32_t peer = 1; peer < kRanks; ++peer)
      for (const Way way : {Way::kMain, Way::kUrgent}) {
        WireTo(peer, way) = std::make_shared<Wire>();
        mesh_.at({peer, way}).Offer(std::make_unique<WireStream>(WireTo(peer, way)));
      }
    mesh_.loop().Defer(*this);
    mesh_.loop().Run();
    host_->Close(Status(Code::kClosed, "the end"));
    core_.gate()->Close();
    for (const OwnRun& run : runs_) Require(run.done->done() && !run.done->status().ok());
    for (const OwnPoint& point : own_points_) Require(point.done->done() && !point.done->status().ok());
  }

 private:
  struct Peer {
    std::array<std::shared_ptr<Wire>, kWays> wires;
    std::map<std::tuple<uint64_t, uint32_t>, uint32_t>
        numbers;                       // of the point to point message at hand, by lane and line
    uint64_t eager = 0, credited = 0;  // bytes that it sent, and that it was given back
    uint64_t to_credit = 0;            // of rank 0's
    Header last;
    WayTo last_way;
  };
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

  std::shared_ptr<Wire>& WireTo(uint32_t peer, Way way) { return peers_[peer].wires[static_cast<size_t>(way)]; }
  template <typename Do>
  void ForWires(Do act) {
    for (uint32_t peer = 1; peer < kRanks; ++peer)
      for (const Way way : {Way::kMain, Way::kUrgent}) act(WayTo(peer, way), *WireTo(peer, way));
  }

  // The turns of the loop --------------------------------------------------------------------------------------------

  // Nothing has moved for a few turns: then the next action.
  void RunDeferred() override {
    uint64_t moved = 0;
    ForWires([&](WayTo, const Wire& wire) { moved += wire.taken + wire.out.size() + wire.closed; });
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
        ForWires([](WayTo, Wire& wire) {
          wire.withheld = 0;
          wire.reads = true;
          wire.Ring();
        });
        return true;
      case 1:
        good_ = !mesh_.lost(1) && !mesh_.lost(2) && core_.failed().ok();
        if (good_) Launch({kLastLane, 0}, false, 1800);
        return true;
      case 2:
        for (uint32_t peer = 1; good_ && peer < kRanks; ++peer) SayAllOf(peer, {kLastLane, 0});
        return true;
      case 3:
        Require(!good_ || last_ended_well_);
        ForWires([](WayTo, Wire& wire) {
          wire.closed = true;
          wire.Ring();
        });
        return true;
      case 4:
        for (const OwnRun& run : runs_) Require(run.done->done());
        for (const OwnPoint& point : own_points_) Require(point.done->done() || point.peer < 0);
        executor_.reset();
        points_.reset();
        return true;
      default:
        return false;
    }
  }

  void Look() {
    if (flood_) LookAtFlood();
    ForWires([&](WayTo from, Wire& wire) {
      if (wire.taken == wire.in.size()) wire.in = Buffer(), wire.taken = 0;
      wire.Take([&](const Header& header, const std::byte* payload) { OnFrame(from, header, payload); });
    });
    for (size_t i = runs_.size(); i-- > 0;) {
      if (!runs_[i].done->done()) continue;
      Check(runs_[i]);
      runs_.erase(runs_.begin() + static_cast<ptrdiff_t>(i));
    }
    for (size_t i = 0; i < own_points_.size();) {
      if (!own_points_[i].done->done()) {
        ++i;
        continue;
      }
      Check(own_points_[i]);
      own_points_.erase(own_points_.begin() + static_cast<ptrdiff_t>(i));
    }
    for (uint32_t peer = 1; peer < kRanks; ++peer) {
      Require(core_.remembered(peer) <= kMostRemembered);
      Require(peers_[peer].credited <= peers_[peer].eager);
    }
  }

  // What rank 0 says -------------------------------------------------------------------------------------------------

  void OnFrame(WayTo from, const Header& header, const std::byte* payload) {
    Require(header.view == kEpoch && header.member == kFirstMember);
    Peer& peer = peers_[from.peer];
    switch (header.type) {
      case FrameType::kData:
        if (IsEager(header)) peer.to_credit += header.length;
        return OnData(from, header, payload);
      case FrameType::kCredit:
        peer.credited += header.offset;
        return;
      case FrameType::kAbort:
        return Require(header.aux != 0 && header.aux < kCodeCount && header.length <= kMostAbortText);
      case FrameType::kLaunch:
        return Require(header.length <= kMostDescription);
      case FrameType::kClear:
        cleared_.insert({from.peer, header.key, header.round, header.root});
        return;
      case FrameType::kHurry:
      case FrameType::kRegion:
      case FrameType::kGoodbye:
        return;
      default:
        Require(false);
    }
  }

  void OnData(WayTo from, const Header& header, const std::byte* payload) {
    const bool point = (header.key & kPointLane) != 0;
    Message& message = sent_[{from.peer, header.key, header.round, point ? header.root % kPointLines : header.root}];
    Require(header.offset == message.bytes.size() && (!message.begun || header.length > 0));
    Require(!message.begun || (message.length == MessageLength(header) && message.tag == header.root));
    message.begun = true;
    message.length = MessageLength(header);
    message.tag = header.root;
    Require(header.offset + header.length <= message.length);
    message.bytes.insert(message.bytes.end(), payload, payload + header.length);
    if (point) CheckPattern(header, payload);
  }

  static uint32_t WordOf(uint32_t id, uint64_t index) { return id << 20 | static_cast<uint32_t>(index); }
  static void FillWith(uint32_t id, std::byte* to, size_t bytes) {
    for (size_t at = 0; at < bytes; ++at) to[at] = std::byte(WordOf(id, at / 4) >> at % 4 * 8);
  }
  // Whatever a point to point message carries, it is one send's, from the beginning on.
  static void CheckPattern(const Header& header, const std::byte* payload) {
    if (header.length < 4 || header.offset % 4 != 0) return;
    uint32_t first;
    std::memcpy(&first, payload, sizeof(first));
    for (uint32_t at = 0; at < header.length; ++at)
      Require(payload[at] == std::byte(WordOf(first >> 20, (header.offset + at) / 4) >> at % 4 * 8));
  }

  // Rank 0's calls ---------------------------------------------------------------------------------------------------

  void Launch(const CallId& id, bool other, double timeout) {
    Shape shape = ShapeOf(id);
    if (other) shape.count = shape.count == 0 ? 5 : shape.count / 2;
    auto plan = PlanOf(shape);
    const size_t bytes = shape.count * sizeof(int32_t);
    OwnRun run{id, plan, Buffer(bytes), Buffer(bytes), ExactBuffer(bytes), ExactBuffer(bytes), nullptr};
    for (size_t at = 0; at < bytes; ++at) {
      run.given[at] = std::byte(at * 7 + id.call);
      run.before[at] = shape.in_place ? run.given[at] : std::byte(0x55);
    }
    std::copy(run.given.begin(), run.given.end(), run.input.data());
    std::copy(run.before.begin(), run.before.end(), run.output.data());
    RunOptions options;
    options.id = id;
    options.description = WordsOf(id) + (other ? ", which is another one" : "");
    options.plan = std::move(plan);
    options.dtype = DType::kInt32;
    options.op = Op::kSum;
    options.input = run.input.data();
    options.output = run.output.data();
    options.timeout = timeout;
    if ((options_ & kSmallSegments) != 0) options.segment_bytes = 4096;
    run.done = executor_->Launch(std::move(options));
    runs_.push_back(std::move(run));
  }

  static bool Failed(const Completion& done) {
    Require(done.status().ok() || !done.status().message().empty());
    return !done.status().ok();
  }

  void Check(OwnRun& run) {
    if (Failed(*run.done)) return;
    const Interpreter expected(*run.plan, run.given, run.before, heard_, run.id);
    Require(std::equal(expected.output().begin(), expected.output().end(), run.output.data()));
    for (const auto& [name, message] : expected.sent()) {
      const auto sent = sent_.find(name);
      Require(sent != sent_.end() && sent->second.begun && sent->second.bytes == message.bytes);
    }
    last_ended_well_ = last_ended_well_ || run.id.lane == kLastLane;
  }

  void SendPoint(uint32_t peer, uint64_t lane, double timeout) {
    const uint32_t length = kLengths[input_.Byte() % std::size(kLengths)];
    OwnPoint point{
        true,   lane, static_cast<int32_t>(peer), kTags[input_.Byte() % std::size(kTags)], ++ids_, ExactBuffer(length),
        nullptr};
    FillWith(point.id, point.memory.data(), length);
    point.done =
        points_->Send({lane, testing::WorldRanks(kRanks), point.tag, timeout}, peer, point.memory.data(), length);
    own_points_.push_back(std::move(point));
  }
  void ReceivePoint(int32_t peer, uint64_t lane, double timeout) {
    const uint32_t length = kLengths[input_.Byte() % std::size(kLengths)];
    OwnPoint point{false, lane, peer, kTags[input_.Byte() % std::size(kTags)], ++ids_, ExactBuffer(length), nullptr};
    point.done =
        points_->Receive({lane, testing::WorldRanks(kRanks), point.tag, timeout}, peer, point.memory.data(), length);
    own_points_.push_back(std::move(point));
  }

  // Of what was sent or heard, it is one message that is nobody else's; of several from one peer, in order.
  void Check(OwnPoint& point) {
    if (Failed(*point.done)) return;
    const auto peer = point.sends ? static_cast<uint32_t>(point.peer) : point.done->source();
    Require(peer > 0 && peer < kRanks && (point.peer < 0 || peer == static_cast<uint32_t>(point.peer)));
    const auto bytes = point.memory.bytes();
    for (auto& [name, message] : point.sends ? sent_ : heard_) {
      const auto& [whose, lane, number, line] = name;
      if (whose != peer || lane != (point.lane | kPointLane) || !message.begun || message.claimed) continue;
      if (message.tag != point.tag || message.length != bytes.size()) continue;
      if (!std::equal(bytes.begin(), bytes.end(), message.bytes.begin(), message.bytes.end())) continue;
      message.claimed = true;
      return;
    }
    Require(false);
  }

  // Actions ----------------------------------------------------------------------------------------------------------

  void Act() {
    const uint32_t first = input_.Byte(), second = input_.Byte();
    const uint32_t rank = first % kRanks;
    mutates_ = (second & 0x80) != 0;
    if (rank == 0) return ActOwn(static_cast<Own>(first / kRanks % kOwns), second);
    ActTheirs(static_cast<Theirs>(first / kRanks % kTheirs), rank, second);
  }

  void ActOwn(Own action, uint32_t second) {
    const uint64_t lane = 1 + second % kLanes;
    const double timeout = (second & 0x40) != 0 ? 0 : 1800;
    const uint32_t peer = 1 + second / 2 % 2;
    switch (action) {
      case kLaunch:
      case kLaunchOther:
        return Launch({lane, next_[lane]++}, action == kLaunchOther, timeout);
      case kCancel:
        if (!runs_.empty())
          executor_->Cancel(runs_[second % runs_.size()].done, Status(Code::kTimeout, "it was given up"));
        return;
      case kSend:
        return SendPoint(peer, lane, timeout);
      case kReceive:
        return ReceivePoint(static_cast<int32_t>(peer), lane, timeout);
      case kReceiveAny:
        return ReceivePoint(PointToPoint::kAnySource, lane, timeout);
      case kFailAll:
        if (second < 0xF0) return;  // or inputs hold little else
        core_.FailAll(Status(Code::kSystem, "all is over"));
        return points_->FailAll(Status(Code::kSystem, "all is over"));
      case kOwns:
        return;
    }
  }

  void ActTheirs(Theirs action, uint32_t rank, uint32_t second) {
    // The call at hand, one before it or one of the next.
    const uint64_t lane = 1 + second % kLanes;
    const CallId id{lane, next_[lane] + second / 2 % 4 - 1};
    const Way urgent = (second & 0x40) == 0 && (options_ & kOneHost) == 0 ? Way::kUrgent : Way::kMain;
    Header header = HeaderOf(FrameType::kLaunch, id);
    switch (action) {
      case kSayLaunch: {
        const uint32_t how = input_.Byte();
        header.aux = how % 2;
        const std::string text = (how & 2) != 0 ? "" : WordsOf(id) + ((how & 4) != 0 ? ", or not" : "");
        return SayText(rank, header, text);
      }
      case kSayClear:
        header.type = FrameType::kClear;
        return Say(rank, header);
      case kSayData:
        return SayNext(rank, id, input_.Byte());
      case kSayAll:
        return SayAllOf(rank, id);
      case kSayAbort:
        header.type = FrameType::kAbort;
        header.aux = input_.Byte() % (kCodeCount + 1);
        return SayText(rank, header, "it failed");
      case kSayCredit:
        header = HeaderOf(FrameType::kCredit, {});
        header.offset = mutates_ ? input_.Word() : std::exchange(peers_[rank].to_credit, 0);
        return Say(rank, header);
      case kSayHurry:
        return Say(rank, HeaderOf(FrameType::kHurry, {}));
      case kSayRegion:
        return SayRegion(rank);
      case kSayPoint:
        return SayPoint({rank, urgent}, lane);
      case kSayPointClear:
      case kSayPointAbort:
        return AnswerPoint(action == kSayPointClear ? FrameType::kClear : FrameType::kAbort, {rank, urgent}, lane);
      case kFloodLast:
        return Flood(rank);
      case kStopReading:
      case kReadOn:
        WireTo(rank, Way::kMain)->reads = WireTo(rank, Way::kUrgent)->reads = action == kReadOn;
        WireTo(rank, Way::kMain)->Ring();
        return WireTo(rank, Way::kUrgent)->Ring();
      case kComeLate:  // the next frame will
        late_ = 1 + input_.Byte() * 8;
        return;
      case kSayGoodbye:
        return Say(rank, HeaderOf(FrameType::kGoodbye, {}));
      case kHangUp:
        WireTo(rank, Way::kMain)->closed = true;
        return WireTo(rank, Way::kMain)->Ring();
      case kTheirs:
        return;
    }
  }

  static Header HeaderOf(FrameType type, const CallId& id) {
    Header header;
    header.type = type;
    header.key = id.lane;
    header.round = id.call;
    return header;
  }

  // The peers --------------------------------------------------------------------------------------------------------

  void SayText(uint32_t rank, Header header, const std::string& text) {
    header.length = static_cast<uint32_t>(text.size());
    Buffer payload(text.size());
    if (!text.empty()) std::memcpy(payload.data(), text.data(), text.size());
    Put(rank, header, payload);
  }

  // Its bytes follow from what it says, also if that was changed.
  void Say(WayTo by, Header header) {
    if (mutates_) Mutate(header, input_);
    Buffer payload(header.length);
    for (size_t at = 0; at < payload.size(); ++at)
      payload[at] = std::byte((header.offset + at) * 3 + header.round * 5 + header.root * 11 + by.peer * 17);
    Put(by, header, payload);
  }

  void Put(WayTo by, Header header, const Buffer& payload) {
    Wire& wire = *WireTo(by.peer, by.way);
    header.view = kEpoch;
    header.member = kFirstMember + by.peer;
    const Buffer frame = FrameOf(header, payload);
    if (frame.empty()) return;
    peers_[by.peer].last = header;
    peers_[by.peer].last_way = by;
    Note(by.peer, header, payload);
    wire.Put(frame, std::exchange(late_, 0));
  }

  void Note(uint32_t peer, const Header& header, const Buffer& payload) {
    const bool point = (header.key & kPointLane) != 0;
    if (header.type == FrameType::kData && IsEager(header)) peers_[peer].eager += header.length;
    if (header.type != FrameType::kData && !(point && header.type == FrameType::kLaunch)) return;
    const uint32_t tag = point ? header.root % kPointLines : header.root;
    Message& message = heard_[{peer, header.key, header.round, tag}];
    if (!message.begun) message.tag = header.root;
    if (!message.begun) message.length = header.type == FrameType::kData ? MessageLength(header) : header.offset;
    message.begun = true;
    if (header.type != FrameType::kData || header.offset != message.bytes.size()) return;
    message.bytes.insert(message.bytes.end(), payload.begin(), payload.end());
  }

  Header DataOf(uint32_t peer, const CallId& id, uint32_t tag, uint64_t length, bool eager) {
    Header header = HeaderOf(FrameType::kData, id);
    header.root = tag;
    const uint32_t name = (id.lane & kPointLane) != 0 ? tag % kPointLines : tag;
    const auto said = heard_.find({peer, id.lane, id.call, name});
    header.offset = said == heard_.end() ? 0 : said->second.bytes.size();
    header.aux = static_cast<uint32_t>(length);
    header.total = eager ? kEagerMark : 0;
    if (header.offset < length) header.length = std::min<uint32_t>(length - header.offset, kMostPayload);
    return header;
  }

  // The next piece of the messages of a call that the peer has not said whole; eager if it may not be otherwise.
  void SayNext(uint32_t rank, const CallId& id, uint32_t how) {
    const auto plan = PlanOf(ShapeOf(id));
    for (const PlanStep& step : plan->steps) {
      if (step.kind == StepKind::kSend || step.kind == StepKind::kCopy || step.peer != rank) continue;
      const bool begun = id.call < next_[id.lane], wrong = (how & 0x80) != 0;
      const bool eager = begun == wrong;
      Header header = DataOf(rank, id, step.tag, step.length, eager);
      const auto said = heard_.find({rank, id.lane, id.call, step.tag});
      if (header.length == 0 && (step.length > 0 || (said != heard_.end() && said->second.begun))) continue;
      if (eager && !wrong && step.length > kEagerMessage) continue;
      if ((how & 0x40) != 0) header.length = std::min(header.length, 1 + how % 64 * 4);
      return Say(rank, header);
    }
  }

  // As a good peer does.
  void SayAllOf(uint32_t rank, const CallId& id) {
    mutates_ = false;
    late_ = 0;
    SayText(rank, HeaderOf(FrameType::kLaunch, id), WordsOf(id));
    Say(rank, HeaderOf(FrameType::kClear, id));
    const auto plan = PlanOf(ShapeOf(id));
    for (const PlanStep& step : plan->steps) {
      if (step.kind == StepKind::kSend || step.kind == StepKind::kCopy || step.peer != rank) continue;
      const bool eager = id.lane != kLastLane && id.call >= next_[id.lane];
      if (eager && step.length > kEagerMessage) continue;
      do {
        Say(rank, DataOf(rank, id, step.tag, step.length, eager));
      } while (heard_[{rank, id.lane, id.call, step.tag}].bytes.size() < step.length);
    }
  }

  static int Page() {
    static auto memory = SharedBuffer::Create(kPage);
    Require(memory.ok());
    return ::dup((*memory)->fd());
  }

  void SayRegion(uint32_t rank) {
    constexpr uint32_t kIds[] = {0, 1, 2, 0xFFFFFFFF};
    const uint32_t how = input_.Byte();
    Header header = HeaderOf(FrameType::kRegion, {});
    header.aux = kIds[how % std::size(kIds)];
    if ((how & 0x10) != 0) {
      header.total = how >> 5 & 1;
    } else {
      header.offset = kPage;
      WireTo(rank, Way::kMain)->passed.push_back((how & 0x80) != 0 ? -1 : Page());
    }
    Say(rank, header);
  }

  // A message of its own, or more of the one at hand.
  void SayPoint(WayTo by, uint64_t lane) {
    const uint32_t how = input_.Byte();
    const uint32_t tag = kTags[how % 4], line = tag % kPointLines;
    uint32_t& number = peers_[by.peer].numbers[{lane, line}];
    lane |= kPointLane;
    const MessageName name{by.peer, lane, number, line};
    auto said = heard_.find(name);
    if (said != heard_.end() && said->second.bytes.size() >= said->second.length) said = heard_.end(), ++number;
    const uint64_t length = said == heard_.end() ? kLengths[how / 4 % std::size(kLengths)] : said->second.length;
    const CallId id{lane, number};
    const bool wrong = (how & 0x80) != 0;
    const bool eager = !cleared_.contains({by.peer, lane, number, tag}) && length <= kEagerMessage;
    Header header = DataOf(by.peer, id, tag, length, eager != wrong);
    if ((how & 0x20) != 0) header.length = std::min(header.length, 60u);
    if (!eager && !wrong && !cleared_.contains({by.peer, lane, number, tag})) {
      header = HeaderOf(FrameType::kLaunch, id);
      header.root = tag;
      header.aux = 1;
      header.offset = length;
    }
    Say(by, header);
  }

  // To the last message that rank 0 has begun, or to its own.
  void AnswerPoint(FrameType type, WayTo by, uint64_t lane) {
    const uint32_t how = input_.Byte();
    Header header = HeaderOf(type, {lane | kPointLane, how / 8 % 4});
    header.root = kTags[how % 4];
    if (type == FrameType::kAbort) {
      header.total = how >> 6 & 1;
      header.aux = (how & 0x80) != 0 ? static_cast<uint32_t>(Code::kMismatch) : how % kCodeCount;
    }
    Say(by, header);
  }

  // The last frame again and again, a field of it counting up: what the peer makes rank 0 keep, it is charged with.
  void Flood(uint32_t rank) {
    const uint32_t field = input_.Byte() % 5;
    const WayTo by = peers_[rank].last_way;
    Header header = peers_[rank].last;
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
      WireTo(rank, by.way)->Put(frame);
    }
  }

  // What the process holds, but for what lies in wires and was noted of a flood.
  size_t Memory() {
    size_t wires = 0;
    ForWires([&](WayTo, const Wire& wire) { wires += wire.in.capacity() + wire.out.capacity(); });
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
    for (const Header& header : flood_->frames) Note(rank, header, Buffer(header.length));
    flood_.reset();
  }

  static constexpr int kQuiet = 4;
  Input& input_;
  const uint8_t options_;
  ExchangeCore core_;
  FuzzMesh mesh_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<PointImpl> points_;
  std::shared_ptr<HostSide> host_;
  std::array<Peer, kRanks> peers_;
  std::vector<OwnRun> runs_;
  std::vector<OwnPoint> own_points_;
  std::map<uint64_t, uint32_t> next_;  // call of a lane
  Messages sent_, heard_;
  std::set<MessageName> cleared_;
  std::optional<Flooded> flood_;
  uint64_t moved_ = 0;
  uint32_t ids_ = 0;
  size_t late_ = 0;
  int quiet_ = 0, ending_ = 0, floods_ = 0;
  bool mutates_ = false, good_ = false, last_ended_well_ = false;
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
