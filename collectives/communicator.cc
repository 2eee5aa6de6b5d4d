#include "collectives/communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>

#include "collectives/exchange/exchange_core.h"
#include "collectives/host/host_side.h"
#include "collectives/point_to_point/point_impl.h"
#include "csrc/base/thread.h"

namespace byteps_like {
namespace {

constexpr auto kCloseTimeout = std::chrono::milliseconds(1500);

class CommunicatorImpl final : public Communicator {
 public:
  ~CommunicatorImpl() override;
  Status Open(MeshOptions options);

  std::vector<std::string> urls() const override { return urls_; }
  void SetWorld(MeshWorld world) override;
  Executor& executor() override { return *executor_; }
  PointToPoint& point_to_point() override { return *points_; }
  EventLoop& loop() override { return mesh_->loop(); }
  Mesh& mesh() override { return *mesh_; }
  Result<std::shared_ptr<SharedBuffer>> Allocate(size_t bytes) override { return host_->Allocate(bytes); }
  Result<std::shared_ptr<HostGroup>> Group(uint64_t lane, const std::vector<uint32_t>& ranks,
                                           Deadline deadline) override {
    return host_->Group(lane, ranks, deadline);
  }
  LinkCounters counters() const override { return mesh_->counters(); }
  LinkCounters counters(uint32_t peer) const override { return mesh_->counters(peer); }
  void Fail(const Status& why) override {
    if (closed_) return;
    loop().Post([this, why] { FailOnLoop(why); });
    host_->Close(why);
  }
  void Lose(uint32_t peer, const Status& why) override {
    if (closed_) return;
    loop().Post([this, peer, why] {
      host_->OnPeerLost(peer, why);  // before the peer, should it live, misses its links and says that others are lost
      mesh_->Lose(peer, why);
    });
  }
  void CancelLane(uint64_t lane, const Status& why) override {
    if (closed_) return;
    executor_->CancelLane(lane, why);
    loop().Post([this, lane, why] { points_->CancelLane(lane, why); });
    host_->CancelLane(lane, why);
  }
  void Close() override;

 private:
  // The ranks of calls in flight are told in these words, too.
  std::string Closed() const {
    return core_.ranks() == 0 ? "the communicator was closed" : core_.NameOf(core_.rank()) + " was shut down";
  }
  void FailOnLoop(const Status& why) {
    core_.FailAll(why);
    points_->FailAll(why);
  }

  ExchangeCore core_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<PointImpl> points_;
  std::shared_ptr<HostSide> host_;
  std::vector<std::string> urls_;
  std::atomic<bool> closed_{false};
};

Status CommunicatorImpl::Open(MeshOptions options) {
  auto mesh = Mesh::Listen(std::move(options), core_);
  if (!mesh.ok()) return mesh.status();
  mesh_ = std::move(*mesh);
  urls_ = mesh_->urls();
  core_.Attach(*mesh_);
  executor_ = MakeExecutor(core_);
  points_ = std::make_unique<PointImpl>(core_);
  host_ = std::make_shared<HostSide>(*mesh_);
  core_.SetHostSide(host_.get());
  return {};
}

void CommunicatorImpl::SetWorld(MeshWorld world) {
  const std::string& host = world.peers[world.rank].host_id;
  const auto ranks_here = std::count_if(world.peers.begin(), world.peers.end(),
                                        [&](const PeerAddress& peer) { return !host.empty() && peer.host_id == host; });
  loop().ShareCores(static_cast<size_t>(ranks_here));
  core_.Prepare(world);
  host_->SetWorld(world);
  mesh_->SetWorld(std::move(world));
}

CommunicatorImpl::~CommunicatorImpl() {
  Close();
  if (mesh_ == nullptr) return;
  core_.gate()->Close();
  std::mutex mutex;
  ConditionVariable changed;
  bool gone = false;
  loop().Post([&] {
    executor_.reset();
    points_.reset();
    std::lock_guard lock(mutex);
    gone = true;
    changed.notify_all();
  });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return gone; });
  }
  mesh_.reset();
}

// Fails the calls in flight, says goodbye, and waits for the goodbyes to be sent: a second at most, unless the loop
// itself is held up. The links stay closed and no peer is admitted, because a process that exits must not have a thread
// in a handshake. The mesh is destroyed with this object, so a late thread finds it failed.
void CommunicatorImpl::Close() {
  if (closed_.exchange(true) || mesh_ == nullptr) return;
  host_->Close(Status(Code::kClosed, Closed()));
  struct Said {
    std::mutex mutex;
    ConditionVariable changed;
    bool done = false;
  };
  auto said = std::make_shared<Said>();
  loop().Post([this, said] {
    FailOnLoop(Status(Code::kClosed, Closed()));
    mesh_->Goodbye([said] {
      std::lock_guard lock(said->mutex);
      said->done = true;
      said->changed.notify_all();
    });
  });
  {
    std::unique_lock lock(said->mutex);
    said->changed.wait_until(lock, Clock::now() + kCloseTimeout, [&] { return said->done; });
  }
  mesh_->StopListening();
}

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::Listen(MeshOptions options) {
  auto communicator = std::make_unique<CommunicatorImpl>();
  if (Status opened = communicator->Open(std::move(options)); !opened.ok()) return opened;
  return std::unique_ptr<Communicator>(std::move(communicator));
}

}  // namespace byteps_like
