#include "collectives/mesh/mesh.h"

#include <array>
#include <chrono>
#include <utility>

#include "collectives/mesh/mesh_peer.h"
#include "csrc/base/thread.h"
#include "csrc/transport/entrance/admission.h"

namespace byteps_like {
namespace {

constexpr auto kGoodbyeTimeout = std::chrono::seconds(1);
// For this long, frames that a lost peer had sent by its other way are still accepted; after a goodbye, until its other
// goodbye.
constexpr auto kLastWords = std::chrono::milliseconds(200);
constexpr auto kAfterGoodbye = 2 * kGoodbyeTimeout;

class MeshImpl final : public Mesh {
 public:
  MeshImpl(MeshOptions options, MeshHandler& handler)
      : options_(std::move(options)),
        handler_(handler),
        context_{loop_,
                 handler,
                 options_,
                 world_,
                 dialers_,
                 [this](uint32_t rank, const Status& why) { OnLost(rank, why); },
                 [this] { OnLinkClosed(); }} {}
  ~MeshImpl() override;

  Status Open();

  std::vector<std::string> urls() const override { return admission_->urls(); }
  void SetWorld(MeshWorld world) override;
  const MeshWorld& world() const override { return world_; }
  EventLoop& loop() override { return loop_; }
  LinkCounters counters() const override;
  LinkCounters counters(uint32_t peer) const override;
  std::map<std::string, uint32_t> links() const override;

  void Kick(WayTo to) override { at(to).Kick(); }
  void PassRegion(uint32_t peer, uint32_t id, std::shared_ptr<SharedBuffer> buffer) override {
    at(peer).PassRegion(id, std::move(buffer));
  }
  bool SameHost(uint32_t peer) const override {
    const std::string& host = world_.peers[peer].host_id;
    return !host.empty() && host == world_.peers[world_.rank].host_id;
  }
  void Cut(uint32_t peer, const Status& why) override {
    for (auto& way : peers_[peer].ways) way->Cut(why);
  }
  void Lose(uint32_t peer, const Status& why) override {
    if (ready() && peer < peers_.size() && peers_[peer].lost.ok()) OnLost(peer, why);
  }
  void Redirect(WayTo from, std::byte* place) override { at(from).Redirect(place); }
  bool TakesOffers(WayTo from) override { return at(from).TakesOffers(); }
  bool Offer(WayTo from, const Header& about, std::byte* place, uint64_t bytes) override {
    return at(from).OfferPlace(about, place, bytes);
  }
  bool Withdraw(WayTo from, const OfferId& what) override { return at(from).Withdraw(what); }
  void Keep(WayTo to) override { at(to).Keep(); }
  bool KeepShort(WayTo to, bool on) override { return at(to).KeepShort(on); }
  void Goodbye(std::function<void()> done) override;
  void StopListening() override;

 private:
  struct Peer {
    std::array<std::unique_ptr<MeshPeer>, kWays> ways;
    Status lost;
  };

  MeshPeer& at(WayTo to) { return *peers_[to.peer].ways[static_cast<size_t>(to.way)]; }
  template <typename Do>
  void ForAll(Do act) {
    for (Peer& peer : peers_) {
      for (auto& way : peer.ways) act(*way);
    }
  }
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  void Admit(std::unique_ptr<Stream> stream, const Admitted& peer);
  void OnLost(uint32_t rank, const Status& why);
  void OnLinkClosed();
  void EndGoodbye();

  const MeshOptions options_;
  EventLoop loop_;
  MeshWorld world_;
  MeshHandler& handler_;
  MeshDialers dialers_;
  const MeshContext context_;
  std::vector<Peer> peers_;         // by rank; our own place is never used
  std::atomic<bool> ready_{false};  // world_ and peers_ are set and stay as they are

