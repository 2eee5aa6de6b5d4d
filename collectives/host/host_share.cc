// All-reduce where the ranks divide the work. With everything in regions, parts of the tensor are reduced straight from
// all inputs into all outputs, each rank's share by that rank or by any rank that has time (kDirect). Otherwise it goes
// in pieces (kShare): private memory is staged for the ranks that reduce it, each rank reduces its share of the piece,
// into the outputs that lie in regions and its own, and for the others into a result buffer that they copy from.
#include <algorithm>
#include <array>
#include <cstring>

#include "collectives/host/host_copy.h"
#include "collectives/host/host_machine.h"
#include "csrc/kernels/kernels.h"

namespace byteps_like {
namespace {

// More than two ranks: up to here each reduces everything by itself. A wait costs more than the bytes. Two would move
// as many bytes, and wait twice as often (measured: no gain at any size).
constexpr uint64_t kAlone = 32u << 10;
constexpr uint64_t kLeastPart = 16u << 10, kMostPart = 512u << 10;

}  // namespace

// Cut where cache lines are.
HostMachine::Range HostMachine::ShareOf(uint64_t bytes, uint32_t i, uint32_t n) {
  const uint64_t each = ((bytes + n - 1) / n + 63) / 64 * 64;
  return {std::min(bytes, i * each), std::min(bytes, (i + 1) * each)};
}

bool HostMachine::Divided(const HostCall& call) const {
  return call.kind == HostKind::kAllReduce && size() > 2 && call.bytes > kAlone;
}

// A reduction whose tensors all lie in regions.
bool HostMachine::AllDirect(const HostTask& task) const {
  const HostCall& call = task.call;
  if (call.kind != HostKind::kAllReduce && call.kind != HostKind::kReduce) return false;
  for (uint32_t j = 0; j < size(); ++j) {
    const bool writes = call.kind == HostKind::kAllReduce || j == call.root;
    const uint8_t wanted = kDirectInput | (writes ? kDirectOutput : 0);
    if ((brought_[j].direct & wanted) != wanted) return false;
  }
  return call.bytes > 0;
}

void HostMachine::ChooseRoute(HostTask& task) {
  task.route = HostTask::Route::kPull;
  if (AllDirect(task)) {
    PlanDirect(task);
  } else if (Divided(task.call)) {
    PlanShare(task);
  } else {
    PlanPull(task);
  }
}

// The others may have done all of a direct reduction, and let go of their regions, before those have come here.
bool HostMachine::DoneByOthers(HostTask& task) {
  if (!AllDirect(task)) return false;
  PlanDirect(task);
  return slot_words().work[task.number % kHostRing].finished.load() >= PackWord(task.number, task.parts);
}

void HostMachine::PlanDirect(HostTask& task) {
  task.route = HostTask::Route::kDirect;
  const uint64_t share = (task.call.bytes / (2 * size()) + 4095) / 4096 * 4096;
  task.part = std::clamp(share, kLeastPart, kMostPart);
  task.parts = (task.call.bytes + task.part - 1) / task.part;
}

// Its own share first, call after call: of tensors that are used again that much is in its core's cache.
bool HostMachine::Direct(HostTask& task) {
  HostSlot::Work& work = slot_words().work[task.number % kHostRing];
  for (uint32_t step = 0; step < size(); ++step) {
    const uint64_t part = TakePart(task, (me_ + step) % size());
    if (part == task.parts) continue;
    ReducePart(task, part);
    if (Count(work.finished, task.number) == task.parts) RingOthers();
    return true;
  }
  if (work.finished.load() < PackWord(task.number, task.parts)) return false;
  task.exposed = false;  // no rank works on it any more
  task.phase = HostTask::Phase::kLeaving;
  return true;
}

// A part of member j's share; task.parts: all parts have been begun.
uint64_t HostMachine::TakePart(const HostTask& task, uint32_t j) {
  const uint64_t begin = task.parts * j / size(), end = task.parts * (j + 1) / size();
  auto& taken = member(j).taken;
  uint64_t seen = taken.load();
  while (CallOf(seen) <= task.number) {
    const uint64_t part = begin + (CallOf(seen) == task.number ? seen & 0xFFFFFFFF : 0);
    if (part >= end) break;
    if (taken.compare_exchange_weak(seen, PackWord(task.number, part - begin + 1))) return part;
  }
  return task.parts;
}

uint64_t HostMachine::Count(std::atomic<uint64_t>& word, uint64_t call) {
  uint64_t seen = word.load();
  for (;;) {
    const uint64_t count = CallOf(seen) == call ? (seen & 0xFFFFFFFF) + 1 : 1;
    if (word.compare_exchange_weak(seen, PackWord(call, count))) return count;
  }
}

void HostMachine::ReducePart(HostTask& task, uint64_t part) {
  const HostCall& call = task.call;
  std::array<const void*, kMostHostRanks> sources;
  std::array<void*, kMostHostRanks> targets;
  const uint64_t begin = part * task.part;
  size_t target_count = 0;
  for (uint32_t j = 0; j < size(); ++j) {
    sources[j] = source_[j] + begin;
    if (target_[j] != nullptr) targets[target_count++] = target_[j] + begin;
  }
  kernels::ReduceMany(call.op, call.dtype, {targets.data(), target_count}, {sources.data(), size()},
                      std::min(task.part, call.bytes - begin) / SizeOf(call.dtype), DivisorOf(call));
}

void HostMachine::PlanShare(HostTask& task) {
  task.route = HostTask::Route::kShare;
  task.reductions = (task.call.bytes + task.unit - 1) / task.unit;
  task.rounds = task.direct_output ? 0 : task.reductions;
  if (!task.staging) task.stages = 0;
  if (task.rounds == 0) Publish(&HostMember::out, PackWord(task.number, kReadAll));
}

bool HostMachine::Share(HostTask& task) {
  if (task.staging && MayStage(task)) {
    StagePiece(task);
    Publish(&HostMember::in, PackWord(task.number, 1 + task.staged));
    return true;
  }
  if (ReduceShare(task) || FetchResults(task)) return true;
  if (task.read < task.rounds || !AllReached(&HostMember::mid, PackWord(task.number, task.reductions))) return false;
  if (task.reduced < task.reductions) return false;
  task.exposed = false;
  task.phase = HostTask::Phase::kLeaving;
  return true;
}

bool HostMachine::ReduceShare(HostTask& task) {
  const HostCall& call = task.call;
  const uint64_t piece = task.reduced;
  if (piece == task.reductions || !MayReduce(task)) return false;
  const uint64_t begin = piece * task.unit;
  const Range share = ShareOf(std::min(task.unit, call.bytes - begin), me_, size());
  std::array<const void*, kMostHostRanks> sources;
  std::array<void*, kMostHostRanks> targets;
  size_t target_count = 0;
  bool any_private = false;
  for (uint32_t j = 0; j < size(); ++j) {
    sources[j] = (IsDirect(j) || j == me_ ? source_[j] + begin : SourceBuffer(j, task, piece)) + share.begin;
    std::byte* const target = j == me_ ? call.output : target_[j];
    any_private |= target == nullptr;
    if (target != nullptr) targets[target_count++] = target + begin + share.begin;
  }
  const uint64_t bytes = share.end - share.begin;
  if (any_private) {
    result_use_[(task.number + piece) % kHostBuffers] = task.number;
    ReduceForOthers(call, {targets.data(), target_count}, {sources.data(), size()}, bytes,
                    ResultBuffer(me_, task, piece));
  } else {
    kernels::ReduceMany(call.op, call.dtype, {targets.data(), target_count}, {sources.data(), size()},
                        bytes / SizeOf(call.dtype), DivisorOf(call));
  }
  ++task.reduced;
  Publish(&HostMember::mid, PackWord(task.number, task.reduced));
  return true;
}

// Into the targets and a result buffer, which is written around the caches: the others have read its lines, and taking
// them back one by one costs ten times as much.
void HostMachine::ReduceForOthers(const HostCall& call, std::span<void*> targets, std::span<const void*> sources,
                                  uint64_t bytes, std::byte* result) {
  constexpr uint64_t kBlock = 8192;
  alignas(64) std::byte block[kBlock];
  std::array<const void*, kMostHostRanks> from;
  std::array<void*, kMostHostRanks + 1> to;
  for (uint64_t begin = 0; begin < bytes; begin += kBlock) {
    const uint64_t length = std::min(kBlock, bytes - begin);
    for (size_t j = 0; j < sources.size(); ++j) from[j] = static_cast<const std::byte*>(sources[j]) + begin;
    for (size_t j = 0; j < targets.size(); ++j) to[j] = static_cast<std::byte*>(targets[j]) + begin;
    to[targets.size()] = block;
    kernels::ReduceMany(call.op, call.dtype, {to.data(), targets.size() + 1}, {from.data(), sources.size()},
                        length / SizeOf(call.dtype), DivisorOf(call));
    CopyAround(result + begin, block, length);
  }
}

// All have staged the piece, and the result buffer is free.
bool HostMachine::MayReduce(const HostTask& task) {
  if (task.staging && task.staged <= task.reduced) return false;
  for (uint32_t j = 0; j < size(); ++j) {
    const bool staged = j != me_ && !IsDirect(j);
    if (staged && member(j).in.load() < PackWord(task.number, task.reduced + 2)) return false;
  }
  if (task.reduced >= kHostBuffers) {
    const uint64_t piece = task.reduced - kHostBuffers;
    return AllOut(PackWord(task.number, piece + 1));
  }
  const uint64_t used = result_use_[(task.number + task.reduced) % kHostBuffers];
  return used == 0 || AllOut(PackWord(used, kReadAll));
}

bool HostMachine::FetchResults(HostTask& task) {
  const uint64_t piece = task.read;
  if (piece == task.rounds || task.reduced <= piece) return false;
  if (!AllReached(&HostMember::mid, PackWord(task.number, piece + 1))) return false;
  const uint64_t begin = piece * task.unit;
  const uint64_t bytes = std::min(task.unit, task.call.bytes - begin);
  for (uint32_t j = 0; j < size(); ++j) {
    if (j == me_) continue;
    const Range share = ShareOf(bytes, j, size());
    CopyOut(task.call.output + begin + share.begin, ResultBuffer(j, task, piece), share.end - share.begin,
            task.call.bytes);
  }
  ++task.read;
  Publish(&HostMember::out, PackWord(task.number, task.read == task.rounds ? kReadAll : task.read));
  return true;
}

}  // namespace byteps_like
