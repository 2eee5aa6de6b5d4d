#include "csrc/transport/sim/connection.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace byteps_like::sim {
namespace {

constexpr auto kKeepAlive = std::chrono::seconds(110);  // an end that waits for bytes asks for signs of life

Status Lost(const Wire& wire, int error) {
  const Status status = SystemError("connection " + std::to_string(wire.number), error);
  return Status(Code::kPeerLost, status.message());
}

}  // namespace

size_t Connection::Some(size_t bytes) {
  Simulation& simulation = network_.simulation();
  if (bytes < 2 || simulation.Draw(network_.options().cuts_short) != 0) return bytes;
  return 1 + static_cast<size_t>(simulation.Draw(bytes));
}

Result<size_t> Connection::Read(size_t side, std::span<std::byte> to) {
  End& end = ends_[side];
  if (end.closed) return Status(Code::kClosed, "this end of the connection is closed");
  const size_t there = std::min(end.there.size() - end.taken, to.size());
  if (there == 0) {
    if (to.empty()) return size_t{0};
    if (!end.told.ok()) return end.told;
    if (end.ended) return Status(Code::kClosed, "the other end closed the connection");
    return size_t{0};
  }
  const size_t some = Some(there);
  std::copy_n(end.there.begin() + static_cast<ptrdiff_t>(end.taken), some, to.begin());
  end.taken += some;
  end.unread -= std::min(some, end.unread);
  if (end.taken == end.there.size()) {
    end.there.clear();
    end.taken = 0;
  }
  MakeRoom(1 - side);
  return some;
}

Result<size_t> Connection::Write(size_t side, std::span<const iovec> pieces) {
  End& end = ends_[side];
  End& other = ends_[1 - side];
  if (end.closed) return Status(Code::kClosed, "this end of the connection is closed");
  if (!end.told.ok()) return end.told;
  const size_t window = network_.options().window;
  size_t wanted = 0;
  for (const iovec& piece : pieces) wanted += piece.iov_len;
  const size_t room = window - std::min(window, other.unread);
  const size_t some = Some(std::min(wanted, room));
  if (some == 0) {
    end.wants_room = wanted > 0;
    return size_t{0};
  }
  std::vector<std::byte> bytes;
  bytes.reserve(some);
  for (const iovec& piece : pieces) {
    const auto* const begin = static_cast<const std::byte*>(piece.iov_base);
    bytes.insert(bytes.end(), begin, begin + std::min(piece.iov_len, some - bytes.size()));
  }
  bytes = network_.tap().Carry(wire_, side == kAccepted, bytes);
  other.unread += bytes.size();
  if (!bytes.empty()) Send(side, {.bytes = std::move(bytes)});
  return some;
}

void Connection::Send(size_t from, Packet packet) {
  End& to = ends_[1 - from];
  if (ends_[from].dead) return;
  const auto soonest = network_.simulation().Now() + network_.OneWay();
  packet.due = to.coming.empty() ? soonest : std::max(soonest, to.coming.back().due);
  network_.simulation().At(packet.due, [self = shared_from_this(), from] { self->Arrive(1 - from); });
  to.coming.push_back(std::move(packet));
}

bool Connection::Blocks(size_t to) const {
  return swallows_ || !network_.Passes(process(1 - to), process(to)) || network_.simulation().Now() < stalled_until_;
}

void Connection::Arrive(size_t side) {
  End& end = ends_[side];
  if (end.dead) return;
  bool news = false;
  while (!end.coming.empty() && end.coming.front().due <= network_.simulation().Now()) {
    if (Blocks(side)) return WatchSilence();
    Packet packet = std::move(end.coming.front());
    end.coming.pop_front();
    if (!end.told.ok()) continue;
    if (packet.kind == Packet::kReset) {
      Break(side, Lost(wire_, ECONNRESET));
      continue;
    }
    // Whoever sends to an end that is closed is told so.
    if (end.closed && packet.kind == Packet::kBytes) {
      Break(1 - side, Lost(wire_, ECONNRESET));
      continue;
    }
    network_.tap().OnArrived(wire_, side == kDialled, packet.bytes);
    end.there.insert(end.there.end(), packet.bytes.begin(), packet.bytes.end());
    end.ended = end.ended || packet.kind == Packet::kLast;
    news = true;
  }
  if (news) end.descriptor.Raise();
}

// News of it take a way as well.
void Connection::MakeRoom(size_t side) {
  if (!std::exchange(ends_[side].wants_room, false)) return;
  const auto then = network_.simulation().Now() + network_.OneWay();
  network_.simulation().At(then, [self = shared_from_this(), side] { self->ends_[side].descriptor.Raise(); });
}

void Connection::Close(size_t side) {
  if (std::exchange(ends_[side].closed, true)) return;
  ends_[side].descriptor.Raise();
  Send(side, {.kind = Packet::kLast});
}

void Connection::Break(size_t side, const Status& why) {
  End& end = ends_[side];
  if (!end.told.ok() || end.closed || end.dead) return;
  end.told = why;
  end.descriptor.Raise();
  network_.tap().OnBroken(wire_, process(side), why);
}

void Connection::Stall(Clock::time_point until) {
  stalled_until_ = std::max(stalled_until_, until);
  network_.simulation().At(stalled_until_, [self = shared_from_this()] { self->Resume(); });
}

void Connection::Swallow() {
  swallows_ = true;
  WatchSilence();
}

void Connection::Leave(size_t side, bool silently) {
  if (!silently) Send(side, {.kind = Packet::kReset});
  ends_[side].told = Lost(wire_, ENETDOWN);
  ends_[side].dead = true;
  ends_[side].descriptor.Raise();
  if (silently) Swallow();
}

void Connection::Resume() {
  Arrive(kDialled);
  Arrive(kAccepted);
}

void Connection::LimitSilence(size_t side, Clock::duration limit) { ends_[side].silence = limit; }

void Connection::WatchSilence() {
  for (const size_t side : {kDialled, kAccepted}) {
    const auto limit = ends_[side].silence.count() > 0 ? ends_[side].silence : Clock::duration(kKeepAlive);
    network_.simulation().At(network_.simulation().Now() + limit,
                             [self = shared_from_this(), side] { self->CheckSilence(side); });
  }
}

// The end hears nothing of what it has sent, or of the signs of life that it asks for.
void Connection::CheckSilence(size_t side) {
  if (Blocks(side) || Blocks(1 - side)) Break(side, Lost(wire_, ETIMEDOUT));
}

}  // namespace byteps_like::sim
