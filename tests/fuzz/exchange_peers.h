// The two peers of rank 0 in the fuzzer of exchanges: the far ends of its links, what they say, frames that are valid
// one by one in any order, and what both sides have said.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "collectives/exchange/exchange_core.h"
#include "collectives/point_to_point/point_impl.h"
#include "csrc/transport/memory/shared_buffer.h"
#include "tests/fuzz/exchange_mesh.h"
#include "tests/fuzz/exchange_own.h"

namespace byteps_like::fuzzing {

inline constexpr size_t kPage = 4096;  // of a region that is passed

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

class Peers {
 public:
  // `next`: the calls that rank 0 has made.
  Peers(Input& input, const CallNumbers& next, Said& said, bool one_host)
      : input_(input), next_(next), said_(said), one_host_(one_host) {}

  // All links come into being.
  void Connect(FuzzMesh& mesh) {
    for (uint32_t peer = 1; peer < kRanks; ++peer)
      for (const Way way : {Way::kMain, Way::kUrgent}) {
        WireTo({peer, way}) = std::make_shared<Wire>();
        mesh.at({peer, way}).Offer(std::make_unique<WireStream>(WireTo({peer, way})));
      }
  }
  std::shared_ptr<Wire>& WireTo(WayTo to) { return peers_[to.peer].wires[static_cast<size_t>(to.way)]; }
  template <typename Do>
  void ForWires(Do act) {
    for (uint32_t peer = 1; peer < kRanks; ++peer)
      for (const Way way : {Way::kMain, Way::kUrgent}) act(WayTo(peer, way), *WireTo({peer, way}));
  }
  uint64_t Moved() {  // grows, or shrinks, with all that crosses the links
    uint64_t moved = 0;
    ForWires([&](WayTo, const Wire& wire) { moved += wire.taken + wire.out.size() + wire.closed; });
    return moved;
  }

  // Reads what rank 0 has said.
  void Look() {
    ForWires([&](WayTo from, Wire& wire) {
      if (wire.taken == wire.in.size()) wire.in = Buffer(), wire.taken = 0;
      wire.Take([&](const Header& header, const std::byte* payload) { OnFrame(from, header, payload); });
    });
    for (const Peer& peer : peers_) Require(peer.credited <= peer.eager);
  }

  void Act(Theirs action, uint32_t rank, uint32_t second) {
    mutates_ = (second & 0x80) != 0;
    // The call at hand, one before it or one of the next.
    const uint64_t lane = 1 + second % kLanes;
    const CallId id{lane, NextOf(lane) + second / 2 % 4 - 1};
    const Way urgent = (second & 0x40) == 0 && !one_host_ ? Way::kUrgent : Way::kMain;
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
      case kStopReading:
      case kReadOn:
        WireTo(rank)->reads = WireTo({rank, Way::kUrgent})->reads = action == kReadOn;
        WireTo(rank)->Ring();
        return WireTo({rank, Way::kUrgent})->Ring();
      case kComeLate:  // the next frame will
        late_ = 1 + input_.Byte() * 8;
        return;
      case kSayGoodbye:
        return Say(rank, HeaderOf(FrameType::kGoodbye, {}));
      case kHangUp:
        WireTo(rank)->closed = true;
        return WireTo(rank)->Ring();
      case kFloodLast:  // the world's
      case kTheirs:
        return;
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
      const bool eager = id.lane != kLastLane && id.call >= NextOf(id.lane);
      if (eager && step.length > kEagerMessage) continue;
      do {
        Say(rank, DataOf(rank, id, step.tag, step.length, eager));
      } while (said_.heard[{rank, id.lane, id.call, step.tag}].bytes.size() < step.length);
    }
  }