  std::function<void()> goodbye_done_;
  std::unique_ptr<Admission> admission_;
  Thread thread_;
};

Status MeshImpl::Open() {
  if (!loop_.made().ok()) return loop_.made();
  Admission::Options options;
  options.job = options_.job;
  options.secret = options_.secret;
  options.shards = kWays;
  options.admit = [this](std::unique_ptr<Stream> stream, const Admitted& peer) { Admit(std::move(stream), peer); };
  auto admission = Admission::Open(options_.urls, std::move(options));
  if (!admission.ok()) return admission.status();
  admission_ = std::move(*admission);
  auto thread = StartThread("for collectives", [this] { loop_.Run(); });
  if (thread.ok()) thread_ = std::move(*thread);
  return thread.status();
}

void MeshImpl::StopListening() {
  if (admission_) admission_->Close();
}

MeshImpl::~MeshImpl() {
  StopListening();
  if (!thread_.joinable()) return;
  loop_.Stop();
  thread_.join();
  dialers_.Close();
}

// On the admission's thread, after SetWorld.
void MeshImpl::Admit(std::unique_ptr<Stream> stream, const Admitted& peer) {
  auto shared = std::make_shared<std::unique_ptr<Stream>>(std::move(stream));
  loop_.Post(
      [this, shared, from = WayTo(peer.rank, static_cast<Way>(peer.shard))] { at(from).Offer(std::move(*shared)); });
}

void MeshImpl::SetWorld(MeshWorld world) {
  if (ready()) return;
  world_ = std::move(world);
  for (uint32_t rank = 0; rank < world_.peers.size(); ++rank) {
    Peer& peer = peers_.emplace_back();
    for (const Way way : {Way::kMain, Way::kUrgent}) {
      peer.ways[static_cast<size_t>(way)] = std::make_unique<MeshPeer>(context_, WayTo(rank, way));
    }
  }
  ready_.store(true, std::memory_order_release);
  AdmissionWorld admitted{world_.incarnation, world_.epoch, {Role::kWorker, world_.number()}, world_.rank, {}};
  for (const PeerAddress& peer : world_.peers) admitted.workers.push_back(peer.number);
  admission_->SetWorld(std::move(admitted));
}

LinkCounters MeshImpl::counters() const {
  LinkCounters sum;
  if (!ready()) return sum;
  for (uint32_t peer = 0; peer < peers_.size(); ++peer) sum += counters(peer);
  return sum;
}

LinkCounters MeshImpl::counters(uint32_t peer) const {
  LinkCounters sum;
  if (!ready() || peer >= peers_.size()) return sum;
  for (const auto& way : peers_[peer].ways) sum += way->counters();
  return sum;
}

std::map<std::string, uint32_t> MeshImpl::links() const {
  std::map<std::string, uint32_t> links;
  if (!ready()) return links;
  for (const Peer& peer : peers_) {
    for (const auto& way : peer.ways) ++links[way->transport()];
  }
  links.erase("");
  return links;
}

// A peer is lost with the first of its ways, but OnPeerLost is called when all have closed: frames that come by the
// others were sent before the peer left or died.
void MeshImpl::OnLost(uint32_t rank, const Status& why) {
  Peer& peer = peers_[rank];
  const bool first = peer.lost.ok();
  if (first) peer.lost = why;
  bool open = false;
  for (auto& way : peer.ways) open = way->Leave() || open;
  if (!open) return handler_.OnPeerLost(rank, peer.lost);
  if (!first) return;
  const Clock::duration wait = why.code() == Code::kClosed ? Clock::duration(kAfterGoodbye) : kLastWords;
  loop_.CallAt(Clock::now() + wait, [this, rank] { Cut(rank, peers_[rank].lost); });
}

void MeshImpl::Goodbye(std::function<void()> done) {
  goodbye_done_ = std::move(done);
  ForAll([](MeshPeer& way) { way.Goodbye(); });
  loop_.CallAt(Clock::now() + kGoodbyeTimeout, [this] { EndGoodbye(); });
  OnLinkClosed();
}

void MeshImpl::OnLinkClosed() {
  if (!goodbye_done_) return;
  bool closed = true;
  ForAll([&](MeshPeer& way) { closed = closed && way.closed(); });
  if (closed) EndGoodbye();
}

void MeshImpl::EndGoodbye() {
  if (!goodbye_done_) return;
  ForAll([](MeshPeer& way) { way.Abandon(); });
  std::exchange(goodbye_done_, nullptr)();
}

}  // namespace

Result<std::unique_ptr<Mesh>> Mesh::Listen(MeshOptions options, MeshHandler& handler) {
  auto mesh = std::make_unique<MeshImpl>(std::move(options), handler);
  if (Status opened = mesh->Open(); !opened.ok()) return opened;
  return std::unique_ptr<Mesh>(std::move(mesh));
}

}  // namespace byteps_like
