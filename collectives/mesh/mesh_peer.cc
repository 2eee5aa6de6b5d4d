#include "collectives/mesh/mesh_peer.h"

#include <utility>

namespace byteps_like {

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
  if (IsUp()) return link_->Kick();
  rendezvous_.Begin();
}

void MeshPeer::Try(std::unique_ptr<Stream> stream) {
  if (link_) link_->Close(Status(Code::kClosed, ""));  // ours, which the peer leaves aside
  stream->LimitQueue(mesh_.options.kernel_queue_bytes);
  stream->LimitSilence(SilenceLimit(mesh_.options.stall_warning, mesh_.options.stall_timeout));
  SetLink(MakeLink(mesh_.loop, std::move(stream), *this));
  link_->Start();
}

void MeshPeer::Met() {
  state_ = State::kUp;
  link_->Kick();
}

// Frames --------------------------------------------------------------------------------------------------------------

std::byte* MeshPeer::PlaceFor(Link& link, const Header& header) {
  if (&link != link_.get() || !IsUp()) return nullptr;
  return mesh_.handler.PlaceFor(to_, header);
}

void MeshPeer::OnFrame(Link& link, const Header& header, std::byte* payload) {
  if (&link != link_.get()) return;
  if (state_ == State::kMeeting) {
    const Status welcome = rendezvous_.TakeWelcome(header);
    return welcome.ok() ? void() : link_->Close(welcome);
  }
  if (!IsUp() || header.type == FrameType::kGoodbye) return;  // the link's end follows
  if (header.type == FrameType::kRegion) return regions_.Take(link, header);
  mesh_.handler.OnFrame(to_, header, payload);
}

bool MeshPeer::NextFrame(Link& link, Outgoing& next) {
  if (&link != link_.get() || !IsUp() || state_ == State::kSaidGoodbye) return false;
  if (rendezvous_.NextWelcome(next) || regions_.Next(link, next) || mesh_.handler.NextFrame(to_, next)) return true;
  if (state_ != State::kEnding) return false;
  state_ = State::kSaidGoodbye;
  next.header = mesh_.HeaderOf(FrameType::kGoodbye);
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
  mesh_.on_closed();
}

void MeshPeer::Drop(const Status& why) {
  SetLink(nullptr);
  closing_.clear();  // `why` lives in the handler's caller
  mesh_.handler.OnLinkGone(to_);
  if (state_ == State::kMeeting) {
    rendezvous_.Declined(why);
  } else if (state_ == State::kUp) {
    Lose(why);
  } else {
    state_ = State::kLost;  // as we wanted: not reported
  }
}

void MeshPeer::Lose(const Status& why) {
  state_ = State::kLost;
  rendezvous_.End();
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

void MeshPeer::PassRegion(uint32_t id, std::shared_ptr<SharedBuffer> buffer) {
  if (state_ != State::kMeeting && state_ != State::kUp) return;
  regions_.Pass(id, std::move(buffer));
  Kick();
}

// The end -------------------------------------------------------------------------------------------------------------

bool MeshPeer::Leave() {
  rendezvous_.LastTry();
  if (link_ == nullptr) state_ = State::kLost;
  return link_ != nullptr;
}

void MeshPeer::Goodbye() {
  if (!IsUp()) return Abandon();
  if (state_ == State::kUp) state_ = State::kEnding;
  link_->Kick();
}

void MeshPeer::Abandon() {
  rendezvous_.End();
  state_ = link_ ? State::kClosing : State::kLost;
  if (link_) link_->Close(Status(Code::kClosed, ""));
}

}  // namespace byteps_like
