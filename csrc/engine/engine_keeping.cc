// Tensors whose values servers keep: from callers to the channels of their keys, and back.
#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "csrc/engine/channel.h"
#include "csrc/engine/engine.h"

namespace byteps_like {

// The operation, if it may begin.
Result<std::shared_ptr<KeepOperation>> Engine::BeginKeeping(const KeepRequest& request) {
  auto operation = std::make_shared<KeepOperation>();
  operation->memory = RegionOf(request.address, 1).buffer;
  std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  if (closed_) return Status(Code::kClosed, "the engine is closed");
  const DeclaredTensor& tensor = tensors_.at(request.tensor);
  if (!tensor.kept) return Status(Code::kInvalid, "servers don't keep this tensor");
  for (const uint32_t part : request.parts)
    if (part >= tensor.parts.size()) return Status(Code::kInvalid, "no partition " + std::to_string(part));
  operation->remaining = static_cast<uint32_t>(request.parts.size());
  operation->outcomes.resize(request.parts.size());
  if (!request.parts.empty()) operation->key = tensor.parts[request.parts.front()]->key;
  return operation;
}

// The same for one that servers may have been waiting for.
Result<std::shared_ptr<KeepOperation>> Engine::BeginContribution(const KeepRequest& request) {
  auto operation = BeginKeeping(request);
  if (!operation.ok()) return operation;
  std::lock_guard lock(mutex_);
  const auto& parts = tensors_.at(request.tensor).parts;
  for (const uint32_t part : request.parts) cut_off_.erase(parts[part]->key);
  return operation;
}

// Makes `use` of each of its keys, on the loop.
void Engine::UseKeys(const KeepRequest& request, const std::shared_ptr<KeepOperation>& operation, UseKept use) {
  context_.loop.PostOrRun([this, request, operation, use = std::move(use)] {
    std::vector<const Part*> parts;
    {
      std::lock_guard lock(mutex_);
      for (const uint32_t part : request.parts) parts.push_back(tensors_.at(request.tensor).parts[part].get());
    }
    const uint64_t order = order_++;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!parts[i]->channel->busy()) parts[i]->channel->Heard();
      use(*parts[i], order, {operation, i});
    }
    silence_.Arm();
  });
}

// Every partition of a tensor that servers can keep.
Result<Engine::KeepRequest> Engine::CheckKeep(const KeepSpec& spec) {
  std::lock_guard lock(mutex_);
  DeclaredTensor& tensor = tensors_.at(spec.tensor);
  for (const auto& part : tensor.parts)
    if (part->coding != nullptr || part->bytes % (spec.width * SizeOf(part->dtype)) != 0)
      return Status(Code::kInvalid, "its partitions are encoded, or split a row");
  tensor.kept = true;
  KeepRequest all{.tensor = spec.tensor, .parts = std::vector<uint32_t>(tensor.parts.size())};
  std::iota(all.parts.begin(), all.parts.end(), 0);
  return all;
}

Result<std::shared_ptr<KeepOperation>> Engine::Keep(const KeepSpec& spec) {
  auto all = CheckKeep(spec);
  if (!all.ok()) return all.status();
  auto operation = BeginKeeping(*all);
  if (!operation.ok()) return operation;
  (*operation)->initial.assign(spec.initial.begin(), spec.initial.end());
  UseKeys(*all, *operation,
          [text = spec.text, width = spec.width, root = spec.root](const Part& part, uint64_t, KeepTicket ticket) {
            const KeySpec key{.key = part.key, .dtype = part.dtype, .bytes = part.bytes, .width = width, .root = root};
            const auto& value = ticket.operation->initial;
            part.channel->kept().Open(key, text, value.empty() ? nullptr : value.data() + part.offset,
                                      std::move(ticket));
          });
  return operation;
}

Result<std::shared_ptr<KeepOperation>> Engine::Contribute(const KeepRequest& request, const Note& note) {
  auto operation = BeginContribution(request);
  if (!operation.ok()) return operation;
  UseKeys(request, *operation, [request, note](const Part& part, uint64_t order, KeepTicket ticket) {
    part.channel->kept().Push(part.key, {.data = request.address + part.offset,
                                         .note = note,
                                         .priority = request.priority,
                                         .order = order,
                                         .ticket = std::move(ticket)});
  });
  return operation;
}

