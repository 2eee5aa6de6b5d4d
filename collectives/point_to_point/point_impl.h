// Sends and receives between pairs of ranks. A message is (lane, sender, line, number): the sender counts its messages
// to each peer by line, and the receiver takes them in that order, each for the first posted receive that it fits. Tags
// below kPointLines have a line each, larger ones share these, so that tags that are never used again leave nothing. A
// message without a posted receive is eager or waits for a CLEAR, like those of a call that has not begun.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "collectives/exchange/exchange_core.h"
#include "collectives/point_to_point/point_to_point.h"

namespace byteps_like {

inline constexpr uint32_t kPointLines = 1024;  // both ends of a link must agree on it
// Approximate memory of one of each.
inline constexpr size_t kArrivalBytes = 320, kCounterBytes = 96;

Deadline DeadlineAfter(double seconds);

class PointCompletion final : public Completion {
 public:
  explicit PointCompletion(std::shared_ptr<LoopGate> gate) : gate_(std::move(gate)) {}
  bool Wait(Deadline deadline) override { return WaitDriving(gate_.get(), deadline); }
  void End(const Status& status) { Finish(status); }
  void End(uint32_t source, uint64_t bytes) {
    source_ = source;
    bytes_ = bytes;
    Finish({});
  }

 private:
  const std::shared_ptr<LoopGate> gate_;
};

class PointImpl final : public PointToPoint, public PointFrames, private Sender, private EventLoop::Deferred {
 public:
  explicit PointImpl(ExchangeCore& core) : core_(core) { core_.SetPointFrames(this); }
  ~PointImpl() override;  // on the loop's thread, or when it has stopped; messages in flight end with kClosed

  std::shared_ptr<Completion> Send(PointOptions options, uint32_t peer, const std::byte* data, uint64_t bytes) override;
  std::shared_ptr<Completion> Receive(PointOptions options, int32_t peer, std::byte* place, uint64_t bytes) override;
  void FailAll(const Status& why);                    // on the loop's thread
  void CancelLane(uint64_t lane, const Status& why);  // likewise; the peers of those in flight are told

 private:
  struct Name {  // of a message, with the peer at the other end
    uint64_t lane = 0;
    uint32_t peer = 0, line = 0, number = 0;
    auto operator<=>(const Name&) const = default;
  };
  static Name NameOf(uint64_t lane, uint32_t peer, uint32_t tag, uint32_t number) {
    return {lane, peer, tag % kPointLines, number};
  }
  struct Sending {
    Name name;
    SendMessage message;
    Outbound out;
    Flow flow;
    double timeout = 0;
    uint64_t timer = 0;
    std::shared_ptr<PointCompletion> done;
  };
  struct Posted {  // a receive
    uint64_t id = 0;
    PointOptions options;
    int32_t peer = kAnySource;  // world rank
    std::byte* place = nullptr;
    uint64_t bytes = 0;
    uint64_t timer = 0;
    std::shared_ptr<PointCompletion> done;
  };
  struct Arrival {  // a message on its way in
    Name name;
    uint32_t tag = 0;
    WayTo from;
    uint64_t length = 0, arrived = 0, taken = 0;
    bool in_turn = false;     // all before it are matched or lie in line
    bool empty_came = false;  // the frame of a message without bytes
    bool wants_clear = false;
    bool dropped = false;  // no receive takes it; further bytes are thrown away
    uint32_t landing = 0;  // bytes of the payload that comes right now, if they were due, and
    bool direct = false;   // it goes into place
    std::list<Block> stash;
    std::optional<Posted> receive;
  };
  struct Lane {
    std::list<Posted> posted;     // not matched, in order
    std::list<Arrival*> in_line;  // in turn and not matched, in the order of their turns
  };

  // point_send.cc
  void OnSent(Outbound& out) override;
  void Launch(Flow& flow, bool ask) override;
  void Start(std::shared_ptr<Sending> sending);
  void EndSend(const Name& name, const Status& why);
  void SendTimedOut(const Name& name);
  void AbortAt(WayTo to, const Name& name, uint32_t tag, bool from_sender, const Status& why);
  Status TakeLate(uint64_t lane, uint32_t peer);

  // point_receive.cc
  void StartReceive(Posted posted);
  void ReceiveTimedOut(uint64_t lane, uint64_t id);
  bool Fits(const Posted& posted, const Arrival& arrival) const;
  void TakeTurns(Arrival& arrival);
  void Match(Arrival& arrival);
  void Bind(Arrival& arrival, Posted posted);
  void Clear(const Arrival& arrival);
  void Deliver(Arrival& arrival);
  void Took(Arrival& arrival, uint64_t bytes, bool eager);
  bool IsWhole(const Arrival& arrival) const;
  void FailReceive(Arrival& arrival, const Status& why);
  void DropArrival(Arrival& arrival);
  void EndReceive(Posted& posted, const Status& why);
  std::string PeerText(const Posted& posted) const;
  void RunDeferred() override;

  // point_frames.cc
  std::byte* PlaceFor(WayTo from, const Header& header) override;
  void OnFrame(WayTo from, const Header& header, std::byte* payload) override;
  void OnPeerLost(uint32_t peer, const Status& why) override;
  Arrival* Incoming(WayTo from, const Header& header, uint64_t length);
  void OnData(WayTo from, const Header& header);
  void OnAbort(WayTo from, const Header& header, const std::string& text);
  void Erase(const Name& name);

  ExchangeCore& core_;
  std::map<Name, std::shared_ptr<Sending>> sends_;
  std::map<Name, uint32_t> numbers_;  // of the next message, by (lane, peer, line, 0)
  std::map<Name, uint32_t> turns_;    // of the next message from a peer whose turn it is, likewise
  std::map<Name, std::unique_ptr<Arrival>> arrivals_;
  std::unordered_map<uint64_t, Lane> lanes_;
  std::map<std::pair<uint64_t, uint32_t>, Status> late_;  // by (lane, peer): failures of sends that had ended
  std::map<WayTo, Block> coming_;                         // where the payload that comes right now is kept
  uint64_t ids_ = 0;
};

}  // namespace byteps_like
