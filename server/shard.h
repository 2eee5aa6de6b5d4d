// One server thread: its event loop, its links (one per worker), its keys. Shared-nothing: no lock is taken on the data
// path, a key lives on one shard.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "csrc/base/thread.h"
#include "csrc/base/trace.h"
#include "csrc/transport/entrance/admission.h"
#include "csrc/transport/links/link.h"
#include "csrc/transport/loop/event_loop.h"
#include "csrc/transport/memory/shared_buffer.h"
#include "server/adopting/adoptions.h"
#include "server/codecs.h"
#include "server/memory.h"
#include "server/policy/policies.h"
#include "server/relay/relay.h"
#include "server/rounds/round.h"
#include "server/store/chain/chain_links.h"
#include "server/store/shard/shard_store.h"

namespace byteps_like {

// A server that sums for a rack: this one, or one that passes its sums on to this one.
struct Aggregator {
  std::string rack;             // "": none
  std::vector<uint32_t> ranks;  // of the rack, ascending
  uint32_t member = 0;          // its member number
  uint32_t shards = 0;
};

// The world of one epoch as a shard sees it. Times in seconds.
struct ShardWorld {
  uint32_t epoch = 0;
  std::vector<uint32_t> workers;  // member numbers, by rank
  double stall_warning = 5;
  double stall_timeout = 120;
  uint32_t server = 0;  // this server's rank,
  uint32_t member = 0;  // and its member number
  Incarnation incarnation{};
  Aggregator own{};                       // if this server is one
  std::vector<Aggregator> aggregators{};  // else, those of other servers
  // All shards of all servers, as workers number them, where what they keep goes on in the next world, and may have
  // copies in this one. Not with aggregators.
  std::vector<ShardAddress> chain{};
  bool elastic = false;  // sums are finished without workers that are gone, and by other servers if one dies. Not with
                         // aggregators
  uint32_t size() const { return static_cast<uint32_t>(workers.size()); }
};

// A shard noticed something in this epoch that the whole job must hear of. Called on the shard's thread; must not
// block.
using ShardEvent = std::function<void(uint32_t epoch, Code code, const std::string& text, bool fatal)>;

inline constexpr uint64_t kNotCounted = UINT64_MAX;

struct ShardStats {  // written by the shard, read from any thread
  std::atomic<uint64_t> memory{0}, keys{0}, rounds{0}, open_rounds{0}, links{0};
  std::atomic<uint64_t> frames_received{0}, frames_sent{0}, payload_received{0}, payload_sent{0};
  std::atomic<uint64_t> payload_placed{0};  // of payload_received: written by the workers where it is summed
  std::atomic<uint64_t> referenced{0};      // bytes summed in shared memory, that no link carried
  std::atomic<uint64_t> repeated{0};        // payload that came again after a broken link and was not counted twice
  std::atomic<uint64_t> encoded{0};         // bytes of encoded contributions that were summed, each once
  std::atomic<uint64_t> relayed_up{0}, relayed_down{0};  // payload of an aggregator's sums, and of their results
  std::atomic<uint64_t> replicated{0};                   // store keys of which another server has a copy
  std::atomic<uint64_t> copies{0};                       // of store keys of other servers' shards
  std::atomic<uint64_t> copied{0};                       // payload that went to copies elsewhere
  std::atomic<uint64_t> moved{0};                        // bytes of values that other shards kept in the world before
  std::atomic<uint64_t> to_hand_over{kNotCounted};       // what nobody else has of a server that is to leave
};

// The most memory that a key takes beside its sums: in itself, and for each rank in its two rounds.
inline constexpr size_t kKeyBytes = 1024;
inline constexpr size_t kKeyBytesPerRank = 2 * (sizeof(Contribution) + sizeof(ShardBuffer));

class Shard : private LinkHandler, private StoreHost, private RelaySink, private AdoptionHost, private ChainHandler {
 public:
  struct Options {
    uint32_t index = 0;
    uint64_t memory_limit = 0;  // bytes of accumulators, payloads, results and feedback, 0: unlimited
    size_t segment_bytes = kDefaultSegment;
    uint32_t kernel_queue_bytes = kDefaultKernelQueue;
    ShardEvent on_event;
    std::span<const PolicyRow> policies = Policies();
  };
  explicit Shard(Options options);
  Status Start();  // once, before anything else
  ~Shard() override;

