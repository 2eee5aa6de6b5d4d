// An exchange between ranks of one process, without links: what happens next (a segment of which message leaves, which
// link delivers, how the segment is cut, whether it is stashed first) is drawn from a seed. Any run of a program must
// give the same bits under any seed.
//
// With odd seeds its links take offers, and use them as badly as they may: what is offered is scribbled over at once,
// what is sent lies there before anybody hears of it, and until a call that has failed is told so it is scribbled over
// again.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/exchange/exchange.h"

namespace byteps_like::testing {

struct FakeFrame {
  CallId id;
  uint32_t tag = 0;
  uint64_t offset = 0;
  std::vector<std::byte> bytes;
  Status abort;                  // not ok: the call has failed
  std::byte* written = nullptr;  // where it lies already
};

class FakeNet;

class FakeExchange final : public Exchange {
 public:
  FakeExchange(FakeNet& net, uint32_t rank) : net_(net), rank_(rank) {}
  uint32_t rank() const override { return rank_; }
  EventLoop& loop() override;
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
  void Probe(Call&) override {}

 private:
  friend class FakeNet;
  using Key = std::pair<uint64_t, uint32_t>;
  struct Inbound {
    ReceiveMessage* message = nullptr;
    std::byte* offered = nullptr;
    std::deque<FakeFrame> stash;
  };
  struct Entry {
    Call* call = nullptr;
    Status failed;
    std::vector<SendMessage*> sends;
    std::map<Key, Inbound> inbound;  // by peer and tag
  };
  static Key KeyOf(const CallId& id) { return {id.lane, id.call}; }
  void Arrive(uint32_t from, FakeFrame frame);
  void Fail(const CallId& id, const Status& why);
  bool Withdraw(Entry& entry, const Status& why);
  void Unstash(const CallId& id, uint32_t from, uint32_t tag);

  FakeNet& net_;
  const uint32_t rank_;
  std::map<Key, Entry> calls_;
};

class FakeNet final : private EventLoop::Deferred {
 public:
  FakeNet(EventLoop& loop, uint32_t ranks, uint32_t seed)
      : loop_(loop), offers_(seed % 2 == 1), random_(seed), wires_(ranks * ranks) {
    for (uint32_t rank = 0; rank < ranks; ++rank) exchanges_.push_back(std::make_unique<FakeExchange>(*this, rank));
  }
  ~FakeNet() { loop_.Forget(*this); }

  FakeExchange& at(uint32_t rank) { return *exchanges_[rank]; }
  void Lose(uint32_t rank);  // it is gone: every call with it fails
  uint64_t bytes(uint32_t from, uint32_t to) const { return wires_[from * size() + to].sent_bytes; }
  uint64_t messages(uint32_t from, uint32_t to) const { return wires_[from * size() + to].sent_messages; }
  uint32_t size() const { return static_cast<uint32_t>(exchanges_.size()); }
  // Called before each event with their count: to cancel or lose somebody in the middle.
  std::function<void(uint64_t)> on_event;

 private:
  friend class FakeExchange;
  struct Wire {
    std::deque<FakeFrame> frames;
    bool coming = false;         // the first frame has begun to come
    std::byte* place = nullptr;  // for it; nullptr: to the stash
    std::vector<std::byte> scratch;
    uint64_t sent_bytes = 0, sent_messages = 0;
  };

  struct Over {  // a call that has failed here, and into whose memory others may still write
    Call* call;
    Status why;
    std::vector<std::pair<std::byte*, uint64_t>> places;
  };

  void Wake() { loop_.Defer(*this); }
  void Settle(size_t which);
  static void Scribble(std::byte* place, uint64_t bytes) { std::memset(place, 0xEE, bytes); }
  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  void RunDeferred() override;
  void SendPiece(FakeExchange& from, FakeExchange::Entry& entry, SendMessage& message);
  void Deliver(uint32_t from, uint32_t to);

