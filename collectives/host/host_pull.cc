// Each rank takes what it needs from each of the others and combines it by itself. A source that lies in regions is
// read in place; a private one comes in pieces through its rank's stage buffers. One wait per piece, and none at the
// end where nothing is read in place.
//
// Piece p of a call lies in stage buffer (call + p) % kHostBuffers, on every rank. It holds bytes [p * unit, (p + 1) *
// unit) of the tensor, or of the section for each of the ranks one behind the other.
#include <algorithm>
#include <array>
#include <cstring>

#include "collectives/host/host_copy.h"
#include "collectives/host/host_machine.h"
#include "csrc/kernels/kernels.h"

namespace byteps_like {
namespace {

uint64_t Pieces(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit; }

}  // namespace

bool HostMachine::Sectioned(HostKind kind) {
  return kind == HostKind::kReduceScatter || kind == HostKind::kScatter || kind == HostKind::kAllToAll;
}

bool HostMachine::Reduces(HostKind kind) {
  return kind == HostKind::kAllReduce || kind == HostKind::kReduce || kind == HostKind::kReduceScatter;
}

bool HostMachine::Feeds(const HostCall& call, uint32_t from, uint32_t to) {
  switch (call.kind) {
    case HostKind::kBroadcast:
    case HostKind::kScatter:
      return from == call.root;
    case HostKind::kReduce:
    case HostKind::kGather:
      return to == call.root;
    case HostKind::kBarrier:
      return false;
    default:
      return true;
  }
}

HostMachine::Section HostMachine::OutgoingTo(const HostCall& call, uint32_t to) const {
  if (!Feeds(call, me_, to)) return {nullptr, 0};
  if (!Sectioned(call.kind)) return {call.input, call.bytes};
  return {call.input + call.input_chunks[to].offset, call.input_chunks[to].bytes};
}

uint64_t HostMachine::Incoming(const HostCall& call, uint32_t from) const {
  if (!Feeds(call, from, me_)) return 0;
  const bool lists =
      call.kind == HostKind::kAllGather || call.kind == HostKind::kGather || call.kind == HostKind::kAllToAll;
  return lists ? call.output_chunks[from].bytes : call.bytes;
}

// Before anything is known of the others. All-reduce may turn out to need no stages, or more.
void HostMachine::PlanStages(HostTask& task) {
  const HostCall& call = task.call;
  const size_t piece = area_.layout().piece_bytes();
  task.unit = Sectioned(call.kind) ? piece / size() / 64 * 64 : piece;
  uint64_t longest = 0;
  for (uint32_t to = 0; to < size(); ++to) {
    if (to != me_) longest = std::max(longest, OutgoingTo(call, to).bytes);
  }
  task.stages = Pieces(longest, task.unit);
  task.staging = !task.direct_input;
}

bool HostMachine::IsStaged(const HostTask& task, uint32_t j) const {
  // In an all-reduce the input may be overwritten by its own rank's result while others still read.
  return task.call.kind == HostKind::kAllReduce || !IsDirect(j);
}

void HostMachine::PlanPull(HostTask& task) {
  const HostCall& call = task.call;
  task.staging = IsStaged(task, me_);
  task.exposed = task.direct_input && !task.staging;
  if (!task.staging) task.stages = 0;
  bool any_staged = false;
  for (uint32_t j = 0; j < size(); ++j) {
    const uint64_t bytes = j == me_ ? 0 : Incoming(call, j);
    pieces_[j] = IsStaged(task, j) ? Pieces(bytes, task.unit) : 0;
    any_staged |= pieces_[j] > 0;
    task.rounds = std::max(task.rounds, bytes > 0 ? std::max<uint64_t>(pieces_[j], 1) : 0);
  }
  task.stride = any_staged ? task.unit : std::max<uint64_t>(call.bytes, 1);
  if (Reduces(call.kind)) task.rounds = Pieces(Incoming(call, me_), task.stride);
  if (task.rounds == 0) Publish(&HostMember::out, PackWord(task.number, kReadAll));
}

bool HostMachine::Pull(HostTask& task) {
  if (task.staging && MayStage(task)) {
    StagePiece(task);
    Publish(&HostMember::in, PackWord(task.number, 1 + task.staged));
    return true;
  }
  if (!task.copied_own) {
    task.copied_own = true;
    CopyOwn(task);
    return true;
  }
  if (ReadRound(task)) return true;
  if (task.read < task.rounds || (task.staging && task.staged < task.stages)) return false;
  task.phase = HostTask::Phase::kLeaving;
  return true;
}

bool HostMachine::MayStage(const HostTask& task) {
  if (task.staged == task.stages) return false;
  if (task.staged >= kHostBuffers) {
    const uint64_t used = PackWord(task.number, task.staged - kHostBuffers + 1);
    return task.route == HostTask::Route::kShare ? AllReached(&HostMember::mid, used) : AllOut(used);
  }
  const uint64_t used = source_use_[(task.number + task.staged) % kHostBuffers];
  return used == 0 || AllOut(PackWord(used, kReadAll));
}

void HostMachine::StagePiece(HostTask& task) {
  const HostCall& call = task.call;
  std::byte* buffer = SourceBuffer(me_, task, task.staged);
  const uint64_t begin = task.staged * task.unit;
  if (Sectioned(call.kind)) {
    for (uint32_t to = 0; to < size(); ++to) {
      const Section section = OutgoingTo(call, to);
      if (to == me_ || section.bytes <= begin) continue;
      CopyAround(buffer + to * task.unit, section.data + begin, std::min(task.unit, section.bytes - begin));
    }
  } else {
    const uint64_t bytes = std::min(task.unit, call.bytes - begin);
    const Range own = Divided(call) ? ShareOf(bytes, me_, size()) : Range{bytes, bytes};  // which no other rank reads
    CopyAround(buffer, call.input + begin, own.begin);
    CopyAround(buffer + own.end, call.input + begin + own.end, bytes - own.end);
  }
  source_use_[(task.number + task.staged) % kHostBuffers] = task.number;
  ++task.staged;
}

bool HostMachine::ReadRound(HostTask& task) {
  if (task.read == task.rounds) return false;
  // In place, the result overwrites bytes that must have been staged first.
  if (task.staging && task.staged < std::min(task.stages, task.read + 1)) return false;
  for (uint32_t j = 0; j < size(); ++j) {
    if (task.read < pieces_[j] && member(j).in.load() < PackWord(task.number, task.read + 2)) return false;
  }
  if (Reduces(task.call.kind)) {
    ReadReduced(task);
  } else {
    for (uint32_t step = 1; step < size(); ++step) ReadCopied(task, (me_ + step) % size());
  }
  ++task.read;
  const bool all = task.read == task.rounds;
  const bool leaves = all && !task.exposed && (!task.staging || task.staged == task.stages);  // which says so, too
  if (!leaves) Publish(&HostMember::out, PackWord(task.number, all ? kReadAll : task.read));
  return true;
}

void HostMachine::ReadReduced(HostTask& task) {
  const HostCall& call = task.call;
  std::array<const void*, kMostHostRanks> sources;
  const uint64_t begin = task.read * task.stride;
  const uint64_t bytes = std::min(task.stride, call.bytes - begin);
  const bool sectioned = Sectioned(call.kind);
  for (uint32_t j = 0; j < size(); ++j) {
    if (j == me_) {
      sources[j] = OutgoingTo(call, me_).data + begin;
    } else if (pieces_[j] > 0) {
      sources[j] = SourceBuffer(j, task, task.read) + (sectioned ? me_ * task.unit : 0);
    } else {
      sources[j] = source_[j] + begin;
    }
  }
  void* const target = call.output + begin;
  kernels::ReduceMany(call.op, call.dtype, {&target, 1}, {sources.data(), size()}, bytes / SizeOf(call.dtype),
                      DivisorOf(call));
}

void HostMachine::ReadCopied(HostTask& task, uint32_t j) {
  const HostCall& call = task.call;
  const uint64_t total = Incoming(call, j);
  if (total == 0) return;
  const bool lists =
      call.kind == HostKind::kAllGather || call.kind == HostKind::kGather || call.kind == HostKind::kAllToAll;
  std::byte* target = call.output + (lists ? call.output_chunks[j].offset : 0);
  if (pieces_[j] == 0) {
    if (task.read == 0) CopyOut(target, source_[j], total, total);
    return;
  }
  if (task.read >= pieces_[j]) return;
  const uint64_t begin = task.read * task.unit;
  const std::byte* from = SourceBuffer(j, task, task.read) + (Sectioned(call.kind) ? me_ * task.unit : 0);
  CopyOut(target + begin, from, std::min(task.unit, total - begin), total);
}

// Copies this rank's part for itself, in calls that reduce nothing.
void HostMachine::CopyOwn(HostTask& task) {
  const HostCall& call = task.call;
  if (Reduces(call.kind)) return;
  const Section own = OutgoingTo(call, me_);
  if (own.bytes == 0 || call.output == nullptr) return;
  const bool listed =
      call.kind == HostKind::kAllGather || call.kind == HostKind::kGather || call.kind == HostKind::kAllToAll;
  std::byte* target = call.output + (listed ? call.output_chunks[me_].offset : 0);
  if (target != own.data) CopyOut(target, own.data, own.bytes, own.bytes);
}

std::byte* HostMachine::SourceBuffer(uint32_t j, const HostTask& task, uint64_t piece) const {
  return area_.layout().stage(slot_, j) + (task.number + piece) % kHostBuffers * area_.layout().piece_bytes();
}

std::byte* HostMachine::ResultBuffer(uint32_t j, const HostTask& task, uint64_t piece) const {
  return SourceBuffer(j, task, piece) + kHostBuffers * area_.layout().piece_bytes();
}

}  // namespace byteps_like
