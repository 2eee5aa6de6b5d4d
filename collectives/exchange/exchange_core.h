// The exchange: calls that were begun here or heard of from peers, their messages in both directions, and one port per
// peer and way. Everything runs on the mesh's loop, except Prepare and rank.
//
//   exchange_out.cc   sending                  exchange_in.cc     receiving
//   exchange.cc       calls and messages       exchange_fail.cc   aborts and lost peers
//   exchange_offers.cc  places that peers write to by themselves
#pragma once

#include <array>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "collectives/exchange/exchange.h"
#include "collectives/exchange/exchange_outbox.h"
#include "collectives/lane_history.h"

namespace byteps_like {

class HostSide;
struct CallRecord;

struct Block {  // bytes that came before a receive wanted them
  std::unique_ptr<std::byte[]> bytes;
  uint32_t length = 0;
  bool eager = false;
};

// The most that a peer can make this rank remember: calls, messages and other words that no call of this rank has asked
// for. Enough for a peer that is some 60,000 calls ahead, with a message each. A quarter of it would cut off ranks that
// do nothing wrong: a rank that ends backward of 100 GiB of gradients first announces 25,600 partitions of 4 MiB.
// 100 GiB of gradients first announces 25,600 partitions of 4 MiB.
inline constexpr size_t kMostRemembered = 64u << 20;
inline constexpr size_t kMostDescription = 512;
// Approximate memory of one of each, with everything that belongs to it.
inline constexpr size_t kRecordBytes = 640, kInboundBytes = 320, kAnswerBytes = 160, kRegionBytes = 96;

struct Inbound : Hook {  // one message on its way in
  CallRecord* record = nullptr;
  uint32_t peer = 0;
  uint32_t tag = 0;
  uint64_t length = 0;
  bool length_known = false;
  ReceiveMessage* message = nullptr;  // once posted
  uint64_t arrived = 0;               // whole frames, delivered or in the stash
  bool begun = false;                 // a frame of it has come
  std::list<Block> stash;
  Flow* flow = nullptr;    // the peer's; set if the message is charged to it, as it came before it was posted
  bool scheduled = false;  // to be delivered from the stash
  bool offered = false;    // the peer may write it to its place

  bool arrived_whole() const { return begun && arrived == length; }
};

class ExchangeCore;

// The call as frames name it, and where a record keeps what a peer sends with a tag.
inline CallId OnWire(CallId id) { return {id.lane & ~kPointLane, id.call}; }
inline uint64_t InboundKey(uint32_t peer, uint32_t tag) { return (static_cast<uint64_t>(peer) << 32) | tag; }

struct CallRecord final : Sender {
  explicit CallRecord(ExchangeCore& exchange) : core(exchange) {}
  void OnSent(Outbound& out) override;
  void Launch(Flow& flow, bool ask) override;

  ExchangeCore& core;
  CallId id;
  Call* call = nullptr;                      // once begun here
  Status failed;                             // it can't go on; the call is told from the loop, or when it begins
  bool flood = false;                        // and its ranks are to be told by us
  uint64_t unposted = 0;                     // bytes in the stash that no receive has asked for and that were not eager
  std::vector<std::unique_ptr<Flow>> flows;  // one per peer
  std::unordered_map<uint64_t, Inbound> inbound;
  std::vector<std::unique_ptr<Outbound>> outbound;
};

// Handles the frames of point to point lanes.
class PointFrames {
 public:
  virtual std::byte* PlaceFor(WayTo from, const Header& header) = 0;  // never nullptr
  virtual void OnFrame(WayTo from, const Header& header, std::byte* payload) = 0;
  virtual void OnPeerLost(uint32_t peer, const Status& why) = 0;

 protected:
  ~PointFrames() = default;
};

class ExchangeCore final : public Exchange, public MeshHandler, private EventLoop::Deferred {
 public:
  ExchangeCore() = default;
  ~ExchangeCore() override;
  void Attach(Mesh& mesh) {
    mesh_ = &mesh;
    gate_ = std::make_shared<LoopGate>(mesh.loop());
  }
  void Prepare(const MeshWorld& world);  // before Mesh::SetWorld
  void SetPointFrames(PointFrames* points) { points_ = points; }
  void SetHostSide(HostSide* host) { host_ = host; }
  // Everything in flight and to come fails with this.
  void FailAll(const Status& why);
  const Status& failed() const { return failed_; }

