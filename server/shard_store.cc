// What a shard does for its store keys.
#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>

#include "server/shard.h"

namespace byteps_like {
namespace {

constexpr uint64_t kHandOverBytes = 64 << 20;

}  // namespace

void Shard::Answer(uint32_t rank, Header header, std::string payload) {
  Peer& peer = *peers_[rank];
  if (peer.link == nullptr) return;
  header.view = world_.epoch;
  header.member = peer.number;
  header.length = static_cast<uint32_t>(payload.size());
  peer.control.emplace_back(header, std::move(payload));
  peer.link->Kick();
}

void Shard::OnValues(uint32_t rank) {
  if (peers_[rank]->link != nullptr) peers_[rank]->link->Kick();
}

void Shard::Refuse(uint32_t rank, const std::string& what) { Blame(*peers_[rank], what); }

void Shard::FailStore(const Status& why) { FailOnLoop(why.code(), why.message()); }

double Shard::Now() const { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

void Shard::CallStoreAt(double time) {
  if (store_call_ && *store_call_ <= time) return;
  store_call_ = time;
  const auto since_epoch = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time));
  loop_.CallAt(Deadline(since_epoch), [this] {
    store_call_.reset();
    if (failure_.ok()) store_.PassTime();
  });
}

void Shard::Record(TraceRecord record) {
  record.member = kTraceServers + world_.server;
  Trace(record);
}

// Copies

void Shard::GoOnWithout(uint32_t epoch, uint32_t server) {
  loop_.Post([this, epoch, server] {
    if (epoch != world_.epoch || !chain_ || !failure_.ok()) return;
    store_.OnServerGone(server);
    CountCopies();
  });
}

void Shard::HandOver(uint32_t epoch, bool sealed) {
  stats_.to_hand_over = kNotCounted;
  loop_.Post([this, epoch, sealed] {
    if (epoch != world_.epoch || !chain_ || !failure_.ok()) return;
    Seal(sealed);
    stats_.to_hand_over = store_.HandOver(kHandOverBytes);
    CountCopies();
  });
}

// Who is kept out goes on over another link, here or at another server.
void Shard::Seal(bool on) {
  if (std::exchange(sealed_, on) == on || !on) return;
  for (auto& peer : peers_) Drop(*peer, Status(Code::kClosed, "this server is about to leave"));
}

void Shard::CountCopies() {
  stats_.copies.store(store_.copies().kept(), std::memory_order_relaxed);
  stats_.replicated.store(store_.copies().replicated(), std::memory_order_relaxed);
}

bool Shard::NextForShard(uint32_t shard, Outgoing& next, std::shared_ptr<const void>& keep) {
  if (!failure_.ok() || !store_.NextForShard(shard, next, keep)) return false;
  if (next.header.type == FrameType::kCopy) stats_.copied += next.header.length;
  return true;
}

void Shard::OnNewWay(uint32_t shard) {
  store_.copies().OnNewWay(shard);
  store_.asks().OnNewWay(shard);
}

void Shard::OnAnswer(uint32_t shard, const Header& header, std::span<const std::byte> payload) {
  if (!failure_.ok()) return;
  stats_.moved += payload.size();
  store_.asks().OnAnswer(shard, header, payload);
}

void Shard::OnCopied(uint32_t shard, const Header& header) {
  if (!failure_.ok()) return;
  store_.copies().OnCopied(shard, header);
  CountCopies();
}

std::byte* Shard::PlaceForCopy(uint32_t shard, const Header& header) {
  return failure_.ok() ? store_.copies().PlaceFor(shard, header) : nullptr;
}

void Shard::OnCopy(uint32_t shard, const Header& header, const std::byte* payload) {
  if (!failure_.ok()) return;
  store_.copies().OnCopy(shard, header, payload);
  CountCopies();
}

// Whether the frame was for a store key.
bool Shard::OnStoreFrame(Peer& peer, const Header& header, const std::byte* payload) {
  if (header.type == FrameType::kSpec) {
    const std::string_view text(reinterpret_cast<const char*>(payload), header.length);
    store_.OnSpec(peer.rank, header, text);
    if (chain_) CountCopies();
    ArmStallCheck();
    return true;
  }
  if (header.type == FrameType::kCall) {
    store_.OnCall(peer.rank, header, payload);
    ArmStallCheck();
    return true;
  }
  if (header.type == FrameType::kCut || header.type == FrameType::kState) {
    store_.OnSaving(peer.rank, header, payload);
    ArmStallCheck();
    return true;
  }
  if (!store_.Holds(header.key)) return false;
  switch (header.type) {
    case FrameType::kPush:
      store_.OnPush(peer.rank, header, payload);
      break;
    case FrameType::kKeys:
      store_.OnKeys(peer.rank, header, payload);
      break;
    case FrameType::kRows:
      store_.OnRows(peer.rank, header, payload);
      break;
    case FrameType::kClock:
      store_.OnClock(peer.rank, header, payload);
      break;
    case FrameType::kPull:
      store_.OnPull(peer.rank, header);
      break;
    case FrameType::kFetch:
      store_.OnFetch(peer.rank, header, payload);
      break;
    case FrameType::kResume:
      store_.OnResume(peer.rank, header);
      break;
    case FrameType::kForget:
      store_.OnForget(peer.rank, header);
      break;
    default:
      return false;
  }
  ArmStallCheck();
  return true;
}

// Rounds go first among equals: all ranks wait for them. Aggregators have nothing to do with stores.
bool Shard::NextStoreValue(Peer& peer, Outgoing& next) {
  if (store_.empty() || seats_.is_aggregator(peer.rank)) return false;
  const auto priority = store_.NextPriority(peer.rank);
  if (!priority || (!peer.results.empty() && peer.results.top().priority >= *priority)) return false;
  store_.NextValue(peer.rank, options_.segment_bytes, next);
  next.header.view = world_.epoch;
  next.header.member = peer.number;
  return true;
}

void Shard::CheckStoreStalls() {
  bool news = false;
  for (const StoreWait& wait : store_.Waits()) {
    const double seconds = Now() - wait.since;
    if (seconds < world_.stall_warning && seconds < world_.stall_timeout) continue;
    char shown[32];
    std::snprintf(shown, sizeof shown, ", for %.1f s", seconds);
    if (seconds >= world_.stall_timeout) return FailOnLoop(Code::kStalled, wait.text + shown);
    if (WarnOfWait(*peers_[wait.rank], wait.text + shown) && !std::exchange(news, true))
      options_.on_event(world_.epoch, Code::kStalled, wait.text + shown, false);
  }
}

// Every so often, so that a waiting rank knows that this server is alive. False: it has been told, or reads nothing.
bool Shard::WarnOfWait(Peer& peer, const std::string& text) {
  if (Now() - peer.wait_told < world_.stall_warning || peer.link == nullptr || !peer.control.empty()) return false;
  peer.wait_told = Now();
  SendText(peer, FrameType::kWarning, Code::kStalled, text);
  return true;
}

}  // namespace byteps_like