Result<std::shared_ptr<KeepOperation>> Engine::ContributeFiltered(uint32_t tensor, const std::vector<Payload>& payloads,
                                                                  const Note& note, int32_t priority) {
  KeepRequest request{.tensor = tensor, .parts = {}};
  for (const Payload& one : payloads) request.parts.push_back(one.part);
  auto operation = BeginContribution(request);
  if (!operation.ok()) return operation;
  UseKeys(request, *operation, [payloads, note, priority](const Part& part, uint64_t order, KeepTicket ticket) {
    const Payload& own = payloads[ticket.index];
    part.channel->kept().Push(part.key, {.data = own.address,
                                         .bytes = own.bytes,
                                         .note = note,
                                         .priority = priority,
                                         .order = order,
                                         .ticket = std::move(ticket)});
  });
  return operation;
}

Result<std::shared_ptr<KeepOperation>> Engine::Tick(const KeepRequest& request, const Note& note) {
  auto operation = BeginContribution(request);
  if (!operation.ok()) return operation;
  UseKeys(request, *operation, [request, note](const Part& part, uint64_t order, KeepTicket ticket) {
    part.channel->kept().Push(
        part.key,
        {.idle = true, .note = note, .priority = request.priority, .order = order, .ticket = std::move(ticket)});
  });
  return operation;
}

Result<std::shared_ptr<KeepOperation>> Engine::Read(const KeepRequest& request, uint32_t least) {
  auto operation = BeginKeeping(request);
  if (!operation.ok()) return operation;
  UseKeys(request, *operation, [request, least](const Part& part, uint64_t order, KeepTicket ticket) {
    part.channel->kept().Read(part.key, {.out = request.address + part.offset,
                                         .least = least,
                                         .priority = request.priority,
                                         .order = order,
                                         .ticket = std::move(ticket)});
  });
  return operation;
}

Result<std::shared_ptr<KeepOperation>> Engine::ReadFiltered(const KeepRequest& request, uint32_t least) {
  auto operation = BeginKeeping(request);
  if (!operation.ok()) return operation;
  (*operation)->ranges.resize(request.parts.size());
  UseKeys(request, *operation,
          [priority = request.priority, least](const Part& part, uint64_t order, KeepTicket ticket) {
            part.channel->kept().Read(
                part.key,
                {.filtered = true, .least = least, .priority = priority, .order = order, .ticket = std::move(ticket)});
          });
  return operation;
}

Result<std::shared_ptr<KeepOperation>> Engine::Call(const std::vector<uint32_t>& tensors, const std::string& text) {
  std::vector<CallAt> calls;
  {
    std::lock_guard lock(mutex_);
    if (Status apart = CheckTogether(tensors); !apart.ok()) return apart;
    std::map<Channel*, KeepCall> found;
    for (size_t i = 0; i < tensors_.at(tensors.front()).parts.size(); ++i) {
      KeepCall& call = found[tensors_.at(tensors.front()).parts[i]->channel];
      ++call.here;
      for (const uint32_t tensor : tensors) call.keys.push_back(tensors_.at(tensor).parts[i]->key);
    }
    for (auto& [channel, call] : found) {
      call.parts = static_cast<uint32_t>(tensors_.at(tensors.front()).parts.size());
      call.text = text;
      calls.emplace_back(channel, std::move(call));
    }
  }
  return BeginCalls(std::move(calls), &KeptKeys::Call);
}

Result<std::shared_ptr<KeepOperation>> Engine::CallTable(uint32_t tensor, const std::vector<uint32_t>& firsts,
                                                         const std::string& text) {
  std::vector<CallAt> calls;
  {
    std::lock_guard lock(mutex_);
    const auto& parts = tensors_.at(tensor).parts;
    for (const uint32_t first : firsts)
      calls.emplace_back(parts.at(first)->channel, KeepCall{.keys = {parts.at(first)->key},
                                                            .here = 1,
                                                            .parts = static_cast<uint32_t>(parts.size()),
                                                            .text = text,
                                                            .ticket = {}});
  }
  return BeginCalls(std::move(calls), &KeptKeys::Call);
}

