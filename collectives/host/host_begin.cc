// Beginning a call: posts this rank's contribution, and compares those of the others.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "collectives/host/host_machine.h"
#include "csrc/base/trace.h"

namespace byteps_like {
namespace {

// Up to here everything goes through the stage: a copy costs less than waiting until all ranks have read.
constexpr uint64_t kSmall = 16u << 10;

constexpr const char* kKindNames[kHostKindCount] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
                                                    "scatter",    "gather",         "all_to_all", "barrier"};

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}

bool HasRoot(HostKind kind) {
  return kind == HostKind::kBroadcast || kind == HostKind::kReduce || kind == HostKind::kScatter ||
         kind == HostKind::kGather;
}

// A hash of everything that must be equal on all ranks. It includes the lengths that every rank knows; the others are
// compared in pairs.
uint64_t Fingerprint(const HostCall& call, uint64_t identity) {
  uint64_t hash = Mix(identity, static_cast<uint64_t>(call.kind));
  if (call.kind == HostKind::kBarrier) return hash;
  hash = Mix(hash, static_cast<uint64_t>(call.dtype) << 32 | static_cast<uint64_t>(call.op) << 16 | call.root);
  switch (call.kind) {
    case HostKind::kAllReduce:
    case HostKind::kReduce:
    case HostKind::kBroadcast:
      return Mix(hash, call.bytes);
    case HostKind::kAllGather:
      for (const Chunk& chunk : call.output_chunks) hash = Mix(hash, chunk.bytes);
      return hash;
    case HostKind::kReduceScatter:
      for (const Chunk& chunk : call.input_chunks) hash = Mix(hash, chunk.bytes);
      return hash;
    default:
      return hash;
  }
}

}  // namespace

bool HostMachine::MayPost(const HostTask& task) {
  return task.number <= kHostRing || AllOut(PackWord(task.number + 1 - kHostRing, 0));
}

bool HostMachine::Begin(HostTask& task) {
  if (task.number == 0) {
    task.number = next_++;
    std::fill(agreed_.begin(), agreed_.end(), uint8_t{0});
    agreed_count_ = 0;
    return true;  // another may have failed it already
  }
  if (!MayPost(task)) return false;
  if (const Status valid = Check(task.call); !valid.ok()) {
    Fail(task, valid);
    return true;
  }
  WritePost(task);
  task.phase = HostTask::Phase::kPosted;
  PlanStages(task);
  if (task.staging && task.stages > 0 && MayStage(task)) StagePiece(task);
  Publish(&HostMember::in, PackWord(task.number, 1 + task.staged));
  return true;
}

Status HostMachine::Check(const HostCall& call) const {
  const auto refuse = [](const std::string& what) { return Status(Code::kInvalid, "host collective: " + what); };
  if (static_cast<int>(call.kind) >= kHostKindCount) return refuse("unknown kind of call");
  if (HasRoot(call.kind) && call.root >= size())
    return refuse("root " + std::to_string(call.root) + " is not in a group of " + std::to_string(size()));
  if (static_cast<int>(call.dtype) >= kDTypeCount || static_cast<int>(call.op) >= kOpCount) {
    return refuse("unknown dtype or operation");
  }
  if (Reduces(call.kind) && !Supports(call.op, call.dtype)) {
    return refuse(std::string(NameOf(call.op)) + " of " + NameOf(call.dtype));
  }
  if (call.divisor == 0) return refuse("the divisor is 0");
  const bool at_root = !HasRoot(call.kind) || call.root == me_;
  const bool takes_inputs = Sectioned(call.kind) && at_root;
  const bool takes_outputs = call.kind == HostKind::kAllToAll || call.kind == HostKind::kAllGather ||
                             (call.kind == HostKind::kGather && at_root);
  if (takes_inputs && call.input_chunks.size() != size()) return refuse("the input needs one section per rank");
  if (takes_outputs && call.output_chunks.size() != size()) return refuse("the output needs one section per rank");
  if (takes_outputs && call.kind != HostKind::kAllToAll && call.output_chunks[me_].bytes != call.bytes) {
    return refuse("this rank's section has a different length in the output");
  }
  if (takes_inputs && call.kind != HostKind::kAllToAll && call.input_chunks[me_].bytes != call.bytes) {
    return refuse("this rank's section has a different length in the input");
  }
  if (call.kind == HostKind::kAllToAll && call.input_chunks[me_].bytes != call.output_chunks[me_].bytes) {
    return refuse("this rank's section has different lengths in input and output");
  }
  return {};
}

// For messages about a call that may not have been posted yet.
std::string HostMachine::Describe(const HostTask& task) const {
  if (task.phase != HostTask::Phase::kQueued) return Describe(post(me_, task.number));
  return kKindNames[static_cast<int>(task.call.kind) % kHostKindCount];
}

