// The worker's engine: takes partitions from the framework, moves them over its channels (one per server shard), and
// tells when results have landed. One I/O thread, and codec threads once a tensor has a codec; callers never block
// except in Wait, in which they do the I/O thread's work; what they submit soon after that they send themselves.
//
// All public methods may be called from any thread. No lock is held while bytes move, nothing is allocated per
// partition and nothing calls Python on the way of the data.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/thread.h"
#include "csrc/engine/coding/coding.h"
#include "csrc/engine/engine_context.h"
#include "csrc/engine/keeping/kept.h"
#include "csrc/engine/keeping/kept_calls.h"
#include "csrc/engine/keeping/row_list.h"
#include "csrc/engine/operation.h"
#include "csrc/engine/region_table.h"
#include "csrc/engine/silence_watch.h"
#include "csrc/engine/tensor_table.h"
#include "csrc/gpu/kernel_table.h"
#include "csrc/transport/links/link.h"
#include "csrc/transport/memory/registered_memory.h"
#include "csrc/transport/memory/shared_buffer.h"

namespace byteps_like {

class Coder;
class Gpu;
class KeptKeys;
class Stager;
struct UserWork;

struct CodedCounters {
  uint64_t bytes_in = 0, bytes_out = 0;  // of what was encoded here: before, after
};

class Engine : private MemoryWatcher, private ChannelOwner, private PartSink {
 public:
  // Connects to every shard, up to 16 at a time; blocks up to connect_timeout (and 10 ms per rank) for each of these.
  static Result<std::unique_ptr<Engine>> Start(EngineOptions options, std::vector<ShardAddress> shards);
  ~Engine() override;
  Engine(const Engine&) = delete;

  // A new tensor of `dtype`; returns its id for Submit. Keys and rounds live as long as the engine.
  uint32_t Declare(DType dtype, const std::vector<PartitionSpec>& partitions);

  // The same of fp32 with a codec, made for the world of the view in force. Submit then takes kSum and kAverage, and
  // kBroadcast, which goes raw. kInvalid: the codec can't be summed, or not in partitions like these.
  Result<uint32_t> DeclareCoded(const std::vector<PartitionSpec>& partitions, const CodecUse& use);
  // Sets the error feedback and momentum of the tensor's rounds, from the next Submit on. Its arrays (as long as the
  // tensor) belong to the engine while an operation of the tensor is in flight. If they are in host memory, the CPU
  // encodes the tensor, even one on the GPU; if they are in device memory, rounds that the CPU encodes ignore them.
  void SetFeedback(uint32_t tensor, const Feedback& feedback);
  void Rescale(uint32_t tensor, float factor);   // of the residual, once, in the next round
  void Inherit(uint32_t tensor, uint32_t from);  // both from the tensor it was before it moved

  // The tensor has moved, or its name is over, and its last round on this rank, too, by its result or by GiveUp:
  // servers free its keys when all ranks have said so. The id is not for use any more, and may be that of another soon.
  void Retire(uint32_t tensor);
  size_t tensors() const;  // that something is held for

  // Memory that same-host servers may use in place, as long as another object owns it: the engine does not.
  void Register(const std::shared_ptr<SharedBuffer>& buffer);

  struct Request {
    uint32_t tensor = 0;
    std::byte* address = nullptr;            // of the whole tensor
    uint32_t first_part = 0, last_part = 0;  // [first, last)
    Op op = Op::kSum;
    uint32_t root = 0;
    int32_t priority = 0;
    uint64_t device = 0;   // where the whole tensor is on the GPU; 0: it isn't. `address` is then its mirror's
    uint64_t stream = 0;   // CUstream: its work at Submit is waited for
    bool movable = false;  // this rank knows where the tensor goes next; if all do, Operation::moves says so
  };
  // Starts the next round of the partitions. Their memory belongs to the engine until the operation is done. kInvalid
  // if one of them is still in flight; the job's error once it has failed.
  Result<std::shared_ptr<Operation>> Submit(const Request& request);

