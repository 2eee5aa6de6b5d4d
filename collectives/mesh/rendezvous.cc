#include "collectives/mesh/rendezvous.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace byteps_like {
namespace {

constexpr auto kBeforeNext = std::chrono::milliseconds(50);  // until we dial again, if the peer doesn't

Clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

void Rendezvous::Begin() {
  if (state_ == State::kIdle) Dial();
}

void Rendezvous::Dial() {
  const Deadline now = Clock::now();
  state_ = State::kDialing;
  MeshDial::Target target;
  const MeshWorld& world = mesh_.world;
  const PeerAddress& peer = world.peers[to_.peer];
  target.urls = peer.urls;
  target.credentials = {mesh_.options.job, mesh_.options.secret, world.epoch, world.incarnation};
  target.who = {{Role::kWorker, world.number()}, {Role::kWorker, peer.number}, static_cast<uint32_t>(to_.way)};
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
  if (now >= *deadline_) return owner_.Missed(started);
  dial_.reset();
  DialLater();
}

void Rendezvous::DialLater() {
  state_ = State::kIdle;
  if (timer_ != 0) mesh_.loop.CancelTimer(timer_);
  timer_ = mesh_.loop.CallAt(Clock::now() + kBeforeNext, [this] {
    timer_ = 0;
    Begin();
  });
}

void Rendezvous::OnDialed(Result<std::unique_ptr<Stream>> stream) {
  dial_.reset();
  if (state_ != State::kDialing) return;
  if (!deadline_) deadline_ = Clock::now() + Seconds(mesh_.options.connect_timeout);
  if (stream.ok()) return Propose(std::move(*stream));
  if (parked_) return Accept(std::move(parked_));
  const bool ours = stream.status().code() == Code::kCapacity;
  owner_.Missed(ours ? stream.status() : Status(Code::kPeerLost, "can't be reached: " + stream.status().message()));
}

void Rendezvous::Offer(std::unique_ptr<Stream> stream) {
  const bool ours_is_on_the_way = state_ == State::kDialing || state_ == State::kProposed;
  if (state_ != State::kIdle && !ours_is_on_the_way) return stream->Shutdown();  // it dialed while we did, or too late
  if (ours_is_on_the_way && mesh_.world.rank < to_.peer) {
    parked_ = std::move(stream);
    return;
  }
  Accept(std::move(stream));
}

void Rendezvous::Propose(std::unique_ptr<Stream> stream) {
  owner_.Try(std::move(stream));
  state_ = State::kProposed;
}

void Rendezvous::Accept(std::unique_ptr<Stream> stream) {
  owner_.Try(std::move(stream));
  Meet(State::kAccepted);
}

void Rendezvous::Meet(State state) {
  state_ = state;
  parked_.reset();
  deadline_.reset();
  owner_.Met();
}

Status Rendezvous::TakeWelcome(const Header& header) {
  const bool right = header.type == FrameType::kCredit && header.offset == 0 && header.view == mesh_.world.epoch &&
                     header.member == mesh_.world.peers[to_.peer].number;
  if (!right)
    return Status(Code::kCorrupt, "member " + std::to_string(header.member) + " of epoch " +
                                      std::to_string(header.view) + " answers at its address");
  Meet(State::kOver);
  return Status();
}

bool Rendezvous::NextWelcome(Outgoing& next) {
  if (state_ != State::kAccepted) return false;
  state_ = State::kOver;
  next.header = mesh_.HeaderOf(FrameType::kCredit);
  return true;
}

// The peer had a connection of its own on the way, or has ended.
void Rendezvous::Declined(const Status& why) {
  if (parked_) return Accept(std::move(parked_));
  const bool again = state_ == State::kProposed && deadline_ && Clock::now() <= *deadline_;
  if (!again || why.code() == Code::kCorrupt) return owner_.Missed(why);
  DialLater();
}

void Rendezvous::LastTry() {
  parked_.reset();
  if (state_ == State::kProposed) state_ = State::kLastTry;
  if (state_ == State::kIdle || state_ == State::kDialing) End();
}

void Rendezvous::End() {
  state_ = State::kOver;
  parked_.reset();
  if (timer_ != 0) mesh_.loop.CancelTimer(std::exchange(timer_, 0));
}

}  // namespace byteps_like