void HostMachine::WritePost(HostTask& task) {
  const HostCall& call = task.call;
  HostPost& mine = post(me_, task.number);
  mine.call = task.number;
  mine.fingerprint = Fingerprint(call, identity_);
  mine.bytes = call.bytes;
  mine.root = call.root;
  mine.kind = static_cast<uint8_t>(call.kind);
  mine.dtype = static_cast<uint8_t>(call.dtype);
  mine.op = static_cast<uint8_t>(call.op);
  mine.direct = 0;
  if (call.kind == HostKind::kBarrier) return;
  WriteSections(task, mine);
  if (area_.regions() != nullptr) PlaceInRegions(task, mine);
  task.direct_input = (mine.direct & kDirectInput) != 0;
  task.direct_output = (mine.direct & kDirectOutput) != 0;
  task.exposed = mine.direct != 0;
}

void HostMachine::WriteSections(HostTask& task, HostPost& mine) {
  const HostCall& call = task.call;
  const bool lists = call.kind == HostKind::kAllGather || Sectioned(call.kind);
  if (!lists) return;
  const auto chunks = call.kind == HostKind::kAllGather ? call.output_chunks : call.input_chunks;
  HostSection* sections = HostLayout::sections(mine);
  for (size_t d = 0; d < size(); ++d) sections[d] = {0, 0, 0, d < chunks.size() ? chunks[d].bytes : 0};
}

void HostMachine::PlaceInRegions(HostTask& task, HostPost& mine) {
  const HostCall& call = task.call;
  if (Sectioned(call.kind)) {
    // In place of the target it is overwritten while the others would read it: through the stage buffers instead.
    const bool overwritten = call.kind == HostKind::kAllToAll && call.input == call.output;
    if (!overwritten && SectionsInRegions(task, mine)) mine.direct = kDirectInput;
    return;
  }
  if (call.bytes <= kSmall) return;
  const bool brings = call.kind != HostKind::kBroadcast || call.root == me_;
  if (brings) {
    const auto place = area_.regions()->Find(call.input, call.bytes);
    mine.input_region = place.region;
    mine.input_offset = place.offset;
    if (place.region != 0) mine.direct |= kDirectInput;
    if (place.region != 0) AnnounceRegion(place.region);
  }
  const bool is_reduced = call.kind == HostKind::kAllReduce || (call.kind == HostKind::kReduce && call.root == me_);
  if (is_reduced) {
    const auto place = area_.regions()->Find(call.output, call.bytes);
    mine.output_region = place.region;
    mine.output_offset = place.offset;
    if (place.region != 0) mine.direct |= kDirectOutput;
    if (place.region != 0) AnnounceRegion(place.region);
  }
}

bool HostMachine::SectionsInRegions(const HostTask& task, HostPost& mine) {
  const HostCall& call = task.call;
  HostSection* sections = HostLayout::sections(mine);
  uint64_t total = 0;
  for (const Chunk& chunk : call.input_chunks) total += chunk.bytes;
  if (total <= kSmall) return false;
  for (size_t d = 0; d < call.input_chunks.size(); ++d) {
    const Chunk& chunk = call.input_chunks[d];
    if (chunk.bytes == 0 || d == me_) continue;
    const auto place = area_.regions()->Find(call.input + chunk.offset, chunk.bytes);
    if (place.region == 0) return false;
    sections[d].region = place.region;
    sections[d].offset = place.offset;
    AnnounceRegion(place.region);
  }
  return true;
}

void HostMachine::AnnounceRegion(uint32_t region) {
  for (const uint32_t rank : members_) {
    if (rank != area_.index()) area_.regions()->Announce(rank, region);
  }
}

bool HostMachine::Agree(HostTask& task) {
  bool moved = false;
  for (uint32_t j = 0; j < size(); ++j) {
    if (agreed_[j] != 0) continue;
    if (j != me_ && member(j).in.load() < PackWord(task.number, 1)) continue;
    moved = true;
    agreed_[j] = 1;
    ++agreed_count_;
    brought_[j] = Read(task.call, post(j, task.number));
    if (Noticed(task)) return true;  // a rank that came to a failed call posts nothing
    if (const Status same = Compare(task, j); !same.ok()) {
      Fail(task, same);
      return true;
    }
  }
  if (agreed_count_ < size()) return moved;
  bool missing = false;
  if (const Status mapped = ResolveAll(task, &missing); !mapped.ok()) {
    Fail(task, mapped);
    return true;
  }
  if (missing && !DoneByOthers(task)) return moved;
  ChooseRoute(task);
  task.phase = HostTask::Phase::kWorking;
  if (Tracing()) task.agreed = TraceClock();
  return true;
}

HostMachine::Brought HostMachine::Read(const HostCall& call, const HostPost& post) const {
  const HostSection common{post.input_region, 0, post.input_offset, post.bytes};
  return {post.call, post.fingerprint, post.direct, Sectioned(call.kind) ? HostLayout::sections(post)[me_] : common,
          HostSection{post.output_region, 0, post.output_offset, post.bytes}};
}