  // Has servers keep the values of a tensor, which then has no rounds; the spec is the same on all ranks. `text`: as in
  // docs/reference/protocol.md, "Store keys". `initial`: on the rank that sets the first value, the whole tensor, which
  // is copied. Done when all keys have a value; once is enough. kInvalid: it is encoded, or not declared in whole rows;
  // by the operation, too: on that rank, where no server has a value and none was given.
  struct KeepSpec {
    uint32_t tensor = 0;
    std::string text;
    uint32_t width = 1;             // elements of a row
    uint32_t root = kNobodysValue;  // the rank that sets the first value
    std::span<const std::byte> initial;
  };
  Result<std::shared_ptr<KeepOperation>> Keep(const KeepSpec& spec);
  struct KeepRequest {
    uint32_t tensor = 0;
    std::byte* address = nullptr;  // of the whole tensor
    std::vector<uint32_t> parts;
    int32_t priority = 0;
  };
  // Contributes partitions to what servers keep; done when they have said what became of it. Its memory stays as it is
  // until then. Many may be in flight; what is called here first is first for each partition.
  Result<std::shared_ptr<KeepOperation>> Contribute(const KeepRequest& request, const Note& note);
  // The same of what filters have made of partitions, each where that is.
  struct Payload {
    uint32_t part = 0;
    const std::byte* address = nullptr;
    uint32_t bytes = 0;  // at least one
  };
  Result<std::shared_ptr<KeepOperation>> ContributeFiltered(uint32_t tensor, const std::vector<Payload>& payloads,
                                                            const Note& note, int32_t priority);
  // The same of what brings nothing: a clock goes by, of a tensor or of a table at shards whose first partitions those
  // are.
  Result<std::shared_ptr<KeepOperation>> Tick(const KeepRequest& request, const Note& note);
  // Partitions of which servers have enough without this rank's next contribution: a version is about to be made. What
  // of it is finished may be sent as a block of its own.
  std::vector<uint32_t> CutOffParts(uint32_t tensor) const;
  // Reads partitions, of version `least` or newer, once their policy lets this rank.
  Result<std::shared_ptr<KeepOperation>> Read(const KeepRequest& request, uint32_t least);
  // The same through filters: to the operation's `ranges`. `request.address` means nothing.
  Result<std::shared_ptr<KeepOperation>> ReadFiltered(const KeepRequest& request, uint32_t least);
  // Has servers run a function on tensors whose partitions lie together, after what was called before. `text`: what to
  // do (csrc/wire/call.h). Done when all of their shards have answered.
  Result<std::shared_ptr<KeepOperation>> Call(const std::vector<uint32_t>& tensors, const std::string& text);
  // The same on a table, at the shards whose first partitions those are.
  Result<std::shared_ptr<KeepOperation>> CallTable(uint32_t tensor, const std::vector<uint32_t>& firsts,
                                                   const std::string& text);
  // Asks shards to save or restore what they keep (csrc/wire/saving.h), each request behind all contributions to its
  // keys that were made before, and behind the one before it to its shard. Done when all are answered.
  struct SavingRequest {
    FrameType type = FrameType::kState;  // or kCut
    uint32_t tensor = 0, part = 0;       // which lead to the shard
    std::vector<uint64_t> behind;        // keys there; none: that of the partition
    std::string text;
  };
  Result<std::shared_ptr<KeepOperation>> Ask(const std::vector<SavingRequest>& requests);

  // Has servers keep the rows of a table, which begins empty, whose buckets the partitions of a tensor are; of each
  // shard its first partition, whose key is that of the rows there, is in `parts`. Done when all are open.
  struct TableSpec {
    uint32_t tensor = 0;
    std::vector<uint32_t> parts;
    std::string text;
    uint32_t width = 1;  // elements of a row
  };
  Result<std::shared_ptr<KeepOperation>> KeepTable(const TableSpec& spec);
  // Some rows of a table at one of its shards, and where they are, or go, in their order.
  struct TableRows {
    uint32_t part = 0;
    std::shared_ptr<const RowList> rows;
    std::byte* address = nullptr;
    uint32_t bytes = 0;  // to be contributed: of the rows, or of what filters have made of them
  };
  // As Contribute, and as Read: rows that there are not are read as zeros.
  Result<std::shared_ptr<KeepOperation>> ContributeRows(uint32_t tensor, const std::vector<TableRows>& rows,
                                                        const Note& note, int32_t priority);
  Result<std::shared_ptr<KeepOperation>> FetchRows(uint32_t tensor, const std::vector<TableRows>& rows,
                                                   int32_t priority);
  // Reads what filters on servers have made of some rows, to KeepOperation::ranges.
  Result<std::shared_ptr<KeepOperation>> FetchFiltered(uint32_t tensor, const std::vector<TableRows>& rows,
                                                       int32_t priority);
  // Reads rows that there are, to KeepOperation::ranges.
  struct RowRange {
    uint64_t low = 0, high = 0;   // low <= id < high
    std::vector<uint64_t> since;  // of each part, only versions beyond that
    uint32_t most = 0;            // of more rows of a part the first ones; 0: all
  };
  Result<std::shared_ptr<KeepOperation>> FetchRange(const KeepRequest& request, RowRange range);

