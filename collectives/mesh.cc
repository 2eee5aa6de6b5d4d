#include "collectives/mesh.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "collectives/mesh_peer.h"
#include "csrc/transport/admission.h"

namespace byteps_like {
namespace {

constexpr auto kGoodbyeTimeout = std::chrono::seconds(1);
constexpr auto kWorldTimeout = std::chrono::seconds(60);  // how long somebody who is early may wait at our door

class MeshImpl final : public Mesh {
 public:
  MeshImpl(MeshOptions options, MeshHandler& handler)
      : options_(std::move(options)), context_{loop_, handler, options_, world_, [this] { OnLinkClosed(); }} {}
  ~MeshImpl() override;

  Status Open();

  std::vector<std::string> urls() const override { return admission_->urls(); }
  void SetWorld(MeshWorld world) override;
  const MeshWorld& world() const override { return world_; }
  EventLoop& loop() override { return loop_; }
  LinkCounters counters() const override;
  LinkCounters counters(uint32_t peer) const override {
    return ready() && peer < peers_.size() ? peers_[peer]->counters() : LinkCounters();
  }

  void Kick(uint32_t peer) override { peers_[peer]->Kick(); }
  void PassRegion(uint32_t peer, uint32_t id, std::shared_ptr<SharedBuffer> buffer) override {
    peers_[peer]->PassRegion(id, std::move(buffer));
  }
  bool SameHost(uint32_t peer) const override {
    const std::string& host = world_.peers[peer].host_id;
    return !host.empty() && host == world_.peers[world_.rank].host_id;
  }
  void Cut(uint32_t peer, const Status& why) override { peers_[peer]->Cut(why); }
  void Redirect(uint32_t peer, std::byte* place) override { peers_[peer]->Redirect(place); }
  void Keep(uint32_t peer) override { peers_[peer]->Keep(); }
  bool KeepShort(uint32_t peer, bool on) override { return peers_[peer]->KeepShort(on); }
  void Goodbye(std::function<void()> done) override;
  void StopListening() override;

 private:
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  std::optional<uint32_t> AwaitEpoch();
  void Admit(std::unique_ptr<Stream> stream, const PeerIdentity& peer);
  void OnLinkClosed();
  void EndGoodbye();

  const MeshOptions options_;
  EventLoop loop_;
  MeshWorld world_;
  const MeshContext context_;
  std::vector<std::unique_ptr<MeshPeer>> peers_;  // by rank; our own place is never used
  std::atomic<bool> ready_{false};                // world_ and peers_ are set and stay as they are

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;

  std::function<void()> goodbye_done_;
  std::unique_ptr<Admission> admission_;
  std::thread thread_;
};

Status MeshImpl::Open() {
  Admission::Options options;
  options.job = options_.job;
  options.secret = options_.secret;
  options.epoch = [this] { return AwaitEpoch(); };
  options.admit = [this](std::unique_ptr<Stream> stream, const PeerIdentity& peer, uint32_t, uint64_t) {
    Admit(std::move(stream), peer);
  };
  auto admission = Admission::Open(options_.urls, std::move(options));
  if (!admission.ok()) return admission.status();
  admission_ = std::move(*admission);
  thread_ = std::thread([this] { loop_.Run(); });
  return {};
}

void MeshImpl::StopListening() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  if (admission_) admission_->Close();
}

MeshImpl::~MeshImpl() {
  StopListening();
  if (!thread_.joinable()) return;
  loop_.Stop();
  thread_.join();
  for (auto& peer : peers_) peer->StopDialing();
}

// On a handshake thread. Peers that have heard of the world before us wait here.
std::optional<uint32_t> MeshImpl::AwaitEpoch() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kWorldTimeout, [&] { return closing_ || ready(); });
  if (closing_ || !ready()) return std::nullopt;
  return world_.epoch;
}

void MeshImpl::Admit(std::unique_ptr<Stream> stream, const PeerIdentity& peer) {
  if (peer.role != Role::kWorker || peer.rank >= peers_.size() || peer.rank == world_.rank) return stream->Shutdown();
  auto shared = std::make_shared<std::unique_ptr<Stream>>(std::move(stream));
  loop_.Post([this, shared, rank = peer.rank] { peers_[rank]->Offer(std::move(*shared)); });
}

void MeshImpl::SetWorld(MeshWorld world) {
  std::lock_guard lock(mutex_);
  if (ready()) return;
  world_ = std::move(world);
  for (uint32_t rank = 0; rank < world_.peers.size(); ++rank) {
    peers_.push_back(std::make_unique<MeshPeer>(context_, rank));
  }
  ready_.store(true, std::memory_order_release);
  changed_.notify_all();
}

LinkCounters MeshImpl::counters() const {
  LinkCounters sum;
  if (!ready()) return sum;
  for (const auto& peer : peers_) {
    const LinkCounters more = peer->counters();
    sum.frames_sent += more.frames_sent;
    sum.frames_received += more.frames_received;
    sum.bytes_sent += more.bytes_sent;
    sum.bytes_received += more.bytes_received;
    sum.payload_sent += more.payload_sent;
    sum.payload_received += more.payload_received;
  }
  return sum;
}

void MeshImpl::Goodbye(std::function<void()> done) {
  goodbye_done_ = std::move(done);
  for (auto& peer : peers_) peer->Goodbye();
  loop_.CallAt(Clock::now() + kGoodbyeTimeout, [this] { EndGoodbye(); });
  OnLinkClosed();
}

void MeshImpl::OnLinkClosed() {
  if (std::all_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer->closed(); })) EndGoodbye();
}

void MeshImpl::EndGoodbye() {
  if (!goodbye_done_) return;
  for (auto& peer : peers_) peer->Abandon();
  std::exchange(goodbye_done_, nullptr)();
}

}  // namespace

Result<std::unique_ptr<Mesh>> Mesh::Listen(MeshOptions options, MeshHandler& handler) {
  auto mesh = std::make_unique<MeshImpl>(std::move(options), handler);
  if (Status opened = mesh->Open(); !opened.ok()) return opened;
  return std::unique_ptr<Mesh>(std::move(mesh));
}

}  // namespace byteps_like