  // Exchange
  uint32_t rank() const override { return rank_; }
  EventLoop& loop() override { return mesh_->loop(); }
  std::shared_ptr<LoopGate> gate() override { return gate_; }
  Status Begin(Call& call) override;
  void Post(Call& call, SendMessage& message) override;
  void Post(Call& call, ReceiveMessage& message) override;
  void Advance(SendMessage& message) override;
  void Retry(ReceiveMessage& message) override;
  bool TakesOffers(uint32_t peer, uint64_t length) override;
  void Offer(ReceiveMessage& message, std::byte* place) override;
  void End(Call& call) override;
  bool Abort(Call& call, const Status& why) override;
  void Sever(Call& call) override;
  std::string Silent(const Call& call) override;
  void Probe(Call& call) override;

  // MeshHandler
  std::byte* PlaceFor(WayTo from, const Header& header) override;
  void OnFrame(WayTo from, const Header& header, std::byte* payload) override;
  bool NextFrame(WayTo to, Outgoing& next) override { return outbox(to).Next(next); }
  void OnSent(WayTo to, const Header& header) override { Refund(to.peer, outbox(to).OnSent(header)); }
  void OnWithdrawn(WayTo from, const OfferId& what) override;
  void OnLinkGone(WayTo from) override;
  void OnPeerLost(uint32_t peer, const Status& why) override;
  void OnRegion(uint32_t peer, uint32_t id, std::shared_ptr<SharedBuffer> buffer) override;
  void OnNoRegion(uint32_t peer, uint32_t id, bool refused) override;

  // For point to point calls and records.
  Mesh& mesh() { return *mesh_; }
  Outbox& outbox(WayTo to) { return port(to).outbox; }
  // Which way point to point messages of this class go.
  WayTo PointWay(uint32_t peer, TrafficClass traffic) const;
  uint32_t ranks() const { return static_cast<uint32_t>(peers_.size()); }
  const Status& lost(uint32_t peer) const { return peers_[peer]->lost; }
  std::string NameOf(uint32_t peer) const;
  void Send(WayTo to, const Header& header, std::string text = "");  // a control frame
  // A control frame that the peer has asked for: at its expense until it takes it.
  void Answer(WayTo to, const Header& header);
  void Queue(Outbound& out);
  void Withdraw(Outbound& out);  // the message won't be sent further; its memory may change from here on
  void ReturnCredit(WayTo from, uint64_t bytes);  // eager bytes that were taken, or thrown away
  void Violation(uint32_t peer, const std::string& what);
  void Forget(CallRecord& record, Outbound& out);
  uint64_t held(WayTo from) { return port(from).held; }
  // The peer makes this rank remember so many bytes more. False: too many, and its links are cut.
  bool Charge(uint32_t peer, size_t bytes);
  void Refund(uint32_t peer, size_t bytes) { peers_[peer]->remembered -= bytes; }
  size_t remembered(uint32_t peer) const { return peers_[peer]->remembered; }

 private:
  struct Landing {  // of the payload that comes by a way right now
    Inbound* in = nullptr;
    bool direct = false;
    Block block;
  };
  struct Port {  // our end of a way to a peer
    Port(uint32_t member, uint32_t view) : outbox(member, view) {}
    Outbox outbox;
    Landing landing;
    uint64_t held = 0;  // eager bytes of the peer that were not given back, and of these:
    uint64_t owed = 0;  // taken, not told yet
  };
  struct Peer {
    Peer(uint32_t member, uint32_t view) : ports{Port(member, view), Port(member, view)} {}
    std::array<Port, kWays> ports;
    std::string last;       // the description it sent last
    size_t remembered = 0;  // bytes charged to it
    size_t regions = 0;     // of these, for regions
    Deadline told{};        // when we told it that we are in a hurry, and
    Deadline hurry{};       // when it told us
    Status lost;
    bool left = false;  // lost by a goodbye
  };
  struct Withdrawing {  // a call that is over, but for peers that may still write to places it has offered
    Call* call = nullptr;
    Status why;
    std::set<std::pair<uint32_t, uint32_t>> places;  // peer and tag
    uint64_t timer = 0;
  };
  struct Broken {  // a group that lost a rank, as another rank told us
    uint32_t call = 0;
    Status why;
  };
  struct CallHash {
    size_t operator()(const CallId& id) const { return id.lane ^ (id.call * 0x9E3779B97F4A7C15ull); }
  };