  // Any thread.
  void SetWorld(const ShardWorld& world) { SetWorld(world, {}, {}); }  // forgets keys and links of the epoch before
  // The same of an aggregator, whose sums go on to `owners`. Blocks while it connects to them, and not on the loop: a
  // failure ends the epoch.
  void SetWorld(const ShardWorld& world, EngineOptions relaying, const std::vector<ShardAddress>& owners);
  // Replaces an older link of the same member: one that was let in late does not replace its successor.
  void AddLink(std::unique_ptr<Stream> stream, const Admitted& who);
  void Stop();  // closes all links, joins the thread; later calls do nothing
  void Fail(uint32_t epoch, Code code, const std::string& text);  // tells every worker; later frames are dropped
  void LeaveOut(uint32_t epoch, uint32_t rank);       // a worker of this epoch has died, and the others go on
  void GoOnWithout(uint32_t epoch, uint32_t server);  // the same of another server
  // Its server is to leave: see ShardStore::HandOver. `sealed`: nothing more comes from workers until it is called
  // without that. stats().to_hand_over is known some time later.
  void HandOver(uint32_t epoch, bool sealed);
  const ShardStats& stats() const { return stats_; }
  const StoreFigures& figures() const { return store_.figures(); }

 private:
  struct Sendable;
  struct Key;
  struct Peer;

  std::byte* PlaceFor(Link& link, const Header& said) override;
  void OnFrame(Link& link, const Header& said, std::byte* payload) override;
  bool NextFrame(Link& link, Outgoing& next) override;
  void OnSent(Link& link, const Header& header) override;
  void OnClosed(Link& link, const Status& why) override;

  // shard.cc: links and world
  Peer* PeerOf(const Link& link);
  void Install(std::unique_ptr<Stream> stream, const Admitted& who);
  void Drop(Peer& peer, const Status& why);
  void Attune();  // the loop's patience to the workers of this host
  void Reset(const ShardWorld& world, const std::shared_ptr<Relay>& relay, const Status& connected,
             const std::shared_ptr<ChainLinks>& chain);
  void EndRelay();
  void EndChain();
  void FailOnLoop(Code code, const std::string& text);
  void Blame(const Peer& peer, const std::string& what);  // it has broken the protocol: again and again, if let
  void FailRound(const Key& key, const Round& round, const Status& why);
  void SendText(Peer& peer, FrameType type, Code code, const std::string& text);
  size_t KeyBytes() const { return kKeyBytes + seats_.size() * kKeyBytesPerRank; }

  // shard_store.cc: store keys
  void Answer(uint32_t rank, Header header, std::string payload) override;
  void OnValues(uint32_t rank) override;
  void Refuse(uint32_t rank, const std::string& what) override;
  void FailStore(const Status& why) override;
  double Now() const override;
  void CallStoreAt(double time) override;
  void Record(TraceRecord record) override;
  void KickWayTo(uint32_t shard) override { chain_->Kick(shard); }
  void ConfirmCopy(uint32_t shard, Header copied) override { chain_->Confirm(shard, copied); }
  void EndWaysTo(uint32_t server) override { chain_->Lose(server); }
  void CountCopies();
  void Seal(bool on);
  bool NextForShard(uint32_t shard, Outgoing& next, std::shared_ptr<const void>& keep) override;
  void OnNewWay(uint32_t shard) override;
  void OnCopied(uint32_t shard, const Header& header) override;
  std::byte* PlaceForCopy(uint32_t shard, const Header& header) override;
  void OnCopy(uint32_t shard, const Header& header, const std::byte* payload) override;
  Result<std::string> OnQuestion(std::span<const std::byte> asked) override { return store_.AnswerShard(asked); }
  void OnAnswer(uint32_t shard, const Header& header, std::span<const std::byte> payload) override;
  void OnChainFailed(const Status& why) override { FailOnLoop(why.code(), why.message()); }
  bool OnStoreFrame(Peer& peer, const Header& header, const std::byte* payload);
  bool NextStoreValue(Peer& peer, Outgoing& next);
  void CheckStoreStalls();
  bool WarnOfWait(Peer& peer, const std::string& text);

