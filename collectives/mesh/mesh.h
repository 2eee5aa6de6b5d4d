// The mesh: one process's links to the other workers of its world, made when first needed. A pair has two ways to each
// other, a link each: the main one, and one for messages that must not wait behind what the main one carries.
//
// Everything runs on one event loop. The first peer that needs a link dials; if both dial at once, the lower rank's
// connection is kept. A link that breaks is not made again: the peer is lost, and stays lost until the next world.
//
// SetWorld, counters, links and urls may be called from any thread, the rest on the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "csrc/transport/entrance/handshake.h"
#include "csrc/transport/links/link.h"
#include "csrc/transport/memory/shared_buffer.h"

namespace byteps_like {

enum class Way : uint8_t { kMain = 0, kUrgent = 1 };
inline constexpr size_t kWays = 2;

struct WayTo {
  WayTo(uint32_t rank = 0, Way which = Way::kMain) : peer(rank), way(which) {}  // a bare rank means the main way
  auto operator<=>(const WayTo&) const = default;
  uint32_t peer;  // world rank
  Way way;
};

// The handler of a mesh's frames: like LinkHandler, but by world rank and way instead of by link. The same rules hold.
class MeshHandler {
 public:
  virtual ~MeshHandler() = default;
  virtual std::byte* PlaceFor(WayTo from, const Header& header) = 0;
  virtual void OnFrame(WayTo from, const Header& header, std::byte* payload) = 0;
  virtual bool NextFrame(WayTo to, Outgoing& next) = 0;
  virtual void OnSent(WayTo to, const Header& header) = 0;
  // Answers Mesh::Withdraw: the peer no longer writes there.
  virtual void OnWithdrawn(WayTo /*from*/, const OfferId& /*what*/) {}
  // A link is closed: nothing more is written by it, wherever that was offered. OnPeerLost may follow.
  virtual void OnLinkGone(WayTo /*from*/) {}
  // Once per peer and world: a link to it broke, or it can't be reached. No link to it is left. kPeerLost names rank,
  // host, pid and cause; kClosed after its goodbye.
  virtual void OnPeerLost(uint32_t peer, const Status& why) = 0;
  // The peer has mapped its region `id` into this process too.
  virtual void OnRegion(uint32_t peer, uint32_t id, std::shared_ptr<SharedBuffer> buffer) = 0;
  // The peer's region `id` is gone, or (`refused`) can't be passed: no shared memory on this link, or no descriptors.
  virtual void OnNoRegion(uint32_t /*peer*/, uint32_t /*id*/, bool /*refused*/) {}
};

struct MeshOptions {
  std::string job;
  std::string secret;
  std::vector<std::string> urls;  // to listen on: "tcp://10.0.0.2:0", "shm://unique", "inproc://unique"
  double connect_timeout = 5;     // seconds to reach a peer that has listened before the world was formed
  uint32_t kernel_queue_bytes = kDefaultKernelQueue;  // Stream::LimitQueue of each link
  double stall_warning = 5, stall_timeout = 120;      // for Stream::LimitSilence
};

struct PeerAddress {
  std::vector<std::string> urls;  // as this process may use them, best first
  std::string host_id;            // equal where memory can be shared
  std::string name;               // for messages: "rank 3 (host x, pid 123)"
  uint32_t number = 0;            // its member number
};

struct MeshWorld {
  Incarnation incarnation{};
  uint32_t epoch = 0;
  uint32_t rank = 0;
  std::vector<PeerAddress> peers;  // by world rank, this process included
  uint32_t number() const { return peers[rank].number; }
};

class Mesh {
 public:
  static Result<std::unique_ptr<Mesh>> Listen(MeshOptions options, MeshHandler& handler);
  virtual ~Mesh() = default;  // stops the loop; no call to the handler follows

  virtual std::vector<std::string> urls() const = 0;  // as bound; to be published to the peers
  virtual void SetWorld(MeshWorld world) = 0;         // once; links of other epochs are refused from here on
  virtual const MeshWorld& world() const = 0;         // after SetWorld
  virtual EventLoop& loop() = 0;
  virtual LinkCounters counters() const = 0;  // of all links
  virtual LinkCounters counters(uint32_t peer) const = 0;
  virtual std::map<std::string, uint32_t> links() const = 0;  // how many there are now, by transport

  virtual void Kick(WayTo to) = 0;  // there is something to send: dials if need be
  // Same host only, by the main way. nullptr: the region is gone.
  virtual void PassRegion(uint32_t peer, uint32_t id, std::shared_ptr<SharedBuffer> buffer) = 0;
  virtual bool SameHost(uint32_t peer) const = 0;
  // Cuts the links to a peer that broke a rule: OnPeerLost follows, from the loop.
  virtual void Cut(uint32_t peer, const Status& why) = 0;
  // A peer is known to have died, though its links may not show it, or there are none: OnPeerLost follows, if it has
  // not been called. On the loop.
  virtual void Lose(uint32_t peer, const Status& why) = 0;
  // The payload that comes this way right now goes elsewhere (Link::Redirect; kAnywhere will do).
  virtual void Redirect(WayTo from, std::byte* place) = 0;
  // Link::takes_offers, Offer and Withdraw of the link; false if there is none.
  virtual bool TakesOffers(WayTo from) = 0;
  virtual bool Offer(WayTo from, const Header& about, std::byte* place, uint64_t bytes) = 0;
  virtual bool Withdraw(WayTo from, const OfferId& what) = 0;
  // The payloads of frames that are not sent whole are copied: their memory may change (Link::Keep).
  virtual void Keep(WayTo to) = 0;
  // Link::KeepShort of the link, if there is one.
  virtual bool KeepShort(WayTo to, bool on) = 0;
  virtual void Goodbye(std::function<void()> done) = 0;  // in order, to all; `done` after at most a second
  // Admits no more peers. Not on the loop's thread: blocks for handshakes under way, whose connections are cut.
  virtual void StopListening() = 0;
};

}  // namespace byteps_like
