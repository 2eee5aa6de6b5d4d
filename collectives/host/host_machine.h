// The work of one call in a group's shared memory, as a machine that never waits: Advance goes as far as it can.
// Private to collectives/host_*.
//
// begin   write what this rank brings, and the first piece of it if that is private; say so (`in`)
// agree   look at what each of the others brings; choose the route; the same on every rank, as all see the same posts
// work    by one of the routes
// leave   when nobody needs this rank's memory any more (`out`)
//
// Routes: pull    each rank takes what it needs from the others' regions or stage buffers and combines it by itself
//         share   each rank reduces its share of each piece; results go to regions, or to be fetched from the stage
//         direct  all tensors are in regions: parts of the reduction are done by whoever has time, to all results
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/host/host_area.h"
#include "collectives/host/host_layout.h"

namespace byteps_like {

struct HostTask {
  enum class Phase : uint8_t { kQueued, kPosted, kWorking, kLeaving, kDone };
  enum class Route : uint8_t { kPull, kShare, kDirect };

  HostCall call;
  Deadline deadline;
  Phase phase = Phase::kQueued;
  Route route = Route::kPull;
  bool direct_input = false, direct_output = false;  // as posted
  bool staging = false;                              // this rank's input goes through its stage
  bool copied_own = false;
  bool exposed = false;  // others are at work in this rank's memory until they have left
  uint64_t number = 0;   // of the call in its group
  int64_t launched = 0;  // TraceClock; 0 while not recording
  int64_t agreed = 0;    // likewise, when all had come
  uint64_t unit = 0;     // bytes of a section in one piece of the stage
  uint64_t stride = 0;   // bytes that one round of reading reduces
  uint64_t stages = 0, reductions = 0, rounds = 0;
  uint64_t staged = 0, reduced = 0, read = 0;  // of these
  uint64_t part = 0, parts = 0;                // bytes and number of the parts of a direct reduction
  Deadline grace;
  Status status;
  std::atomic<bool> cancelled{false};
  Status cancel;  // set before
  std::atomic<bool> done{false};
  HostTask* next = nullptr;
  class HostOperation* operation = nullptr;  // told when done; none: a Run looks at `done`
};

class HostMachine {
 public:
  HostMachine(LocalArea& area, uint32_t slot, std::vector<uint32_t> members, uint32_t me);

  uint32_t size() const { return static_cast<uint32_t>(members_.size()); }
  uint32_t me() const { return me_; }
  uint32_t slot() const { return slot_; }
  const std::vector<uint32_t>& members() const { return members_; }

  // Goes on with the oldest call, or only begins it; true if anything has changed.
  bool Advance(HostTask& task, bool only_begin);
  void Fail(HostTask& task, const Status& why);  // here and on the others
  void FailLate(HostTask& task);                 // its deadline has passed: names the late ranks

 private:
  struct Section {
    const std::byte* data;
    uint64_t bytes;
  };
  // A member's post, read once: another process may change it at any time, so the values that were checked are those
  // that are used.
  struct Brought {
    uint64_t call = 0, fingerprint = 0;
    uint8_t direct = 0;
    HostSection input{}, output{};  // this rank's section of `input`, where the kind has sections
  };
  // host_machine.cc
  bool Step(HostTask& task);
  bool Noticed(HostTask& task);
  bool Bereaved(HostTask& task);
  bool Go(HostTask& task);
  void EndFailed(HostTask& task, const Status& why);
  bool Leave(HostTask& task);
  HostMember& member(uint32_t j) const { return *words_[j]; }
  HostPost& post(uint32_t j, uint64_t call) const { return area_.layout().post(slot_, j, call); }
  HostSlot& slot_words() const { return area_.layout().slot(slot_); }
  bool AllReached(std::atomic<uint64_t> HostMember::* word, uint64_t value) const;
  bool AllOut(uint64_t value);
  void Publish(std::atomic<uint64_t> HostMember::* word, uint64_t value);
  void RingOthers();
  std::string name(uint32_t j) const;
  std::string Missing(const HostTask& task) const;
  std::string Describe(const HostPost& post) const;
  std::string Describe(const HostTask& task) const;