  void RunDeferred() override;
  Port& port(WayTo way) { return peers_[way.peer]->ports[static_cast<size_t>(way.way)]; }
  CallRecord* Find(const CallId& id);
  CallRecord* FindOrMake(const CallId& id);                           // nullptr: the call is over
  CallRecord* HeardOf(uint32_t peer, const CallId& id, Flow*& flow);  // likewise, or the peer has said too much
  bool Charge(Flow& flow, size_t bytes);                              // until the call is over
  Flow& FlowOf(CallRecord& record, uint32_t peer);
  Flow* FindFlow(CallRecord& record, uint32_t peer);

  void ChargeRegions(uint32_t peer);

  // In.
  std::byte* PlaceForData(WayTo from, const Header& header);
  void OnData(uint32_t peer, const Header& header, std::byte* payload);
  Inbound* Incoming(uint32_t peer, const Header& header);
  bool Fits(uint32_t peer, Inbound& in, const Header& header);
  void Stash(Inbound& in, Block block);
  void Schedule(Inbound& in);
  void Deliver(Inbound& in);
  void Take(Inbound& in, const std::byte* bytes, uint32_t length);
  void EraseInbound(Inbound& in);
  void OnLaunch(uint32_t peer, const Header& header, std::string text);
  void OnClear(uint32_t peer, const Header& header);
  void OnAbort(uint32_t peer, const Header& header, std::string text);
  void Heard(Flow& flow);

  // Failure.
  std::string Differ(const CallRecord& record, const Flow& flow) const;
  void FailLater(CallRecord& record, const Status& why, bool flood);
  void FailNow(CallId id);
  void BreakLane(const CallId& id, const Status& why);
  void Flood(const Call& call, const Status& why);
  // Its messages are forgotten, it is over. False: peers may still write into its memory, OnFailed(why) follows.
  bool Close(CallRecord& record, const Status& why);

  // Offers.
  bool WithdrawAll(CallRecord& record, const Status& why);
  void SettleIfDone(CallId id);
  void CutWriters(CallId id, const char* why);
  bool Unfinished(const CallRecord& record, uint32_t peer) const;
  Status LossOf(uint32_t peer) const;
  // Where urgent messages share lines with others, the send queues of the links for the others are kept short: ours to
  // all peers, and those of peers that send to us, which are told to do so.
  void Mix(WayTo to, TrafficClass traffic);
  void Hear(WayTo from, const Header& header);
  void LookAtMix();
  void Look();  // for peers that we wait for and have no link with
  void LookLater();

  Mesh* mesh_ = nullptr;
  Deadline bulky_at_{}, hurried_at_{};  // when such a message was queued last, or came
  Deadline urgent_at_{};                // likewise, by the urgent way
  Deadline told_at_{};                  // when a peer told of its hurry last
  uint64_t mix_timer_ = 0;
  std::shared_ptr<LoopGate> gate_;
  PointFrames* points_ = nullptr;
  HostSide* host_ = nullptr;
  uint32_t rank_ = 0;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::unordered_map<CallId, std::unique_ptr<CallRecord>, CallHash> calls_;
  std::unordered_map<CallId, Withdrawing, CallHash> withdrawing_;
  std::unordered_map<uint64_t, LaneHistory> lanes_;
  std::unordered_map<uint64_t, Broken> broken_;  // by lane
  std::vector<Inbound*> scheduled_;
  std::vector<CallId> failures_;
  Inbound* delivering_ = nullptr;
  size_t begun_ = 0;
  uint64_t look_timer_ = 0;
  Status failed_;
};

}  // namespace byteps_like
