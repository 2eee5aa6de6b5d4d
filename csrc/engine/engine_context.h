// The state that an engine shares with its channels, and the calls that they make to it. They know nothing else of each
// other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/in_step.h"
#include "csrc/engine/keeping/keep_operation.h"
#include "csrc/engine/operation.h"
#include "csrc/engine/region_table.h"
#include "csrc/transport/entrance/handshake.h"
#include "csrc/transport/links/link.h"
#include "csrc/transport/loop/event_loop.h"

namespace byteps_like {

// This process among the workers, in one view. Aligned so that clang, too, reads both numbers by one instruction.
struct alignas(2 * sizeof(uint32_t)) Standing {
  uint32_t rank = 0;
  uint32_t world_size = 1;
};

struct EngineOptions {
  Credentials credentials;
  Standing standing;           // in the first view
  Role role = Role::kWorker;   // of this process; a server has relays (server/relay), which dial other servers
  uint32_t shard = 0;          // whose relay it is
  uint32_t member = 0;         // this process's member number
  uint32_t local_workers = 1;  // on this host, with this one
  size_t segment_bytes = kDefaultSegment;
  size_t least_segment = 16u << 10;                   // of small partitions; a power of two
  size_t credit_bytes = 1u << 20;                     // per channel: how far pushes may be ahead of results
  size_t bounce_bytes = 16u << 20;                    // see BounceBuffers; 0: none
  uint32_t kernel_queue_bytes = kDefaultKernelQueue;  // Stream::LimitQueue of each link
  uint32_t codec_threads = 1;
  std::chrono::milliseconds lend_after{50};  // that credit, or a place in shared memory, is waited for at most
  double connect_timeout = 5;                // seconds to reach a server, at first and after a broken link
  double stall_warning = 5;
  double stall_timeout = 120;
  bool outlives_servers = false;  // Engine::GoOnWithout may be called
  double drain_timeout = 5;       // seconds for a GPU to end its copies, after a failure or at the end
  // A slow wait (fatal = false) or the end of the job. On the I/O thread; must not block.
  std::function<void(Code code, const std::string& text, bool fatal)> on_event;
};

// One shard of one server: where it can be reached, best first.
struct ShardAddress {
  uint32_t server = 0;
  uint32_t shard = 0;
  std::vector<std::string> urls;
  uint32_t member = 0;  // the server's member number
};

static_assert(std::atomic<Standing>::is_always_lock_free);

struct EngineContext {
  // The loop lives longer.
  EngineContext(EngineOptions with, EventLoop& on);
  void SetSegment(size_t bytes);  // rounded so that it never splits an element

  // In the view in force: for one round, or one message. Any thread.
  Standing standing() const { return now.load(std::memory_order_relaxed); }
  std::string name() const;  // of this process in texts: "rank 3"
  uint32_t traced() const;   // and in the timeline

  const EngineOptions options;
  std::atomic<Standing> now;
  std::atomic<size_t> credit_bytes, segment_bytes;  // in force now
  EventLoop& loop;
  InStep in_step;  // links by index of their channel; the I/O thread's once that runs
};

// An engine, as its channels see it. On the I/O thread; none of it blocks.
class ChannelOwner : public KeepSink {
 public:
  virtual void FailOnLoop(const Status& why) = 0;                        // ends the job here: every channel is aborted
  virtual void Arrived(Part& part, const Header& result) = 0;            // the next of its result, as far as it landed
  virtual void Landed(Part& part, const Status& status) = 0;             // its round on the wire is over, or failed
  virtual void OnChannelClosed() = 0;                                    // by Channel::Goodbye
  virtual void LetGo() = 0;                                              // of channels held back, and in step now
  virtual SharedRegion RegionOf(const std::byte* at, size_t bytes) = 0;  // the registered buffer that holds all of it
  virtual BounceBuffers& bounces() = 0;                                  // of all channels
  virtual void OnRoom() = 0;                                             // there is some in them again
  virtual const std::string& CodecText(uint32_t number) = 0;             // as sent to servers; lives as long as this

 protected:
  ~ChannelOwner() = default;
};

}  // namespace byteps_like