  // shard_push.cc: contributions in
  const ServerCodec* CodecOf(const Peer& peer, const Header& header) const;
  bool MakesSense(const Peer& peer, const Header& header);
  Round* RoundFor(Peer& peer, const Header& header, Key** key);
  Key* FindOrMake(const Header& header, const Terms& terms);
  const PolicyRow* PolicyOf(const Header& header, const Terms& terms);
  bool Join(Key& key, Round& round, const Header& header, const Terms& terms);
  bool Reserve(Key& key, Round& round, const Header& header);
  bool Acknowledge(Key& key, const Header& header);
  void OnPush(Peer& peer, const Header& header, const std::byte* payload);
  void OnSegment(Peer& peer, Key& key, Round& round, const Header& header, const std::byte* payload);
  void OnReference(Peer& peer, Key& key, Round& round, const Header& header);
  void OnStreamOfReferred(Peer& peer, Key& key, Round& round, const Header& header);
  void OnAbsent(Peer& peer, Key& key, Round& round);
  bool MayTakePart(const Peer& peer, const Key& key, const Round& round);
  void AnswerAgain(Key& key, Round& round, uint32_t rank);
  void Progress(Key& key, Round& round, uint32_t rank);
  void HandOut(Key& key, Round& round);
  void Lend(const Key& key, Round& round);
  bool LendTo(uint32_t rank, const Key& key, uint32_t round, std::span<std::byte> place);

  // shard_relay.cc: what an aggregator hears, and passes on
  bool IsOutOfPlace(const Peer& peer, FrameType type) const;
  bool HasRackLeft() const;
  void OnOwner(Peer& peer, const Header& header);
  void OnAnswer(uint64_t key, uint32_t round, uint32_t landed, bool movable) override;
  void OnRelayWarning(const std::string& text) override;
  void OnRelayFailed(const Status& why) override { FailOnLoop(why.code(), why.message()); }

  // shard_notices.cc: messages of workers other than contributions
  void OnResume(Peer& peer, const Header& header);
  void OnRegion(Peer& peer, const Header& header);
  void OnCodec(Peer& peer, const Header& header, std::string_view text);
  void OnForget(Peer& peer, const Header& header);
  bool IsOver(const Key& key) const;
  bool IsKept(const Key& key) const;
  bool Keeps(const Key& key, uint32_t seat) const;
  void Free(Key& key);

  // shard_results.cc: results out, stalls
  void Offer(Key& key, Round& round, uint32_t rank);
  bool NextResult(Peer& peer, Outgoing& next);
  void OnResultSent(const Peer& peer, const Header& header);
  bool IsAway(const Peer& peer, const Contribution& contribution) const;
  void Return(const Peer& peer, Contribution& contribution);
  bool MayHaveAll(const Round& round, uint32_t rank);
  void ArmStallCheck();
  void CheckStalls();
  void CheckStall(Key& key, Round& round);
  void Warn(const Round& round, const std::string& text);
  void TraceStage(TraceKind kind, uint64_t key, const Round& round, uint32_t peer, int64_t begin) const;

  // shard_losses.cc: workers that are gone
  void Depart(Peer& peer, const Status& why);  // it will contribute nothing any more
  bool GoesOnWithout(const Peer& peer) const;
  void GoOnWithout(Peer& gone);
  void LeaveOutOf(Key& key, Round& round, Peer& gone);
  void LeaveOutGone(Key& key, Round& round);
  bool IsAbandoned(const Round& round) const;
  bool HasHeardAll(const Round& round, const Peer& peer) const;
  void TellWhoIsGone(Peer& peer);
  void TellWhoIsGone(Peer& peer, const Peer& gone);
  void FailWhatWaitsFor(const Peer& gone);
  bool FailIfGone(const Key& key, const Round& round);
  bool IsInReach(const Round& round) const;
  bool MayBring(const Round& round, uint32_t rank) const;

  // shard_adopting.cc: keys of servers that are gone
  void FailAdoption(uint64_t key, const Status& why) override;
  bool IsHere(uint32_t rank) const override;
  bool OnAdoptionFrame(Peer& peer, const Header& header, const std::byte* payload);
  bool BeginsAt(Key& key, const Header& header);
  void ExcuseThoseBeyond(Key& key, Round& round);
  void CheckAdoptions();