  // host_begin.cc
  bool Begin(HostTask& task);
  bool MayPost(const HostTask& task);
  Status Check(const HostCall& call) const;
  void WritePost(HostTask& task);
  void WriteSections(HostTask& task, HostPost& post);
  void PlaceInRegions(HostTask& task, HostPost& post);
  bool SectionsInRegions(const HostTask& task, HostPost& post);
  void AnnounceRegion(uint32_t region);
  bool Agree(HostTask& task);
  Brought Read(const HostCall& call, const HostPost& post) const;
  bool IsDirect(uint32_t j) const { return (brought_[j].direct & kDirectInput) != 0; }  // its input
  Status Compare(const HostTask& task, uint32_t j) const;
  Status CompareLengths(const HostTask& task, uint32_t j) const;
  Status ResolveAll(HostTask& task, bool* missing);
  Status Resolve(uint32_t j, const HostSection& section, std::byte** place);

  // host_pull.cc
  static bool Sectioned(HostKind kind);
  static bool Reduces(HostKind kind);
  static bool Feeds(const HostCall& call, uint32_t from, uint32_t to);
  Section OutgoingTo(const HostCall& call, uint32_t to) const;
  uint64_t Incoming(const HostCall& call, uint32_t from) const;
  bool IsStaged(const HostTask& task, uint32_t j) const;
  void PlanPull(HostTask& task);
  bool Pull(HostTask& task);
  void PlanStages(HostTask& task);
  void StagePiece(HostTask& task);
  bool MayStage(const HostTask& task);
  bool ReadRound(HostTask& task);
  void ReadReduced(HostTask& task);
  void ReadCopied(HostTask& task, uint32_t j);
  void CopyOwn(HostTask& task);
  std::byte* SourceBuffer(uint32_t j, const HostTask& task, uint64_t piece) const;
  std::byte* ResultBuffer(uint32_t j, const HostTask& task, uint64_t piece) const;

  // host_share.cc
  struct Range {
    uint64_t begin, end;
  };
  static Range ShareOf(uint64_t bytes, uint32_t i, uint32_t n);  // share `i` of `n` of a piece
  bool Divided(const HostCall& call) const;                      // each rank reduces a share: kShare or kDirect
  bool AllDirect(const HostTask& task) const;
  bool DoneByOthers(HostTask& task);
  void ChooseRoute(HostTask& task);
  void PlanShare(HostTask& task);
  bool Share(HostTask& task);
  bool ReduceShare(HostTask& task);
  bool FetchResults(HostTask& task);
  static void ReduceForOthers(const HostCall& call, std::span<void*> targets, std::span<const void*> sources,
                              uint64_t bytes, std::byte* result);
  bool MayReduce(const HostTask& task);
  void PlanDirect(HostTask& task);
  bool Direct(HostTask& task);
  uint64_t TakePart(const HostTask& task, uint32_t j);
  void ReducePart(HostTask& task, uint64_t part);
  static uint64_t Count(std::atomic<uint64_t>& word, uint64_t call);
  static uint32_t DivisorOf(const HostCall& call) { return call.op == Op::kAverage ? call.divisor : 1; }

  LocalArea& area_;
  const uint32_t slot_;
  const std::vector<uint32_t> members_;
  const uint32_t me_;
  std::vector<HostMember*> words_;
  uint64_t next_;      // number of the next call
  uint64_t identity_;  // hash of the members
  uint32_t seen_losses_ = 0;
  std::vector<Status> lost_;  // members
  bool any_lost_ = false;
  uint64_t source_use_[kHostBuffers] = {}, result_use_[kHostBuffers] = {};  // the last call that used each
  // Of the current call, by member:
  std::vector<uint8_t> agreed_;
  std::vector<Brought> brought_;
  uint32_t agreed_count_ = 0;
  std::vector<uint64_t> pieces_;          // that come from its stage
  std::vector<const std::byte*> source_;  // its input, or its section for this rank, where that can be read in place
  std::vector<std::byte*> target_;        // its output, where that can be written in place
  std::vector<std::shared_ptr<SharedBuffer>> held_;  // memory of others that is mapped for it

  std::vector<uint64_t> seen_out_;  // of each member's `out`
};

}  // namespace byteps_like