Result<std::shared_ptr<KeepOperation>> Engine::Ask(const std::vector<SavingRequest>& requests) {
  std::vector<CallAt> asked;
  {
    std::lock_guard lock(mutex_);
    for (const SavingRequest& one : requests) {
      const DeclaredTensor& tensor = tensors_.at(one.tensor);
      if (!tensor.kept || one.part >= tensor.parts.size())
        return Status(Code::kInvalid, "servers don't keep this tensor, or it has no such partition");
      const Part& part = *tensor.parts[one.part];
      KeepCall call{.type = one.type, .keys = one.behind, .text = one.text, .ticket = {}};
      if (call.keys.empty()) call.keys.push_back(part.key);
      asked.emplace_back(part.channel, std::move(call));
    }
  }
  return BeginCalls(std::move(asked), &KeptKeys::Ask);
}

// Each by its channel, one after the other where that is the same; their answers are in this order.
Result<std::shared_ptr<KeepOperation>> Engine::BeginCalls(std::vector<CallAt> calls,
                                                          void (KeptKeys::*begin)(KeepCall call)) {
  auto operation = std::make_shared<KeepOperation>();
  operation->remaining = static_cast<uint32_t>(calls.size());
  operation->outcomes.resize(calls.size());
  operation->answers.resize(calls.size());
  for (size_t index = 0; auto& [channel, call] : calls) call.ticket = {operation, index++};
  if (!calls.empty()) operation->key = calls.front().second.keys.front();
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    if (closed_) return Status(Code::kClosed, "the engine is closed");
  }
  context_.loop.PostOrRun([this, begin, calls = std::move(calls)]() mutable {
    const uint64_t order = order_++;
    for (auto& [channel, call] : calls) {
      call.order = order;
      if (!channel->busy()) channel->Heard();
      (channel->kept().*begin)(std::move(call));
    }
    silence_.Arm();
  });
  return operation;
}

// Under the mutex.
Status Engine::CheckTogether(const std::vector<uint32_t>& tensors) const {
  if (tensors.empty()) return Status(Code::kInvalid, "a function is called on one tensor at least");
  const DeclaredTensor& first = tensors_.at(tensors.front());
  for (const uint32_t tensor : tensors) {
    const DeclaredTensor& other = tensors_.at(tensor);
    const auto is_beside = [](const auto& one, const auto& another) {
      return one->channel == another->channel && one->offset == another->offset && one->bytes == another->bytes;
    };
    if (!other.kept || !std::ranges::equal(first.parts, other.parts, is_beside))
      return Status(Code::kInvalid, "the tensors don't lie together on servers that keep them");
  }
  return {};
}

std::vector<uint32_t> Engine::CutOffParts(uint32_t tensor) const {
  std::vector<uint32_t> found;
  std::lock_guard lock(mutex_);
  if (cut_off_.empty()) return found;
  const auto& parts = tensors_.at(tensor).parts;
  for (uint32_t number = 0; number < parts.size(); ++number)
    if (cut_off_.contains(parts[number]->key)) found.push_back(number);
  return found;
}

void Engine::CutOff(uint64_t key, bool is_so) {
  std::lock_guard lock(mutex_);
  if (is_so) {
    cut_off_.insert(key);
  } else {
    cut_off_.erase(key);
  }
}

void Engine::Settled(const KeepTicket& ticket, const Status& status, KeepOutcome outcome) {
  KeepOperation& operation = *ticket.operation;
  std::shared_ptr<SharedBuffer> memory;  // let go of after the lock
  std::lock_guard lock(mutex_);
  operation.outcomes[ticket.index] = outcome;
  if (!status.ok()) operation.status = status;
  if (operation.remaining.load(std::memory_order_relaxed) == 1) memory = std::move(operation.memory);
  EndPart(operation);
}

}  // namespace byteps_like