  // Allows tensors on this GPU from now on. Call it once, before the first Submit with `device`. `kernels`: those of
  // feedback. Without them, and for codecs without a GPU version, tensors on the GPU are encoded on the CPU.
  Status UseGpu(std::shared_ptr<Gpu> gpu, const KernelTable& kernels);
  // More of them, for tensors that are declared later.
  Status AddKernels(const KernelTable& kernels);
  // Whether the GPU can encode the tensor when the tensor is on it; its feedback should then be in device memory.
  bool EncodesOnGpu(uint32_t tensor) const;
  // Makes later work in `stream` wait for the operation. False: this driver can't do it (logged once), so call Wait
  // instead. Returns the operation's failure if it has failed. If it fails later, the stream goes on and the next
  // Submit returns the failure.
  Result<bool> WaitOnStream(const Operation& operation, uint64_t stream);
  uint64_t bytes_down() const;  // copied from the GPU,
  uint64_t bytes_up() const;    // and to it

  // Gives the operation up on this rank: it ends with `why` as soon as no thread or device works in its memory. For
  // operations that other ranks won't complete. The tensor must not be used afterwards, only retired. Does nothing once
  // the operation is done.
  void GiveUp(const std::shared_ptr<Operation>& operation, const Status& why);

  // Blocks until the operation is done (its status) or the deadline passes (kTimeout: it goes on).
  Status Wait(Operation& operation, Deadline deadline);

  // Another view is in force: rounds that begin from now on go by it. None is under way.
  void SetStanding(Standing standing) { context_.now = standing; }
  Standing standing() const { return context_.standing(); }

  // A server has died, and the job goes on without: its keys go to the other shards, and what is in flight goes on
  // there once all ranks have said so. Only with `outlives_servers`. With values that it kept, or if it was the last,
  // the job ends here with `why`.
  void GoOnWithout(uint32_t server, const std::string& why);

  // Takes effect from the next segment on; segments in flight go on. Ranks may differ in both: no result depends on
  // them.
  void SetCredit(size_t bytes) { context_.credit_bytes = bytes; }
  void SetSegment(size_t bytes) { context_.SetSegment(bytes); }
  size_t credit_bytes() const { return context_.credit_bytes; }
  size_t segment_bytes() const { return context_.segment_bytes; }

  void Fail(Code code, const std::string& text) override;  // ends the job here: every operation fails with this
  void Close();  // says goodbye to the servers; blocks up to a second; idempotent
  LinkCounters counters() const;
  // Bytes that were copied between private tensors and bounce buffers, either way.
  uint64_t bounced() const;
  CodedCounters coded() const;                    // by codec threads,
  CodedCounters gpu_coded() const;                // and by the GPU
  std::vector<std::string> peers() const;         // "server 0 shard 1 (shm://…)"
  std::map<std::string, uint32_t> links() const;  // how many, by transport