  const Options options_;
  EventLoop loop_;  // before the links, which watch it
  ShardStats stats_;
  ShardMemory memory_;   // before the keys, which use it
  ServerCodecs codecs_;  // likewise
  ShardWorld world_;
  Seats seats_;  // before the keys, likewise
  Status failure_;
  bool stall_check_armed_ = false;
  bool sealed_ = false;
  uint64_t order_ = 0;
  uint32_t left_ = 0;  // peers that have said goodbye, or died
  std::unordered_map<uint64_t, std::unique_ptr<Key>> keys_;
  ShardStore store_{*this, memory_};
  Adoptions adoptions_{*this};
  std::optional<double> store_call_;          // when it is called, at the latest
  std::unordered_set<uint64_t> given_up_;     // keys whose last round was given up: late contributions are ignored
  std::vector<std::unique_ptr<Peer>> peers_;  // by seat
  std::unordered_map<const Link*, Peer*> by_link_;
  std::vector<std::unique_ptr<Link>> closing_;
  std::shared_ptr<Relay> relay_;                    // of an aggregator
  std::deque<std::shared_ptr<Relay>> past_relays_;  // whose timers run out
  std::shared_ptr<ChainLinks> chain_;               // to all shards, as ShardWorld::chain says
  std::deque<std::shared_ptr<ChainLinks>> past_chains_;
  Thread thread_;
};

// How errors call a key: workers put the tensor's name in its place.
std::string KeyText(uint64_t key);

// A result, or more of one, that a worker's link may send.
struct Shard::Sendable {
  int32_t priority;
  uint64_t order;
  Round* round;
  uint64_t key;
  bool operator<(const Sendable& other) const {
    return priority != other.priority ? priority < other.priority : order > other.order;
  }
};

struct Shard::Key {
  Key(uint64_t number, ShardMemory& memory, const Combine& combine);

  Round& of(uint32_t round) { return *rounds[round & 1]; }
  // The same, of the kind that this policy wants. It must not be active.
  Round& Renew(uint32_t round, const PolicyRow& row);
  // With what the key keeps for it. No round is unfinished.
  KeyPolicy Open(const PolicyRow& row);

  const uint64_t key;
  ShardMemory& memory;
  uint32_t next = 0;                             // the round that has not begun yet
  std::unique_ptr<Update> update;                // before the rounds, which use it; kept while others take turns
  const PolicyRow* updated_by = nullptr;         // whose it is
  std::array<std::unique_ptr<Round>, 2> rounds;  // a push of round r + 1 acknowledges r: two are enough
  std::array<const Combine*, 2> kinds;           // of these
  std::vector<std::unique_ptr<Round>> lent;      // of earlier kinds: a peer may still write to their memory
  std::vector<bool> forgotten;                   // by seat; empty while nobody has

  bool IsForgottenBy(uint32_t rank) const { return rank < forgotten.size() && forgotten[rank]; }
};

struct Shard::Peer {  // one worker, or shard of an aggregator, and its link
  Header Ranked(Header header) const {
    header.rank = rank;
    return header;
  }

  uint32_t rank = 0;           // or the seat, of an aggregator
  uint32_t number = 0;         // its member number
  std::unique_ptr<Link> link;  // null: not connected
  uint64_t link_number = 0;    // of the newest so far
  uint64_t connection = 1;     // another with each link that comes or goes
  Round* landing = nullptr;    // that the link receives into, perhaps
  uint64_t placed = 0;         // its LinkCounters::payload_placed, as far as it is in the stats
  std::map<uint32_t, std::shared_ptr<SharedBuffer>> regions;  // of its link; nullptr: could not be mapped
  std::vector<const ServerCodec*> codecs;                     // as this link has numbered them
  std::priority_queue<Sendable> results;
  std::deque<std::pair<Header, std::string>> control;  // frames that go first, in order
  size_t control_under_way = 0;                        // so many at the front are on their way
  bool left = false;     // said goodbye, or died: will not contribute to anything any more
  bool warned = false;   // in this check for stalls
  double wait_told = 0;  // when it was last told what it waits for at a store key, or one that is adopted
};

}  // namespace byteps_like
