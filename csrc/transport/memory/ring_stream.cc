#include "csrc/transport/memory/ring_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace byteps_like {

// One direction. Every index and flag has its own cache line. All accesses are sequentially consistent: an end that
// finds nothing to do sets its flag and looks again, the other end moves its index and looks at the flag; in a single
// total order one of the two sees the other, so no wake-up is lost.
struct RingDirection {
  alignas(64) std::atomic<uint64_t> head;          // bytes ever written
  alignas(64) std::atomic<uint64_t> tail;          // bytes ever read
  alignas(64) std::atomic<uint32_t> reader_waits;  // set by the reader, cleared by the end that rings
  alignas(64) std::atomic<uint32_t> writer_waits;
};

struct RingPage {
  RingDirection direction[2];  // [side]: written by the end of that side
  alignas(64) std::atomic<uint32_t> closed[2];
};

namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert((kRingBytes & (kRingBytes - 1)) == 0);

constexpr size_t kPageBytes = 4096;
static_assert(sizeof(RingPage) <= kPageBytes);

// The reader can begin before a long write is over: the writer shows its progress this often.
constexpr size_t kPublishBytes = 64u << 10;
// A waiting writer is woken when this much is free, not for every few bytes. The reader empties the ring before it
// waits itself, so this point is always reached.
constexpr size_t kWakeWriterBytes = kRingBytes / 4;
constexpr int kRingsAtOnce = 32;  // a socket has room for 200 or more

}  // namespace

size_t RingMemoryBytes() { return kPageBytes + 2 * kRingBytes; }

// Sparse, because the peer that asks for it has proved nothing yet.
Result<std::shared_ptr<SharedBuffer>> MakeRingMemory() { return SharedBuffer::CreateSparse(RingMemoryBytes()); }

Result<Doorbell> MakeDoorbell() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    return SystemError("socketpair", errno);
  }
  return Doorbell{Fd(ends[0]), Fd(ends[1])};
}

RingStream::RingStream(RingEnd end)
    : end_(std::move(end)),
      page_(reinterpret_cast<RingPage*>(end_.memory->data())),
      incoming_(end_.memory->data() + kPageBytes + kRingBytes * static_cast<size_t>(1 - end_.side)),
      outgoing_(end_.memory->data() + kPageBytes + kRingBytes * static_cast<size_t>(end_.side)) {}

std::vector<int> RingStream::fds() const {
  std::vector<int> fds{end_.doorbell.get()};
  if (end_.channel->fd() >= 0) fds.push_back(end_.channel->fd());
  return fds;
}

void RingStream::OnEvent(int fd) {
  told_ = true;
  may_be_gone_ = may_be_gone_ || fd == end_.channel->fd();
}

Result<size_t> RingStream::Read(std::byte* data, size_t size) {
  if (shut_.load()) return Closed();
  auto readable = Readable();
  if (readable.ok() && *readable == 0) readable = WaitForBytes();
  if (!readable.ok()) return readable.status();
  const size_t bytes = std::min(size, *readable);
  if (bytes == 0) return size_t{0};
  CopyOut(data, bytes);
  PublishTail();
  return bytes;
}

Result<size_t> RingStream::Write(std::span<const iovec> pieces) {
  if (shut_.load() || page_->closed[1 - end_.side].load() != 0) return Closed();
  size_t written = 0;
  for (const iovec& piece : pieces) {
    auto moved = WritePiece(static_cast<const std::byte*>(piece.iov_base), piece.iov_len, written == 0);
    if (!moved.ok()) return moved.status();
    written += *moved;
    if (*moved < piece.iov_len) break;
  }
  if (written > 0) PublishHead();
  return written;
}

Result<size_t> RingStream::WritePiece(const std::byte* from, size_t size, bool may_wait) {
  size_t done = 0;
  while (done < size) {
    auto space = Writable();
    if (space.ok() && *space == 0 && done == 0 && may_wait) space = WaitForSpace();
    if (!space.ok()) return space.status();
    if (*space == 0) break;
    const size_t bytes = std::min({size - done, *space, kPublishBytes});
    CopyIn(from + done, bytes);
    done += bytes;
    if (bytes == kPublishBytes) PublishHead();
  }
  return done;
}

Result<size_t> RingStream::Readable() const {
  const uint64_t bytes = page_->direction[1 - end_.side].head.load() - tail_;
  if (bytes > kRingBytes) return Corrupt("head");
  return static_cast<size_t>(bytes);
}

