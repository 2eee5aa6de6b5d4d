#include "csrc/transport/rdma/rdma_stream.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "csrc/transport/rdma/rdma_link.h"
#include "csrc/transport/rdma/undertaker.h"

namespace byteps_like::rdma {

Result<std::unique_ptr<Stream>> MakeStream(std::unique_ptr<Endpoint> endpoint) {
  Fd doorbell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell) return SystemError("eventfd", errno);
  return std::unique_ptr<Stream>(std::make_unique<RdmaStream>(std::move(endpoint), std::move(doorbell)));
}

RdmaStream::~RdmaStream() {
  Shutdown();
  if (endpoint_ != nullptr) Bury(std::move(endpoint_), true);
}

std::vector<int> RdmaStream::fds() const {
  std::vector<int> fds = endpoint_->fds();
  fds.push_back(doorbell_.get());
  return fds;
}

std::unique_ptr<Link> RdmaStream::BringLink(EventLoop& loop, LinkHandler& handler) {
  std::lock_guard lock(mutex_);
  return MakeRdmaLink(loop, std::move(endpoint_), handler);
}

// Each write is an edge for epoll, so the counter is never read.
void RdmaStream::Ring() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(doorbell_.get(), &one, sizeof(one));
}

Status RdmaStream::State() const {
  if (shut_) return Status(Code::kClosed, "the link to " + peer_ + " is closed");
  if (ended_) return Status(Code::kClosed, peer_ + " closed the link");
  if (spoilt_) return Status(Code::kCorrupt, peer_ + ": it sent a message that is not part of a stream");
  return endpoint_->failure();
}

// 0 from `move` means "nothing now": then an event must follow once that changes.
template <typename Move>
Result<size_t> RdmaStream::MoveOrSleep(Move move) {
  for (;;) {
    if (const size_t moved = move(); moved > 0) return moved;
    if (Status state = State(); !state.ok()) return state;
    endpoint_->TakeEvents();
    if (endpoint_->Poll() == 0 && endpoint_->Sleep()) return size_t{0};
  }
}

Result<size_t> RdmaStream::Read(std::byte* data, size_t size) {
  std::lock_guard lock(mutex_);
  if (shut_) return State();
  if (size == 0) return size_t{0};
  auto got = MoveOrSleep([&] { return TakeBytes(data, size); });
  reader_waits_ = got.ok() && *got == 0;
  if (writer_waits_ && endpoint_->may_send()) Ring();
  return got;
}

size_t RdmaStream::TakeBytes(std::byte* data, size_t size) {
  size_t taken = 0;
  while (taken < size && !ended_ && !spoilt_) {
    const Arrival* const front = endpoint_->Front();
    if (front == nullptr) break;
    const Kind kind = front->envelope == nullptr ? Kind::kFrame : front->envelope->kind;
    spoilt_ = kind != Kind::kBytes && kind != Kind::kCredit && kind != Kind::kFin;
    if (spoilt_) break;
    if (kind == Kind::kBytes) {
      const size_t bytes = std::min<size_t>(size - taken, front->bytes - read_of_front_);
      std::memcpy(data + taken, front->content + read_of_front_, bytes);
      taken += bytes;
      read_of_front_ += static_cast<uint32_t>(bytes);
      if (read_of_front_ < front->bytes) break;
    }
    ended_ = kind == Kind::kFin;
    read_of_front_ = 0;
    endpoint_->Pop();
  }
  if (!endpoint_->GiveCredit().ok()) return taken;  // said by the next call
  return taken;
}

Result<size_t> RdmaStream::Write(std::span<const iovec> pieces) {
  std::lock_guard lock(mutex_);
  if (Status state = State(); !state.ok()) return state;
  size_t wanted = 0;
  for (const iovec& piece : pieces) wanted += piece.iov_len;
  if (wanted == 0) return size_t{0};
  auto put = MoveOrSleep([&] { return PutBytes(pieces); });
  writer_waits_ = put.ok() && *put == 0;
  if (reader_waits_ && (endpoint_->Front() != nullptr || !endpoint_->failure().ok())) Ring();
  return put;
}

size_t RdmaStream::PutBytes(std::span<const iovec> pieces) {
  size_t put = 0, piece = 0, at = 0;
  while (piece < pieces.size() && endpoint_->may_send()) {
    uint32_t filled = 0;
    while (piece < pieces.size() && filled < kContentBytes) {
      const size_t bytes = std::min<size_t>(pieces[piece].iov_len - at, kContentBytes - filled);
      if (bytes > 0)
        std::memcpy(endpoint_->content() + filled, static_cast<std::byte*>(pieces[piece].iov_base) + at, bytes);
      filled += static_cast<uint32_t>(bytes);
      at += bytes;
      if (at < pieces[piece].iov_len) break;
      ++piece;
      at = 0;
    }
    if (filled == 0 || !endpoint_->SendEager({.kind = Kind::kBytes}, filled, kNoTag).ok()) break;
    put += filled;
  }
  return put;
}

void RdmaStream::Shutdown() {
  std::lock_guard lock(mutex_);
  if (shut_ || endpoint_ == nullptr) return;
  shut_ = true;
  endpoint_->Poll();
  [[maybe_unused]] const Status told = endpoint_->SendFin();  // a peer that is gone needs no end
  Ring();
}

}  // namespace byteps_like::rdma