  EventLoop& loop_;
  const bool offers_;
  std::vector<Over> over_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<FakeExchange>> exchanges_;
  std::vector<Wire> wires_;
  std::set<uint32_t> lost_;
  uint64_t events_ = 0;
};

inline EventLoop& FakeExchange::loop() { return net_.loop_; }

inline Status FakeExchange::Begin(Call& call) {
  for (const uint32_t rank : call.ranks) {
    if (net_.lost_.count(rank)) return Status(Code::kPeerLost, "rank " + std::to_string(rank) + " is lost");
    const auto found = net_.exchanges_[rank]->calls_.find(KeyOf(call.id));
    if (found == net_.exchanges_[rank]->calls_.end() || found->second.call == nullptr) continue;
    if (found->second.call->description == call.description) continue;
    const Status why(Code::kMismatch, found->second.call->description + " meets " + call.description);
    Entry& entry = calls_[KeyOf(call.id)];
    entry.call = &call;
    Abort(call, why);
    return why;
  }
  Entry& entry = calls_[KeyOf(call.id)];
  if (!entry.failed.ok()) return entry.failed;
  entry.call = &call;
  return Status();
}

inline void FakeExchange::Post(Call& call, SendMessage& message) {
  calls_.at(KeyOf(call.id)).sends.push_back(&message);
  net_.Wake();
}

inline void FakeExchange::Post(Call& call, ReceiveMessage& message) {
  calls_.at(KeyOf(call.id)).inbound[{message.peer, message.tag}].message = &message;
  Unstash(call.id, message.peer, message.tag);
}

inline void FakeExchange::Advance(SendMessage&) { net_.Wake(); }

inline void FakeExchange::Retry(ReceiveMessage& message) {
  for (auto& [key, entry] : calls_) {
    for (auto& [from, inbound] : entry.inbound) {
      if (inbound.message == &message) return Unstash({key.first, key.second}, from.first, from.second);
    }
  }
}

inline void FakeExchange::End(Call& call) { calls_.erase(KeyOf(call.id)); }

inline bool FakeExchange::TakesOffers(uint32_t, uint64_t length) { return net_.offers_ && length > 0; }

inline void FakeExchange::Offer(ReceiveMessage& message, std::byte* place) {
  for (auto& [key, entry] : calls_) {
    for (auto& [from, inbound] : entry.inbound) {
      if (inbound.message != &message || message.received == message.length) continue;
      inbound.offered = place;
      FakeNet::Scribble(place + message.received, message.length - message.received);
    }
  }
}

// True: nobody writes into its memory.
inline bool FakeExchange::Withdraw(Entry& entry, const Status& why) {
  FakeNet::Over over{entry.call, why, {}};
  for (auto& [from, inbound] : entry.inbound) {
    if (inbound.offered == nullptr || inbound.message->received == inbound.message->length) continue;
    over.places.emplace_back(inbound.offered + inbound.message->received,
                             inbound.message->length - inbound.message->received);
  }
  if (over.places.empty()) return true;
  net_.over_.push_back(std::move(over));
  net_.Wake();
  return false;
}

inline void FakeNet::Settle(size_t which) {
  const Over over = std::move(over_[which]);
  over_.erase(over_.begin() + static_cast<std::ptrdiff_t>(which));
  for (const auto& [place, bytes] : over.places) Scribble(place, bytes);
  over.call->OnFailed(over.why);
}

inline void FakeExchange::Sever(Call& call) {
  std::erase_if(net_.over_, [&](const FakeNet::Over& over) { return over.call == &call; });
}

inline bool FakeExchange::Abort(Call& call, const Status& why) {
  for (const FakeNet::Over& over : net_.over_) {
    if (over.call == &call) return false;
  }
  const auto found = calls_.find(KeyOf(call.id));
  const bool over = found == calls_.end() || Withdraw(found->second, why);
  for (const uint32_t rank : call.ranks) {
    if (rank == rank_) continue;
    FakeFrame frame;
    frame.id = call.id;
    frame.abort = why;
    net_.wires_[rank_ * net_.size() + rank].frames.push_back(std::move(frame));
  }
  calls_.erase(KeyOf(call.id));
  net_.Wake();
  return over;
}

inline std::string FakeExchange::Silent(const Call& call) {
  std::string text;
  for (const uint32_t rank : call.ranks) {
    const auto& calls = net_.exchanges_[rank]->calls_;
    const auto found = calls.find(KeyOf(call.id));
    if (found != calls.end() && found->second.call != nullptr) continue;
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank) + " has not begun this call";
  }
  return text;
}

inline void FakeExchange::Fail(const CallId& id, const Status& why) {
  Entry& entry = calls_[KeyOf(id)];
  Call* call = entry.call;
  const bool over = call == nullptr || Withdraw(entry, why);
  entry = Entry();
  entry.failed = why;
  if (call != nullptr && over) call->OnFailed(why);
}

inline void FakeExchange::Arrive(uint32_t from, FakeFrame frame) {
  if (!frame.abort.ok()) return Fail(frame.id, frame.abort);
  Entry& entry = calls_[KeyOf(frame.id)];
  if (!entry.failed.ok()) return;
  const CallId id = frame.id;
  const uint32_t tag = frame.tag;
  entry.inbound[{from, tag}].stash.push_back(std::move(frame));
  Unstash(id, from, tag);
}

inline void FakeExchange::Unstash(const CallId& id, uint32_t from, uint32_t tag) {
  for (;;) {
    const auto entry = calls_.find(KeyOf(id));
    if (entry == calls_.end()) return;
    Call* const call = entry->second.call;
    const auto found = entry->second.inbound.find({from, tag});
    if (call == nullptr || found == entry->second.inbound.end()) return;
    Inbound& inbound = found->second;
    if (inbound.message == nullptr || inbound.stash.empty()) return;
    FakeFrame frame = std::move(inbound.stash.front());
    inbound.stash.pop_front();
    const auto length = static_cast<uint32_t>(frame.bytes.size());
    std::byte* place = nullptr;
    if (length > 0 && (place = call->PlaceFor(*inbound.message, frame.offset, length)) == nullptr) {
      inbound.stash.push_front(std::move(frame));
      return;
    }
    const std::byte* bytes = frame.bytes.data();
    if (frame.written != nullptr && frame.written == place) bytes = place;
    const bool moves = length > 0 && place != kAnywhere && bytes != place && net_.Draw(2) == 0;
    if (moves) bytes = static_cast<std::byte*>(std::memcpy(place, bytes, length));
    inbound.message->received = frame.offset + length;
    call->OnBytes(*inbound.message, frame.offset, bytes, length);
  }
}

