#include "server/shard.h"

#include <algorithm>
#include <utility>

#include "csrc/base/thread.h"

namespace byteps_like {
namespace {

// How many bytes of our control frames a peer may leave unread: an answer for each of its partitions in flight, and
// some warnings.
constexpr size_t kMaxControl = 1u << 16;

constexpr auto kRunOut = std::chrono::seconds(5);  // until no timer or thread of what has ended is left

}  // namespace

Shard::Shard(Options options)
    : options_(std::move(options)),
      memory_("server shard " + std::to_string(options_.index), options_.memory_limit, stats_.memory) {}

Status Shard::Start() {
  if (!loop_.made().ok()) return loop_.made();
  auto thread = StartThread("for a shard", [this] { loop_.Run(); });
  if (thread.ok()) thread_ = std::move(*thread);
  return thread.status();
}

Shard::~Shard() { Stop(); }

void Shard::Stop() {
  if (!thread_.joinable()) return;
  loop_.Post([this] {
    Reset(ShardWorld{}, nullptr, Status(), nullptr);
    loop_.Stop();
  });
  thread_.join();
}

void Shard::SetWorld(const ShardWorld& world, EngineOptions relaying, const std::vector<ShardAddress>& owners) {
  std::shared_ptr<Relay> relay;
  Status connected;
  relaying.shard = options_.index;
  std::shared_ptr<ChainLinks> chain;
  ChainHandler& handler = *this;
  if (!world.chain.empty()) chain = std::make_shared<ChainLinks>(loop_, relaying, world.chain, handler);
  if (!owners.empty()) {
    RelaySink& self = *this;
    relay = std::make_shared<Relay>(loop_, std::move(relaying), owners, self);
    connected = relay->Connect();
  }
  stats_.to_hand_over = kNotCounted;
  loop_.Post([this, world, relay, connected, chain] { Reset(world, relay, connected, chain); });
}

void Shard::AddLink(std::unique_ptr<Stream> stream, const Admitted& who) {
  // std::function wants something it can copy.
  auto shared = std::make_shared<std::unique_ptr<Stream>>(std::move(stream));
  loop_.Post([this, shared, who] { Install(std::move(*shared), who); });
}

void Shard::Fail(uint32_t epoch, Code code, const std::string& text) {
  loop_.Post([this, epoch, code, text] {
    if (epoch == world_.epoch) FailOnLoop(code, text);
  });
}

void Shard::Reset(const ShardWorld& world, const std::shared_ptr<Relay>& relay, const Status& connected,
                  const std::shared_ptr<ChainLinks>& chain) {
  for (auto& peer : peers_) Drop(*peer, Status(Code::kClosed, "the epoch has ended"));
  EndRelay();
  EndChain();
  chain_ = chain;
  memory_.Refund((keys_.size() + adoptions_.size()) * KeyBytes());
  keys_.clear();
  std::vector<uint32_t> servers;
  const auto is_own = [&](const ShardAddress& one) {
    return one.server == world.server && one.shard == options_.index;
  };
  servers.reserve(world.chain.size());
  for (const ShardAddress& one : world.chain) servers.push_back(one.server);
  const auto own = std::ranges::find_if(world.chain, is_own) - world.chain.begin();
  store_.Reset({world.size(), world.epoch, std::move(servers), static_cast<uint32_t>(own)});
  adoptions_.Reset(world.size());
  given_up_.clear();
  memory_.Trim();
  codecs_.Reset(world.size());
  peers_.clear();
  world_ = world;
  failure_ = Status();
  left_ = 0;
  sealed_ = false;
  std::vector<uint32_t> numbers = world.workers;
  seats_ = world.own.rack.empty() ? Seats(world.size()) : Seats(world.size(), world.own.ranks);
  for (const Aggregator& one : world.aggregators)
    for (uint32_t shard = 0; shard < one.shards; ++shard) {
      seats_.AddAggregator(one.rack, one.ranks);
      numbers.push_back(one.member);
    }
  for (const uint32_t number : numbers) {
    const auto seat = static_cast<uint32_t>(peers_.size());
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->rank = seat;
    peers_.back()->number = number;
  }
  stats_.keys = stats_.open_rounds = stats_.copies = stats_.replicated = 0;
  relay_ = relay;
  if (!connected.ok()) return FailOnLoop(connected.code(), connected.message());
  if (relay_) relay_->Start();
}

// It stays until none of its timers can be left, and its connector has given up.
void Shard::EndRelay() {
  if (!relay_) return;
  relay_->Abort(Status(Code::kClosed, "the epoch has ended"));
  past_relays_.push_back(std::move(relay_));
  loop_.CallAt(Clock::now() + kRunOut, [this] { past_relays_.pop_front(); });
}

// The same of what may still dial.
void Shard::EndChain() {
  if (!chain_) return;
  chain_->End();
  past_chains_.push_back(std::move(chain_));
  loop_.CallAt(Clock::now() + kRunOut, [this] { past_chains_.pop_front(); });
}

void Shard::Install(std::unique_ptr<Stream> stream, const Admitted& who) {
  if (who.view == world_.epoch && chain_ && who.rank >= world_.size())
    return chain_->Install(who.rank - world_.size(), std::move(stream));
  if (who.view != world_.epoch || who.rank >= peers_.size() || sealed_) return stream->Shutdown();
  Peer& peer = *peers_[who.rank];
  if (who.number <= peer.link_number || peer.left) return stream->Shutdown();
  peer.link_number = who.number;
  Drop(peer, Status(Code::kClosed, "replaced by a new link of the same member"));
  stream->LimitQueue(options_.kernel_queue_bytes);
  stream->LimitSilence(SilenceLimit(world_.stall_warning, world_.stall_timeout));
  peer.link = MakeLink(loop_, std::move(stream), *this);
  peer.placed = 0;
  by_link_[peer.link.get()] = &peer;
  ++stats_.links;
  Attune();
  TellWhoIsGone(peer);
  peer.link->Start();
  if (peer.rank < world_.size()) adoptions_.OnBack(peer.rank);
  if (!failure_.ok()) SendText(peer, FrameType::kError, failure_.code(), failure_.message());
}

void Shard::Drop(Peer& peer, const Status& why) {
  peer.control.clear();
  peer.control_under_way = 0;
  peer.results = {};
  peer.codecs.clear();
  peer.regions.clear();
  if (!seats_.is_aggregator(peer.rank)) store_.OnLinkGone(peer.rank);
  ++peer.connection;
  if (!peer.link) return;
  if (peer.landing != nullptr) std::exchange(peer.landing, nullptr)->Abandon(*peer.link);
  by_link_.erase(peer.link.get());
  --stats_.links;
  peer.link->Close(why);
  closing_.push_back(std::move(peer.link));
  Attune();
}

// To workers of other hosts a wake-up doesn't matter.
void Shard::Attune() {
  const auto here = std::ranges::count_if(by_link_, [](const auto& one) { return one.first->shares_memory(); });
  const size_t above = relay_ ? relay_->links_here() : 0;
  if (static_cast<size_t>(here) + above > 0) return loop_.ShareCores(static_cast<size_t>(here) + above + 1);
  loop_.SetPatience(Clock::duration(0), false);
}

Shard::Peer* Shard::PeerOf(const Link& link) {
  const auto found = by_link_.find(&link);
  return found == by_link_.end() ? nullptr : found->second;
}

void Shard::OnClosed(Link& link, const Status&) {
  // The rank may come back with a new link and resume; whether it is dead is for the scheduler to say.
  if (Peer* peer = PeerOf(link)) Drop(*peer, Status());
  std::erase_if(closing_, [&link](const auto& closing) { return closing.get() == &link; });
}

void Shard::FailOnLoop(Code code, const std::string& text) {
  if (!failure_.ok()) return;
  failure_ = Failure(Status(code, text));
  for (auto& peer : peers_)
    if (peer->link) SendText(*peer, FrameType::kError, failure_.code(), failure_.message());
  if (relay_) relay_->Abort(failure_);
  options_.on_event(world_.epoch, failure_.code(), failure_.message(), true);
}

void Shard::Blame(const Peer& peer, const std::string& what) {
  FailOnLoop(Code::kCorrupt, seats_.Name(peer.rank) + " broke the protocol: " + what);
}

void Shard::FailRound(const Key& key, const Round& round, const Status& why) {
  FailOnLoop(why.code(), KeyText(key.key) + ", round " + std::to_string(round.number()) + ": " + why.message());
}

void Shard::SendText(Peer& peer, FrameType type, Code code, const std::string& text) {
  Header header;
  header.type = type;
  header.view = world_.epoch;
  header.member = peer.number;
  header.aux = static_cast<uint32_t>(code);
  header.length = static_cast<uint32_t>(std::min<size_t>(text.size(), kMaxText));
  header.total = header.length;
  peer.control.emplace_back(header, text);
  peer.link->Kick();
}

bool Shard::NextFrame(Link& link, Outgoing& next) {
  Peer* const peer = PeerOf(link);
  if (peer == nullptr) return false;
  if (peer->control_under_way < peer->control.size()) {
    const auto& [header, text] = peer->control[peer->control_under_way++];
    next.header = header;
    next.payload = reinterpret_cast<const std::byte*>(text.data());
    return true;
  }
  return failure_.ok() && (NextStoreValue(*peer, next) || NextResult(*peer, next));
}

void Shard::OnSent(Link& link, const Header& header) {
  ++stats_.frames_sent;
  stats_.payload_sent += header.length;
  Peer* const peer = PeerOf(link);
  if (peer == nullptr) return;
  if (header.type == FrameType::kValue || (header.type == FrameType::kResult && store_.Holds(header.key)))
    return store_.OnValueSent(peer->rank);
  if (header.type == FrameType::kResult) return OnResultSent(*peer, header);
  peer->control.pop_front();
  --peer->control_under_way;
}

std::byte* Shard::PlaceFor(Link& link, const Header& said) {
  Peer* const peer = PeerOf(link);
  if (peer == nullptr) return nullptr;
  const bool contributes = said.type == FrameType::kPush || said.type == FrameType::kRows;
  if (contributes && said.member == peer->number && said.view == world_.epoch && failure_.ok()) {
    const Header header = peer->Ranked(said);
    if (store_.Holds(header.key)) {
      if (IsOutOfPlace(*peer, FrameType::kRows)) return kAnywhere;
      std::byte* const place = store_.PlaceFor(peer->rank, header);
      return place == nullptr ? kAnywhere : place;
    }
    if (said.type != FrameType::kPush) return kAnywhere;
    Key* key = nullptr;
    Round* const round = RoundFor(*peer, header, &key);
    std::byte* const place = round == nullptr ? nullptr : round->Place(link, header);
    if (place != nullptr) {
      peer->landing = round;
      return place;
    }
  }
  return kAnywhere;
}

void Shard::OnFrame(Link& link, const Header& said, std::byte* payload) {
  ++stats_.frames_received;
  stats_.payload_received += said.length;
  Peer* const peer = PeerOf(link);
  if (peer == nullptr) return;
  peer->landing = nullptr;
  if (said.view != world_.epoch || !failure_.ok()) return;
  if (said.member != peer->number) return Blame(*peer, "a frame has the number of another member than its link");
  const Header header = peer->Ranked(said);
  const uint64_t placed = link.counters().payload_placed;
  stats_.payload_placed += placed - std::exchange(peer->placed, placed);
  if (peer->control.size() > kMaxControl) return Blame(*peer, "it requests more answers than it reads");
  if (IsOutOfPlace(*peer, header.type))
    return Blame(*peer, "what it sent belongs on a link between a worker and the server that owns the key");
  if (OnStoreFrame(*peer, header, payload) || OnAdoptionFrame(*peer, header, payload)) return;
  const std::string_view text(reinterpret_cast<const char*>(payload), header.length);
  switch (header.type) {
    case FrameType::kPush:
      return OnPush(*peer, header, payload);
    case FrameType::kResume:
      return OnResume(*peer, header);
    case FrameType::kRegion:
      return OnRegion(*peer, header);
    case FrameType::kCodec:
      return OnCodec(*peer, header, text);
    case FrameType::kForget:
      return OnForget(*peer, header);
    case FrameType::kOwner:
      return OnOwner(*peer, header);
    case FrameType::kError:
      return FailOnLoop(CodeFrom(header.aux), std::string(text));
    case FrameType::kGoodbye:
      return Depart(*peer, Status(Code::kClosed, "the worker left"));
    default:
      return Blame(*peer, "it sent a frame that only servers send");
  }
}

}  // namespace byteps_like
