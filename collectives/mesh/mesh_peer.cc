#include "collectives/mesh/mesh_peer.h"

#include <chrono>
#include <utility>

namespace byteps_like {
namespace {

constexpr auto kBeforeNext = std::chrono::milliseconds(50);  // until we dial again, if the peer doesn't
constexpr auto kRegionPause = std::chrono::milliseconds(1);  // until a descriptor is passed that found no room

Clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

std::string MeshPeer::name() const {
  const std::string& name = mesh_.world.peers[rank_].name;
  return name.empty() ? "rank " + std::to_string(rank_) : name;
}

LinkCounters MeshPeer::counters() const {
  std::lock_guard lock(counters_mutex_);
  LinkCounters sum = past_;
  if (link_) sum += link_->counters();
  return sum;
}

std::string MeshPeer::transport() const {
  std::lock_guard lock(counters_mutex_);
  return link_ ? TransportOf(*link_) : "";
}

void MeshPeer::SetLink(std::unique_ptr<Link> link) {
  std::lock_guard lock(counters_mutex_);
  if (link_) past_ += link_->counters();
  std::swap(link_, link);
  if (link) closing_.push_back(std::move(link));
}

// Connecting ----------------------------------------------------------------------------------------------------------

void MeshPeer::Kick() {
  if (state_ == State::kUp) return link_->Kick();
  if (state_ == State::kIdle && !ending_) Dial();
}

void MeshPeer::Dial() {
  const Deadline now = Clock::now();
  state_ = State::kDialing;
  MeshDial::Target target;
  target.urls = mesh_.world.peers[rank_].urls;
  const MeshWorld& world = mesh_.world;
  target.credentials = {mesh_.options.job, mesh_.options.secret, world.epoch, world.incarnation};
  target.who = {
      {Role::kWorker, world.number()}, {Role::kWorker, world.peers[rank_].number}, static_cast<uint32_t>(to_.way)};
  const Clock::duration patience = Seconds(mesh_.options.connect_timeout);
  target.patience = deadline_ ? std::max(*deadline_ - now, Clock::duration()) : patience;
  const uint64_t number = ++dials_;
  dial_ = std::make_shared<MeshDial>(std::move(target), [this, number](Result<std::unique_ptr<Stream>> stream) {
    auto shared = std::make_shared<Result<std::unique_ptr<Stream>>>(std::move(stream));
    mesh_.loop.Post([this, number, shared] {
      if (number == dials_) OnDialed(std::move(*shared));
    });
  });
  const Status started = mesh_.dialers.Start(dial_);
  if (started.ok()) return;
  if (!deadline_) deadline_ = now + patience;
  if (now >= *deadline_) return Lose(started);
  dial_.reset();
  state_ = State::kIdle;
  DialLater();
}

void MeshPeer::DialLater() {
  if (timer_ != 0) mesh_.loop.CancelTimer(timer_);
  timer_ = mesh_.loop.CallAt(Clock::now() + kBeforeNext, [this] {
    timer_ = 0;
    Kick();
  });
}

void MeshPeer::OnDialed(Result<std::unique_ptr<Stream>> stream) {
  dial_.reset();
  if (state_ != State::kDialing || ending_) return;
  if (!deadline_) deadline_ = Clock::now() + Seconds(mesh_.options.connect_timeout);
  if (stream.ok()) return Install(std::move(*stream), false);
  if (parked_) return Install(std::move(parked_), true);
  const bool ours = stream.status().code() == Code::kCapacity;
  Lose(ours ? stream.status() : Status(Code::kPeerLost, "can't be reached: " + stream.status().message()));
}

void MeshPeer::Offer(std::unique_ptr<Stream> stream) {
  if (state_ == State::kLost || state_ == State::kUp || leaving_ || ending_) {
    return stream->Shutdown();  // it dialed while we did, or was lost before
  }
  const bool ours_is_on_the_way = state_ != State::kIdle;
  if (ours_is_on_the_way && mesh_.world.rank < rank_) {
    parked_ = std::move(stream);
    return;
  }
  Install(std::move(stream), true);
}

void MeshPeer::Install(std::unique_ptr<Stream> stream, bool accepted) {
  if (link_) link_->Close(Status(Code::kClosed, ""));  // ours, which the peer leaves aside
  stream->LimitQueue(mesh_.options.kernel_queue_bytes);
  stream->LimitSilence(SilenceLimit(mesh_.options.stall_warning, mesh_.options.stall_timeout));
  SetLink(MakeLink(mesh_.loop, std::move(stream), *this));
  link_->Start();
  state_ = State::kProposed;
  if (!accepted) return;
  welcome_ = true;
  Up();
}

void MeshPeer::Up() {
  state_ = State::kUp;
  parked_.reset();
  deadline_.reset();
  link_->Kick();
}

void MeshPeer::OnWelcome(const Header& header) {
  const bool right = header.type == FrameType::kCredit && header.offset == 0 && header.view == mesh_.world.epoch &&
                     header.member == mesh_.world.peers[rank_].number;
  if (right) return Up();
  link_->Close(Status(Code::kCorrupt, "member " + std::to_string(header.member) + " of epoch " +
                                          std::to_string(header.view) + " answers at its address"));
}

// The peer had a connection of its own on the way, or has ended.
void MeshPeer::OnDeclined(const Status& why) {
  if (parked_) return Install(std::move(parked_), true);
  if (leaving_ || !deadline_ || Clock::now() > *deadline_ || why.code() == Code::kCorrupt) return Lose(why);
  state_ = State::kIdle;
  DialLater();
}

// Frames --------------------------------------------------------------------------------------------------------------

Header MeshPeer::HeaderOf(FrameType type) const {
  Header header;
  header.type = type;
  header.view = mesh_.world.epoch;
  header.member = mesh_.world.number();
  return header;
}

std::byte* MeshPeer::PlaceFor(Link& link, const Header& header) {
  if (&link != link_.get() || state_ != State::kUp) return nullptr;
  return mesh_.handler.PlaceFor(to_, header);
}

void MeshPeer::OnFrame(Link& link, const Header& header, std::byte* payload) {
  if (&link != link_.get()) return;
  if (state_ == State::kProposed) return OnWelcome(header);
  if (header.type == FrameType::kGoodbye) return;  // the link's end follows
  if (header.type == FrameType::kRegion) return TakeRegion(link, header);
  mesh_.handler.OnFrame(to_, header, payload);
}

bool MeshPeer::NextFrame(Link& link, Outgoing& next) {
  if (&link != link_.get() || state_ != State::kUp || said_goodbye_) return false;
  if (std::exchange(welcome_, false)) {
    next.header = HeaderOf(FrameType::kCredit);
    return true;
  }
  if (NextRegion(next) || mesh_.handler.NextFrame(to_, next)) return true;
  if (!ending_) return false;
  said_goodbye_ = true;
  next.header = HeaderOf(FrameType::kGoodbye);
  return true;
}

void MeshPeer::OnSent(Link& link, const Header& header) {
  if (&link != link_.get()) return;
  if (header.type == FrameType::kGoodbye) return link.Close(Status(Code::kClosed, "we said goodbye"));
  const bool welcome = header.type == FrameType::kCredit && header.offset == 0;
  if (welcome || header.type == FrameType::kRegion) return;
  mesh_.handler.OnSent(to_, header);
}

void MeshPeer::OnWithdrawn(Link& link, const OfferId& what) {
  if (&link == link_.get()) mesh_.handler.OnWithdrawn(to_, what);
}

void MeshPeer::OnClosed(Link& link, const Status& why) {
  if (&link == link_.get()) {
    Drop(why);
  } else {
    std::erase_if(closing_, [&link](const auto& closing) { return closing.get() == &link; });
  }
  if (ending_) mesh_.on_closed();
}

void MeshPeer::Drop(const Status& why) {
  const bool proposed = state_ == State::kProposed;
  SetLink(nullptr);
  closing_.clear();  // `why` lives in the handler's caller
  mesh_.handler.OnLinkGone(to_);
  if (ending_) {
    state_ = State::kLost;
  } else if (proposed) {
    OnDeclined(why);
  } else {
    Lose(why);
  }
}

void MeshPeer::Lose(const Status& why) {
  state_ = State::kLost;
  parked_.reset();
  if (why.code() == Code::kClosed) {
    mesh_.on_lost(rank_, Status(Code::kClosed, name() + " has left: it said goodbye"));
  } else if (why.code() == Code::kCapacity) {
    mesh_.on_lost(rank_, Status(Code::kCapacity, name() + " can't be reached from here: " + why.message()));
  } else {
    mesh_.on_lost(rank_, Status(Code::kPeerLost, name() + " is gone: " + why.message()));
  }
}

void MeshPeer::Cut(const Status& why) {
  if (link_) link_->Close(why);
}

void MeshPeer::Redirect(std::byte* place) {
  if (link_) link_->Redirect(place);
}

void MeshPeer::Keep() {
  if (link_) link_->Keep();
}

// Shared memory -------------------------------------------------------------------------------------------------------

void MeshPeer::PassRegion(uint32_t id, std::shared_ptr<SharedBuffer> buffer) {
  if (state_ == State::kLost || ending_) return;
  regions_.push_back({id, std::move(buffer)});
  Kick();
}

// `offset` 0: there is no such region, `total` 1: as it can't be passed.
bool MeshPeer::NextRegion(Outgoing& next) {
  if (regions_.empty()) return false;
  const Region& region = regions_.front();
  next.header = HeaderOf(FrameType::kRegion);
  next.header.aux = region.id;
  if (region.buffer != nullptr) {
    const Status passed = link_->shares_memory() ? link_->PassBuffer(*region.buffer) : Status(Code::kInvalid, "");
    if (passed.code() == Code::kCapacity) {  // nothing tells when the peer has taken those before
      RetryRegions();
      return false;
    }
    next.header.offset = passed.ok() ? region.buffer->size() : 0;
    next.header.total = passed.ok() ? 0 : 1;
  }
  regions_.pop_front();
  return true;
}

void MeshPeer::RetryRegions() {
  if (retries_regions_) return;
  retries_regions_ = true;
  mesh_.loop.CallAt(Clock::now() + kRegionPause, [this] {
    retries_regions_ = false;
    if (state_ == State::kUp) link_->Kick();
  });
}

void MeshPeer::TakeRegion(Link& link, const Header& header) {
  if (header.offset == 0) return mesh_.handler.OnNoRegion(rank_, header.aux, header.total != 0);
  auto buffer = link.TakeBuffer();
  if (!buffer.ok()) return link.Close(buffer.status());
  if ((*buffer)->size() != header.offset) return link.Close(Status(Code::kCorrupt, "a region of another size"));
  mesh_.handler.OnRegion(rank_, header.aux, std::move(*buffer));
}

// The end -------------------------------------------------------------------------------------------------------------

bool MeshPeer::Leave() {
  leaving_ = true;
  parked_.reset();
  if (link_ == nullptr) state_ = State::kLost;
  return link_ != nullptr;
}

void MeshPeer::Goodbye() {
  ending_ = true;
  parked_.reset();
  if (state_ == State::kUp) return link_->Kick();
  Abandon();
}

void MeshPeer::Abandon() {
  ending_ = true;
  if (timer_ != 0) mesh_.loop.CancelTimer(std::exchange(timer_, 0));
  if (link_) link_->Close(Status(Code::kClosed, ""));
}

}  // namespace byteps_like