inline void FakeNet::Lose(uint32_t rank) {
  lost_.insert(rank);
  for (uint32_t other = 0; other < size(); ++other) {
    wires_[rank * size() + other] = wires_[other * size() + rank] = Wire();
    if (other == rank) continue;
    std::vector<CallId> hit;
    for (auto& [key, entry] : at(other).calls_) {
      if (entry.call == nullptr) continue;
      const auto& ranks = entry.call->ranks;
      if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) hit.push_back({key.first, key.second});
    }
    for (const CallId& id : hit) {
      at(other).Fail(id, Status(Code::kPeerLost, "rank " + std::to_string(rank) + " is lost"));
    }
  }
}

inline void FakeNet::RunDeferred() {
  if (on_event) on_event(events_);
  ++events_;
  struct Choice {
    FakeExchange* exchange;
    FakeExchange::Entry* entry;
    SendMessage* message;
    uint32_t from, to;
  };
  std::vector<Choice> choices;
  for (auto& exchange : exchanges_) {
    if (lost_.count(exchange->rank_)) continue;
    for (auto& [key, entry] : exchange->calls_) {
      for (SendMessage* message : entry.sends) {
        if (message->ready > message->sent || message->length == 0) {
          choices.push_back({exchange.get(), &entry, message, 0, 0});
        }
      }
    }
  }
  for (uint32_t wire = 0; wire < wires_.size(); ++wire) {
    if (!wires_[wire].frames.empty()) choices.push_back({nullptr, nullptr, nullptr, wire / size(), wire % size()});
  }
  if (choices.empty() && over_.empty()) return;
  const uint32_t drawn = Draw(static_cast<uint32_t>(choices.size() + over_.size()));
  if (drawn >= choices.size()) return Wake(), Settle(drawn - choices.size());
  const Choice choice = choices[drawn];
  Wake();
  if (choice.message == nullptr) return Deliver(choice.from, choice.to);
  SendPiece(*choice.exchange, *choice.entry, *choice.message);
}

inline void FakeNet::SendPiece(FakeExchange& from, FakeExchange::Entry& entry, SendMessage& message) {
  uint64_t length = std::min<uint64_t>(message.ready - message.sent, message.segment_bytes);
  if (length > 16 && Draw(2) == 0) length = 16 * (1 + Draw(static_cast<uint32_t>(length / 16)));
  Wire& wire = wires_[from.rank_ * size() + message.peer];
  wire.sent_bytes += length;
  wire.sent_messages += message.sent == 0 ? 1 : 0;
  wire.frames.push_back({entry.call->id, message.tag, message.sent,
                         std::vector<std::byte>(message.data + message.sent, message.data + message.sent + length),
                         Status()});
  const auto entry_there = at(message.peer).calls_.find(FakeExchange::KeyOf(entry.call->id));
  if (entry_there != at(message.peer).calls_.end()) {
    std::byte* const offered = entry_there->second.inbound[{from.rank_, message.tag}].offered;
    if (offered != nullptr) wire.frames.back().written = offered + message.sent;
    if (offered != nullptr) std::memcpy(offered + message.sent, message.data + message.sent, length);
  }
  message.sent += length;
  if (message.sent == message.length) std::erase(entry.sends, &message);
  entry.call->OnSent(message);
}

// In two events, the place being asked for at the first: other links deliver meanwhile.
inline void FakeNet::Deliver(uint32_t from, uint32_t to) {
  Wire& wire = wires_[from * size() + to];
  FakeFrame& frame = wire.frames.front();
  FakeExchange& exchange = at(to);
  const auto length = static_cast<uint32_t>(frame.bytes.size());
  const auto entry = exchange.calls_.find(FakeExchange::KeyOf(frame.id));
  const bool begun = entry != exchange.calls_.end() && entry->second.call != nullptr;
  FakeExchange::Inbound* inbound = begun ? &entry->second.inbound[{from, frame.tag}] : nullptr;
  const bool direct = begun && inbound->message != nullptr && inbound->stash.empty() && length > 0;
  if (!wire.coming && direct) {
    wire.coming = true;
    wire.place = entry->second.call->PlaceFor(*inbound->message, frame.offset, length);
    return;
  }
  wire.coming = false;
  FakeFrame taken = std::move(frame);
  wire.frames.pop_front();
  std::byte* place = std::exchange(wire.place, nullptr);
  if (place == nullptr || !direct) return exchange.Arrive(from, std::move(taken));
  if (place == kAnywhere) {
    wire.scratch.resize(length);
    place = wire.scratch.data();
  }
  if (place != taken.written) std::memcpy(place, taken.bytes.data(), length);
  inbound->message->received = taken.offset + length;
  entry->second.call->OnBytes(*inbound->message, taken.offset, place, length);
}

}  // namespace byteps_like::testing
