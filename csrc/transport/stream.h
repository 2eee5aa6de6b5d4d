// A stream: a reliable, ordered, non-blocking pipe of bytes between two ends. The seam below which transports differ
// (tcp, shm, inproc; chaos wraps any of them); StreamLink puts frames on top. A transport that moves whole frames by
// itself (rdma) is a stream for the handshake, and then brings a link of its own.
//
// Entry        blocks   threads                         errors
// Read         never    the owning loop's thread only   kClosed at the end of the peer's bytes, kSystem, kPeerLost
// ReadAhead    never    the owning loop's thread only   the same
// Peek         never    the owning loop's thread only   the same
// Write        never    the owning loop's thread only   the same
// fds          never    any                             none
// OnEvent      never    the owning loop's thread only   none
// KeepShort    never    the owning loop's thread only   none
// LimitQueue   never    the owning loop's thread only   none
// LimitSilence never    the owning loop's thread only   none
// BringLink    never    the owning loop's thread only   none
// UseKeys      never    before anything is read         none
// Shutdown     never    any; wakes both ends            none
// destructor   never    after the loop forgot its fds   none
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/status.h"

namespace byteps_like {

inline constexpr uint32_t kDefaultKernelQueue = 64u << 10;

// Stream::LimitSilence where stalls are told after `stall_timeout`: later than that, as a peer that is stopped and
// takes nothing has stalled, its connection is not broken. With the defaults 155 s.
inline double SilenceLimit(double stall_warning, double stall_timeout) { return 1.25 * stall_timeout + stall_warning; }

class EventLoop;
class Link;
class LinkHandler;
class SharedBuffer;

// What a stream that encrypts makes its keys of.
struct StreamKeys {
  std::string secret;                       // the job's
  std::array<std::byte, 16> incarnation{};  // of the job; the accepting end takes the peer's
};

class Stream {
 public:
  virtual ~Stream() = default;

  // Streams that encrypt need keys before they move anything. The first reads and writes then return 0 until both ends
  // have proven them, and fail with kRefused if one can't. Only the first keys count.
  virtual void UseKeys(const StreamKeys&) {}
  // What the two ends of an encrypted connection, and nobody else, know of it, once something was read or written: the
  // handshake of links proves that too. Empty: nothing is encrypted.
  virtual std::span<const std::byte> binding() const { return {}; }
  // Whether changed bytes never arrive: payloads need no checksums then.
  virtual bool authenticates() const { return false; }

  // Moves up to `size` bytes; 0 means "nothing now": an event on one of fds() follows when there is more.
  virtual Result<size_t> Read(std::byte* data, size_t size) = 0;
  // The same, and what comes after `size` bytes into `ahead`, if that costs less than another call. The result counts
  // both.
  virtual Result<size_t> ReadAhead(std::byte* data, size_t size, std::span<std::byte> /*ahead*/) {
    return Read(data, size);
  }
  // Looks at the first bytes that have come, which Read gives again; 0: none yet. Only before anything was read, and
  // only if it `peeks`. After an event call it until it returns no more than before.
  virtual bool peeks() const { return false; }
  virtual Result<size_t> Peek(std::span<std::byte> room);
  // The stream beneath one that encrypts, which is of no use after it; nullptr: none. Before anything was read or
  // written.
  virtual std::unique_ptr<Stream> TakeInner() { return nullptr; }
  // Takes a part of the bytes, from the first on; 0 means "nothing now", likewise. What was not taken must be offered
  // again, unchanged, by the next call: some of it may be on its way.
  virtual Result<size_t> Write(std::span<const iovec> pieces) = 0;

  // File descriptors to watch with EPOLLIN | EPOLLOUT | EPOLLET; after any event, read and write until both return 0.
  virtual std::vector<int> fds() const = 0;

  // One of them has an event. Who calls it for one calls it for all; that saves system calls.
  virtual void OnEvent(int /*fd*/) {}

  // A link that carries frames by other means than the bytes of this stream: it takes over all that the stream has,
  // which is then destroyed. After the handshake, when both ends have read all that the other wrote. nullptr: none.
  virtual std::unique_ptr<Link> BringLink(EventLoop& loop, LinkHandler& handler);

  // Ends both directions at once; the peer reads the bytes written before, then kClosed.
  virtual void Shutdown() = 0;

  // The other end, for messages, after the transport's name: "tcp 10.0.0.2:4711", "shm pid 123".
  virtual std::string peer() const = 0;

  // Where the peer is, which it can't choose at will: its address without the port. Empty: a process of this very user
  // on this host.
  virtual std::string source() const {
    const std::string name = peer();
    return name.substr(0, name.rfind(':'));
  }

  // Keeps the queue between the ends short, or as long as throughput needs it; true if it is kept short now. Only for
  // streams whose path is slow enough for that to matter.
  virtual bool KeepShort(bool) { return false; }

  // The longest segment, up to this one, that leaves none of the kernel's sends partly filled.
  virtual size_t Filling(size_t segment) const { return segment; }

  // Limits the bytes that may lie unsent in the kernel, where later messages can't overtake them; 0: the kernel's
  // default. Only for streams that have such a queue.
  virtual void LimitQueue(uint32_t /*bytes*/) {}

  // How long sent bytes may go unacknowledged before the connection counts as broken; 0: the kernel's default. Only for
  // streams between hosts, because a host that vanishes says nothing.
  virtual void LimitSilence(double /*seconds*/) {}

  // Shared memory with the peer: passes the buffer's descriptor along (sender), and takes the next one that the peer
  // passed (receiver; call only after a frame announced it). kInvalid where the transport has no shared memory.
  virtual bool shares_memory() const { return false; }
  virtual Status PassBuffer(const SharedBuffer& buffer);
  virtual Result<std::shared_ptr<SharedBuffer>> TakeBuffer();
};

class Listener {
 public:
  virtual ~Listener() = default;
  // Blocks until a peer connects or the deadline passes (kTimeout); Close from another thread ends it with kClosed.
  virtual Result<std::unique_ptr<Stream>> Accept(Deadline deadline) = 0;
  virtual std::string url() const = 0;  // with the port that was really bound
  virtual void Close() = 0;
};

// Addresses are URLs: "tcp://10.0.0.2:0", "shm://name" (abstract unix socket), "inproc://name",
// "rdma://10.0.0.2:0?qps=2" (rdma/options.h). "tls+tcp://10.0.0.2:0" is encrypted. A "chaos+" prefix
// and a query wrap any of them:
// "chaos+tcp://10.0.0.2:4711?seed=7&delay_ms=2&rate=1e6&drop=0.001&corrupt=0.001&stall_ms=50".
struct Transport {
  std::string_view scheme;
  Status (*is_viable)();  // why it can't run here: kCapacity if that may pass
  Result<std::unique_ptr<Stream>> (*connect)(const std::string& url, Deadline deadline);  // blocks
  Result<std::unique_ptr<Listener>> (*listen)(const std::string& url);
  std::span<const std::string_view> options = {};  // names that its own addresses may have in their query
  bool encrypts = false;  // connect and listen are those of the clear transport, whose streams are wrapped
};

std::span<const Transport> Transports();  // the table: one row per transport
Result<std::unique_ptr<Stream>> Connect(const std::string& url, Deadline deadline);
Result<std::unique_ptr<Listener>> Listen(const std::string& url);

// Blocking helpers for handshakes, before a loop owns the stream.
Status ReadFull(Stream& stream, std::span<std::byte> data, Deadline deadline);
Status WriteFull(Stream& stream, std::span<const std::byte> data, Deadline deadline);

}  // namespace byteps_like