Result<size_t> RingStream::Writable() const {
  const uint64_t unread = head_ - page_->direction[end_.side].tail.load();
  if (unread > kRingBytes) return Corrupt("tail");
  return static_cast<size_t>(kRingBytes - unread);
}

Result<size_t> RingStream::WaitForBytes() {
  auto& waits = page_->direction[1 - end_.side].reader_waits;
  if (std::exchange(awaits_bytes_, true) && waits.load() == 0) CountRing();
  waits.store(1);
  auto readable = Readable();
  if (!readable.ok() || *readable > 0) return readable;
  const Status state = PeerState();
  if (state.ok()) return size_t{0};
  readable = Readable();  // it may have written before it went
  if (!readable.ok() || *readable > 0) return readable;
  return state;
}

Result<size_t> RingStream::WaitForSpace() {
  auto& waits = page_->direction[end_.side].writer_waits;
  if (std::exchange(awaits_space_, true) && waits.load() == 0) CountRing();
  waits.store(1);
  auto space = Writable();
  if (!space.ok() || *space > 0) return space;
  const Status state = PeerState();
  if (!state.ok()) return state;
  return size_t{0};
}

void RingStream::CopyIn(const std::byte* from, size_t bytes) {
  const size_t at = head_ & (kRingBytes - 1);
  const size_t first = std::min(bytes, kRingBytes - at);
  std::memcpy(outgoing_ + at, from, first);
  std::memcpy(outgoing_, from + first, bytes - first);
  head_ += bytes;
}

void RingStream::CopyOut(std::byte* to, size_t bytes) {
  const size_t at = tail_ & (kRingBytes - 1);
  const size_t first = std::min(bytes, kRingBytes - at);
  std::memcpy(to, incoming_ + at, first);
  std::memcpy(to + first, incoming_, bytes - first);
  tail_ += bytes;
}

void RingStream::PublishHead() {
  RingDirection& ring = page_->direction[end_.side];
  ring.head.store(head_);
  if (ring.reader_waits.load() != 0 && ring.reader_waits.exchange(0) != 0) RingPeer();
}

void RingStream::PublishTail() {
  RingDirection& ring = page_->direction[1 - end_.side];
  ring.tail.store(tail_);
  if (ring.writer_waits.load() == 0) return;
  const uint64_t unread = ring.head.load() - tail_;
  if (unread > kRingBytes - kWakeWriterBytes) return;
  if (ring.writer_waits.exchange(0) != 0) RingPeer();
}

// Asking the channel is a system call, for when it may have something to say.
Status RingStream::PeerState() {
  const auto& closed = page_->closed[1 - end_.side];
  if (closed.load() != 0) return Closed();
  if (!may_be_gone_) return {};
  if (end_.channel->alive()) {
    may_be_gone_ = !told_;
    return {};
  }
  if (closed.load() != 0) return Closed();  // it said so just before it went
  return Status(Code::kPeerLost, peer() + " died");
}

Status RingStream::Closed() const {
  return Status(Code::kClosed, shut_.load() ? "the link to " + peer() + " is closed" : peer() + " closed the link");
}

Status RingStream::Corrupt(const char* what) const {
  return Status(Code::kCorrupt, peer() + ": the " + what + " of a shared ring is out of range");
}

void RingStream::RingPeer() const {
  constexpr char kRing = 'r';
  // Full: it has been rung many times and hasn't looked.
  [[maybe_unused]] const ssize_t sent = ::send(end_.peer_doorbell.get(), &kRing, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// Each ring is an edge for epoll, read or not; the bytes are taken, many at a time, so that there is always room for
// the next. There are as many as waits that have ended.
void RingStream::CountRing() {
  char rings[kRingsAtOnce];
  if (++rings_ < kRingsAtOnce) return;
  rings_ = 0;
  [[maybe_unused]] const ssize_t taken = ::recv(end_.doorbell.get(), rings, sizeof(rings), MSG_DONTWAIT);
}

void RingStream::Shutdown() {
  if (shut_.exchange(true)) return;
  page_->closed[end_.side].store(1);
  ::shutdown(end_.peer_doorbell.get(), SHUT_RDWR);  // wakes the end that watches its inside
  ::shutdown(end_.doorbell.get(), SHUT_RDWR);
}

Result<std::shared_ptr<SharedBuffer>> RingStream::TakeBuffer() {
  auto fd = end_.channel->Take();
  if (!fd.ok()) return fd.status();
  return SharedBuffer::Map(fd->Release());
}

}  // namespace byteps_like
