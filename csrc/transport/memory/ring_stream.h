// A stream through shared memory: two single-producer single-consumer byte rings, one per direction, and a doorbell per
// end. Carries inproc (both ends in this process) and shm (the ends in two processes).
//
// A doorbell is a socket pair: an end that rings writes to an open file of its own, without waiting, so nothing that
// the other end does to its descriptors can block it (an eventfd's O_NONBLOCK would be shared with the other end).
//
// A doorbell is rung only when the other end has said that it waits. The other end's writes to the shared page are not
// trusted: its index is checked before it is used, and a wrong value closes the stream with kCorrupt.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "csrc/base/fd.h"
#include "csrc/transport/memory/shared_buffer.h"
#include "csrc/transport/stream.h"

namespace byteps_like {

// Each way, a power of two. Measured with bench/native/transport_bench.cc: 256 KiB gives half the throughput, more than
// 1 MiB no more.
inline constexpr size_t kRingBytes = 1u << 20;

// Carries what the rings can't: descriptors, and the news that the other end died without a goodbye.
class PeerChannel {
 public:
  virtual ~PeerChannel() = default;
  virtual bool alive() const = 0;  // any thread
  virtual int fd() const = 0;      // readable when alive() may have changed; -1 if it never does
  virtual Status Pass(int fd) = 0;
  virtual Result<Fd> Take() = 0;
  virtual std::string peer() const = 0;
};

struct RingPage;  // the shared indices and flags of both directions

struct RingEnd {                         // the parts of one end of a ring stream
  std::shared_ptr<SharedBuffer> memory;  // RingMemoryBytes() of them
  int side = 0;                          // 0 or 1: which of the two ends
  Fd doorbell;                           // the inside of ours
  Fd peer_doorbell;                      // the button of the other end's
  std::unique_ptr<PeerChannel> channel;
};

size_t RingMemoryBytes();
Result<std::shared_ptr<SharedBuffer>> MakeRingMemory();  // zero-filled: both rings empty
struct Doorbell {
  Fd inside;  // readable when it has been rung
  Fd button;
};
Result<Doorbell> MakeDoorbell();

class RingStream final : public Stream {
 public:
  explicit RingStream(RingEnd end);
  ~RingStream() override { Shutdown(); }

  Result<size_t> Read(std::byte* data, size_t size) override;
  Result<size_t> Write(std::span<const iovec> pieces) override;
  std::vector<int> fds() const override;
  void OnEvent(int fd) override;
  void Shutdown() override;
  std::string peer() const override { return end_.channel->peer(); }
  std::string source() const override { return {}; }
  bool shares_memory() const override { return true; }
  Status PassBuffer(const SharedBuffer& buffer) override { return end_.channel->Pass(buffer.fd()); }
  Result<std::shared_ptr<SharedBuffer>> TakeBuffer() override;

 private:
  Result<size_t> Readable() const;
  Result<size_t> Writable() const;
  Result<size_t> WritePiece(const std::byte* from, size_t size, bool may_wait);
  Result<size_t> WaitForBytes();
  Result<size_t> WaitForSpace();
  void CopyIn(const std::byte* from, size_t bytes);
  void CopyOut(std::byte* to, size_t bytes);
  void PublishHead();
  void PublishTail();
  Status PeerState();
  void CountRing();
  Status Closed() const;
  Status Corrupt(const char* what) const;
  void RingPeer() const;

  RingEnd end_;
  RingPage* page_;
  std::byte* incoming_;
  std::byte* outgoing_;
  uint64_t head_ = 0;  // of the outgoing ring: ours, so never read back from shared memory
  uint64_t tail_ = 0;  // of the incoming ring
  bool awaits_bytes_ = false, awaits_space_ = false;  // we have said so, and look whether we were rung for it
  int rings_ = 0;                                     // that may lie in our doorbell
  bool told_ = false;                                 // of events
  bool may_be_gone_ = true;                           // the channel has had one since we asked it, for all we know
  std::atomic<bool> shut_{false};
};

}  // namespace byteps_like
