// Collectives among ranks that all share one host, in memory that all of them have mapped: no link on the data path.
//
// A HostArea is one process's view of the memory that the ranks of one world on one host share; the lowest of them
// makes it (HostAreaBytes) and passes it on. A HostGroup is a process group (lane) whose ranks all lie in the area. The
// n-th call of a rank on a group meets the n-th call of the others; calls of different groups are independent of each
// other, in whatever order they are launched. Calls of one group run one after another.
//
// Each word that two ranks share is written by only one of them (host_layout.h). So a process that dies, at whatever
// point, leaves nothing half done that could hold up the others.
//
// Tensors may lie in regions (memory that peers can map: Communicator::Allocate) or in private memory, as each rank
// chooses: regions are read and written in place by the others, private memory goes through the area in pieces that
// stay in the cache. Contributions are always combined in the order of the group's ranks: results are bit-identical on
// all ranks and from run to run.
//
// Failures are typed and name the rank: kMismatch with both descriptions on every rank, kTimeout with the missing
// ranks, kPeerLost. After a mismatch or a timeout the group goes on with the next call; after a lost peer all its calls
// fail.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/completion.h"
#include "collectives/program.h"
#include "csrc/base/dtype.h"
#include "csrc/transport/memory/shared_buffer.h"

namespace byteps_like {

// Append only: the values cross the binding.
enum class HostKind : uint8_t {
  kAllReduce = 0,
  kReduceScatter = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kReduce = 4,
  kScatter = 5,
  kGather = 6,
  kAllToAll = 7,
  kBarrier = 8,
};
inline constexpr int kHostKindCount = 9;

inline constexpr uint32_t kMostHostRanks = 128;    // that one area can hold
inline constexpr uint32_t kMostHostGroups = 8192;  // at a time in one area, if the process may map so much
inline constexpr uint32_t kLeastHostGroups = 64;   // with less there is none

// One call as its rank sees it. Sizes are in bytes, multiples of the element's size. Chunks are offsets from `input` or
// `output` and may lie anywhere, so a list of tensors is one call too. Input and output are disjoint, or one is in the
// other's place: all of it (all_reduce, reduce, broadcast; all_to_all whose sections lie alike in both), or this rank's
// own section of the longer one.
//
//   kind             bytes                  input                       output                        chunks
//   kAllReduce       of the tensor          bytes                       bytes
//   kReduce          of the tensor          bytes                       bytes, at the root
//   kBroadcast       of the tensor          bytes, at the root          bytes (at the root: or null)
//   kAllGather       of this rank's section bytes                       all sections                  output
//   kGather          of this rank's section bytes                       all sections, at the root     output, at the
//   root kReduceScatter   of this rank's section all sections                bytes                         input
//   kScatter         of this rank's section all sections, at the root   bytes                         input, at the
//   root kAllToAll        ignored                a section for each rank     a section from each rank      both
//   kBarrier         ignored
struct HostCall {
  HostKind kind{};
  DType dtype{};
  Op op{};
  uint32_t divisor = 1;  // of averages
  uint32_t root = 0;     // group rank
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  uint64_t bytes = 0;
  std::span<const Chunk> input_chunks{}, output_chunks{};  // one for each rank of the group; Launch copies them
  double timeout = 1800;                                   // seconds
  uint64_t lane = 0;                                       // for the timeline
};

// Memory that ranks of a host have in common besides the area. Any thread; never blocks.
class RegionResolver {
 public:
  struct Place {
    uint32_t region = 0;  // 0: none
    uint64_t offset = 0;
  };
  struct View {
    std::byte* data = nullptr;  // nullptr: not here yet; HostArea::Wake follows when it is
    uint64_t bytes = 0;
    std::shared_ptr<SharedBuffer> buffer{};  // keeps it mapped; may be nullptr where it stays anyway
    bool refused = false;                    // it will never be here
  };
  virtual ~RegionResolver() = default;
  // Where in this process's own regions these bytes lie; region 0 if they don't.
  virtual Place Find(const std::byte* data, uint64_t bytes) = 0;
  // Region `id` of another rank (index in the area), as mapped here.
  virtual View Resolve(uint32_t rank, uint32_t id) = 0;
  // Sees to it that the rank can resolve this process's region `id`. Called before each use: cheap when it can already.
  virtual void Announce(uint32_t rank, uint32_t id) = 0;
  // A rank is waited for that has not come to the area: if it has died, HostArea::Fail follows.
  virtual void Reach(uint32_t rank) = 0;
};

struct HostOptions {
  std::shared_ptr<SharedBuffer> area;       // of MakeHostArea(names.size()), zero-filled
  uint32_t index = 0;                       // of this process in it
  std::vector<std::string> names;           // by index, for messages: "rank 3 (host x, pid 123)"
  std::shared_ptr<RegionResolver> regions;  // none: all memory is private
  double lock_timeout = 10;                 // seconds that another rank may take to make or leave a group
};

// Address space: pages are taken when they are first used.
size_t HostAreaBytes(size_t ranks, uint32_t groups = kMostHostGroups);
uint32_t HostGroupsIn(size_t bytes, size_t ranks);  // 0: it is no area for so many ranks
// For as many groups as the limits of this process let (RLIMIT_AS, RLIMIT_FSIZE). kCapacity: not even for a few.
Result<std::shared_ptr<SharedBuffer>> MakeHostArea(size_t ranks);

// A process group within the area. Any thread; the order of a rank's calls is the order in which they were made.
class HostGroup {
 public:
  virtual ~HostGroup() = default;  // gives its place in the area back; calls in flight fail with kClosed
  // Makes the call on the caller's thread, blocking until it is done. Takes no memory. `interrupted`, asked about five
  // times a second, gives it up on all ranks by returning true.
  virtual Status Run(const HostCall& call, const std::function<bool()>& interrupted = nullptr) = 0;
  // Never blocks. A thread of the area makes the call, or the thread that waits for it. All failures are reported by
  // the completion.
  virtual std::shared_ptr<Completion> Launch(const HostCall& call) = 0;
  // Fails the call on all ranks with `why`; nothing once it is done.
  virtual void Cancel(const std::shared_ptr<Completion>& call, const Status& why) = 0;
};

class HostArea {
 public:
  static Result<std::unique_ptr<HostArea>> Attach(HostOptions options);
  virtual ~HostArea() = default;  // Close; the groups are gone by then

  // The group of a lane among `members` (area indices, in the order of group ranks, this process among them). One
  // object per lane: asked again, the same. kInvalid if the lane exists with other members, kCapacity if the area is
  // full.
  virtual Result<std::shared_ptr<HostGroup>> Group(uint64_t lane, std::vector<uint32_t> members) = 0;
  // A rank is gone: all calls with it, now and later, fail with `why`, here and on the others of the host. From any
  // thread. (Without it a process that has died is found by those that wait for it, after some tens of milliseconds.)
  virtual void Fail(uint32_t index, const Status& why) = 0;
  virtual void CancelLane(uint64_t lane, const Status& why) = 0;  // fails its calls in flight on all ranks
  virtual void Wake() = 0;                                        // a region can be resolved now
  virtual void Close(const Status& reason) = 0;                   // this rank is gone, for all; idempotent
};

}  // namespace byteps_like