Status HostMachine::Compare(const HostTask& task, uint32_t j) const {
  const HostPost& mine = post(me_, task.number);
  const Brought& theirs = brought_[j];
  if (theirs.call != task.number) {
    return Status(Code::kTimeout,
                  name(j) + " has given up a call that this rank has only now begun: " + Describe(mine));
  }
  if (theirs.fingerprint == mine.fingerprint) return CompareLengths(task, j);
  return Status(Code::kMismatch, name(me_) + " called " + Describe(mine) + ", but " + name(j) + " called " +
                                     Describe(post(j, task.number)) +
                                     ": all ranks must make the same calls in the same order");
}

// Not all of them are in the fingerprint, and a fingerprint is only another process's word.
Status HostMachine::CompareLengths(const HostTask& task, uint32_t j) const {
  const HostCall& call = task.call;
  const bool common =
      call.kind == HostKind::kAllReduce || call.kind == HostKind::kReduce || call.kind == HostKind::kBroadcast;
  if (j == me_ || call.kind == HostKind::kBarrier || !(common || Feeds(call, j, me_))) return {};
  const uint64_t sent = brought_[j].input.bytes;
  const uint64_t expected = common ? call.bytes : Incoming(call, j);
  if (sent == expected) return {};
  return Status(Code::kMismatch, std::string(kKindNames[static_cast<int>(call.kind)]) + ": " + name(j) + " sends " +
                                     std::to_string(sent) + " bytes to " + name(me_) + ", which expects " +
                                     std::to_string(expected));
}

Status HostMachine::ResolveAll(HostTask& task, bool* missing) {
  const HostCall& call = task.call;
  held_.clear();
  for (uint32_t j = 0; j < size(); ++j) {
    const Brought& theirs = brought_[j];
    source_[j] = nullptr;
    target_[j] = nullptr;
    std::byte* place = nullptr;
    // All ranks do parts of a direct reduction to one root.
    const bool needed = Feeds(call, j, me_) || call.kind == HostKind::kReduce;
    if (IsDirect(j) && needed) {
      if (theirs.input.bytes > 0 && j != me_) {
        if (Status ok = Resolve(j, theirs.input, &place); !ok.ok()) return ok;
        if (place == nullptr) *missing = true;
      }
      source_[j] = place;
    }
    if ((theirs.direct & kDirectOutput) != 0 && j != me_) {
      if (Status ok = Resolve(j, theirs.output, &target_[j]); !ok.ok()) return ok;
      if (target_[j] == nullptr) *missing = true;
    }
  }
  source_[me_] = call.input;
  if ((brought_[me_].direct & kDirectOutput) != 0) target_[me_] = call.output;
  return {};
}

Status HostMachine::Resolve(uint32_t j, const HostSection& section, std::byte** place) {
  auto view =
      area_.regions() == nullptr ? RegionResolver::View{} : area_.regions()->Resolve(members_[j], section.region);
  if (view.refused) return Status(Code::kSystem, name(j) + " can't share its memory with " + name(me_));
  if (view.data == nullptr) return {};
  if (section.bytes > view.bytes || section.offset > view.bytes - section.bytes) {
    return Status(Code::kCorrupt, name(j) + " refers to bytes beyond its region " + std::to_string(section.region));
  }
  *place = view.data + section.offset;
  if (view.buffer != nullptr) held_.push_back(std::move(view.buffer));
  return {};
}

std::string HostMachine::Describe(const HostPost& post) const {
  const HostSection* sections = HostLayout::sections(post);
  const auto kind = static_cast<HostKind>(post.kind);
  std::string text = post.kind < kHostKindCount ? kKindNames[post.kind] : "unknown";
  if (kind == HostKind::kBarrier) return text;
  const auto dtype = static_cast<DType>(post.dtype % kDTypeCount);
  const bool reduces = kind == HostKind::kAllReduce || kind == HostKind::kReduce || kind == HostKind::kReduceScatter;
  if (reduces) text += std::string(" ") + NameOf(static_cast<Op>(post.op % kOpCount));
  text += std::string(" ") + NameOf(dtype);
  const bool lists = kind == HostKind::kAllGather || kind == HostKind::kReduceScatter;
  if (lists) {
    text += '[';
    for (uint32_t d = 0; d < std::min(size(), 8u); ++d) {
      text += (d == 0 ? "" : ", ") + std::to_string(sections[d].bytes / SizeOf(dtype));
    }
    text += size() > 8 ? ", ...]" : "]";
  } else if (kind != HostKind::kAllToAll && kind != HostKind::kScatter && kind != HostKind::kGather) {
    text += '[' + std::to_string(post.bytes / SizeOf(dtype)) + "]";
  }
  if (HasRoot(kind)) text += ", root " + std::to_string(post.root);
  return text;
}

}  // namespace byteps_like