  // What a peer said last, and by which way; peer 0: nothing.
  std::pair<Header, WayTo> last(uint32_t rank) const { return {peers_[rank].last, peers_[rank].last_way}; }
  void Note(uint32_t peer, const Header& header, const Buffer& payload) {
    const bool point = (header.key & kPointLane) != 0;
    if (header.type == FrameType::kData && IsEager(header)) peers_[peer].eager += header.length;
    if (header.type != FrameType::kData && !(point && header.type == FrameType::kLaunch)) return;
    const uint32_t tag = point ? header.root % kPointLines : header.root;
    Message& message = said_.heard[{peer, header.key, header.round, tag}];
    if (!message.begun) message.tag = header.root;
    if (!message.begun) message.length = header.type == FrameType::kData ? MessageLength(header) : header.offset;
    message.begun = true;
    if (header.type != FrameType::kData || header.offset != message.bytes.size()) return;
    message.bytes.insert(message.bytes.end(), payload.begin(), payload.end());
  }

 private:
  struct Peer {
    std::array<std::shared_ptr<Wire>, kWays> wires;
    std::map<std::tuple<uint64_t, uint32_t>, uint32_t> numbers;  // of the point to point message, by lane and line
    uint64_t eager = 0, credited = 0;                            // bytes that it sent, and that it was given back
    uint64_t to_credit = 0;                                      // of rank 0's
    Header last;
    WayTo last_way;
  };

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
    Message& message =
        said_.sent[{from.peer, header.key, header.round, point ? header.root % kPointLines : header.root}];
    Require(header.offset == message.bytes.size() && (!message.begun || header.length > 0));
    Require(!message.begun || (message.length == MessageLength(header) && message.tag == header.root));
    message.begun = true;
    message.length = MessageLength(header);
    message.tag = header.root;
    Require(header.offset + header.length <= message.length);
    message.bytes.insert(message.bytes.end(), payload, payload + header.length);
    if (point) CheckPattern(header, payload);
  }

  static Header HeaderOf(FrameType type, const CallId& id) {
    Header header;
    header.type = type;
    header.key = id.lane;
    header.round = id.call;
    return header;
  }

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
    Wire& wire = *WireTo(by);
    header.view = kEpoch;
    header.member = kFirstMember + by.peer;
    const Buffer frame = FrameOf(header, payload);
    if (frame.empty()) return;
    peers_[by.peer].last = header;
    peers_[by.peer].last_way = by;
    Note(by.peer, header, payload);
    wire.Put(frame, std::exchange(late_, 0));
  }

  Header DataOf(uint32_t peer, const CallId& id, uint32_t tag, uint64_t length, bool eager) {
    Header header = HeaderOf(FrameType::kData, id);
    header.root = tag;
    const uint32_t name = (id.lane & kPointLane) != 0 ? tag % kPointLines : tag;
    const auto said = said_.heard.find({peer, id.lane, id.call, name});
    header.offset = said == said_.heard.end() ? 0 : said->second.bytes.size();
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
      const bool begun = id.call < NextOf(id.lane), wrong = (how & 0x80) != 0;
      const bool eager = begun == wrong;
      Header header = DataOf(rank, id, step.tag, step.length, eager);
      const auto said = said_.heard.find({rank, id.lane, id.call, step.tag});
      if (header.length == 0 && (step.length > 0 || (said != said_.heard.end() && said->second.begun))) continue;
      if (eager && !wrong && step.length > kEagerMessage) continue;
      if ((how & 0x40) != 0) header.length = std::min(header.length, 1 + how % 64 * 4);
      return Say(rank, header);
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
      WireTo(rank)->passed.push_back((how & 0x80) != 0 ? -1 : Page());
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
    auto said = said_.heard.find(name);
    if (said != said_.heard.end() && said->second.bytes.size() >= said->second.length)
      said = said_.heard.end(), ++number;
    const uint64_t length = said == said_.heard.end() ? kLengths[how / 4 % std::size(kLengths)] : said->second.length;
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

  uint32_t NextOf(uint64_t lane) const {
    const auto found = next_.find(lane);
    return found == next_.end() ? 0 : found->second;
  }

  Input& input_;
  const CallNumbers& next_;
  Said& said_;
  const bool one_host_;
  std::array<Peer, kRanks> peers_;
  std::set<MessageName> cleared_;
  size_t late_ = 0;
  bool mutates_ = false;
};

}  // namespace byteps_like::fuzzing