 private:
  explicit Engine(EngineOptions options);
  Status ConnectAll();
  Clock::duration Patience() const;  // to connect to one shard
  void Drain();
  void Arrived(Part& part, const Header& result) override;
  void Landed(Part& part, const Status& status) override;  // to its next stage, if it has one
  void Returned(Part& part, const Status& status) override;
  void Done(Part& part, const Status& status) override;
  void CameDown(Part& part) override;
  Result<std::shared_ptr<Operation>> SubmitFrom(const Request& request, UserWork* start);
  Result<UserWork*> RecordStart(const Request& request);
  Status ReserveStaging(uint32_t tensor);
  void ReleaseStaging(DeclaredTensor& tensor);  // under the mutex, as the next
  void Stage(DeclaredTensor& tensor, const Request& request);
  bool WatchStager();  // whether copies from or to the GPU are under way
  bool HasTwins(const DeclaredTensor& tensor) const;
  void BeginStaged(Part& part, UserWork* start);
  bool WaitDriving(const Operation& operation, Deadline deadline);  // false: the deadline has passed
  Status CheckRequest(const Request& request, const DeclaredTensor& tensor) const;
  using UseRows = std::function<void(const Part& part, const TableRows& rows, uint64_t order, KeepTicket ticket)>;
  Result<std::shared_ptr<KeepOperation>> BeginRows(uint32_t tensor, const std::vector<TableRows>& rows, UseRows use);
  using UseKept = std::function<void(const Part& part, uint64_t order, KeepTicket ticket)>;
  void UseKeys(const KeepRequest& request, const std::shared_ptr<KeepOperation>& operation, UseKept use);
  Result<KeepRequest> CheckKeep(const KeepSpec& spec);
  Result<std::shared_ptr<KeepOperation>> BeginKeeping(const KeepRequest& request);
  Result<std::shared_ptr<KeepOperation>> BeginContribution(const KeepRequest& request);
  using CallAt = std::pair<Channel*, KeepCall>;
  Result<std::shared_ptr<KeepOperation>> BeginCalls(std::vector<CallAt> calls, void (KeptKeys::*begin)(KeepCall));
  Status CheckTogether(const std::vector<uint32_t>& tensors) const;
  void Settled(const KeepTicket& ticket, const Status& status, KeepOutcome outcome) override;
  void CutOff(uint64_t key, bool is_so) override;
  void EndPart(Operation& operation);
  void Weigh(uint32_t tensor);  // so that links keep step by it
  void BeginCoded(Part& part);
  void Hand(Part& part) override;
  const std::string& CodecText(uint32_t number) override;
  void FailOnLoop(const Status& why) override;
  void OnMemoryGone(uint64_t id) override;
  SharedRegion RegionOf(const std::byte* at, size_t bytes) override { return regions_.Find(at, bytes); }
  BounceBuffers& bounces() override { return bounces_; }
  void OnRoom() override;
  void CloseOnLoop(std::function<void()> done);
  void KeepForDevice();
  void OnChannelClosed() override;
  void LetGo() override;

  // engine_losses.cc
  void LeaveOnLoop(uint32_t server, const Status& why);
  bool HasResidualsAt(uint32_t server) const;
  std::vector<Part*> AllParts() const;
  void HaveAdopted(Part& part);
  std::vector<Part*> KeptParts() const;
  void MoveKept(Part& part);
  Channel& AdopterOf(uint64_t what);
  void KeepForOthers(Part& part);

  EventLoop loop_;
  EngineContext context_;
  std::mutex reserving_;  // before mutex_
  std::vector<std::unique_ptr<Channel>> channels_;
  RegionTable regions_;

  mutable std::mutex mutex_;  // guards the members below; never held while bytes move
  ConditionVariable completed_;
  TensorTable tensors_;
  std::vector<Part*> submitted_;  // for the I/O thread to take
  std::unique_ptr<Coder> coder_;
  std::unique_ptr<Stager> stager_;  // set once, by UseGpu
  std::set<uint64_t> cut_off_;      // keys of which servers have enough without this rank
  std::atomic<bool> told_of_waits_{false};
  Status failure_;
  bool closed_ = false;

  std::vector<Part*> taken_;                   // the I/O thread's, like the members below
  std::deque<std::unique_ptr<Part>> retired_;  // what they hold others may lack, if a server dies
  size_t first_held_ = 0;                      // the first of them that still holds something,
  size_t retired_bytes_ = 0;                   // and what they all do
  BounceBuffers bounces_{regions_, context_.options.bounce_bytes};
  uint64_t order_ = 0;
  SilenceWatch silence_;
  std::function<void()> on_closed_;
  Thread thread_;
};

}  // namespace byteps_like
