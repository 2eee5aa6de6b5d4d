// Tables whose rows servers keep: from callers to the channels of their keys, and back.
#include <string>
#include <utility>
#include <vector>

#include "csrc/engine/channel.h"
#include "csrc/engine/engine.h"

namespace byteps_like {

Result<std::shared_ptr<KeepOperation>> Engine::KeepTable(const TableSpec& spec) {
  {
    std::lock_guard lock(mutex_);
    tensors_.at(spec.tensor).kept = true;
  }
  const KeepRequest request{.tensor = spec.tensor, .parts = spec.parts};
  auto operation = BeginKeeping(request);
  if (!operation.ok()) return operation;
  UseKeys(request, *operation, [text = spec.text, width = spec.width](const Part& part, uint64_t, KeepTicket ticket) {
    const auto row = static_cast<uint32_t>(width * SizeOf(part.dtype));
    part.channel->kept().OpenTable({.key = part.key, .dtype = part.dtype, .bytes = row, .width = width}, text,
                                   std::move(ticket));
  });
  return operation;
}

// Their memory and their lists are those of the caller, until it is done.
Result<std::shared_ptr<KeepOperation>> Engine::BeginRows(uint32_t tensor, const std::vector<TableRows>& rows,
                                                         UseRows use) {
  KeepRequest request{.tensor = tensor};
  for (const TableRows& one : rows) request.parts.push_back(one.part);
  auto operation = BeginKeeping(request);
  if (!operation.ok()) return operation;
  (*operation)->ranges.resize(rows.size());
  UseKeys(request, *operation, [rows, use = std::move(use)](const Part& part, uint64_t order, KeepTicket ticket) {
    const TableRows& own = rows[ticket.index];
    use(part, own, order, std::move(ticket));
  });
  return operation;
}

Result<std::shared_ptr<KeepOperation>> Engine::ContributeRows(uint32_t tensor, const std::vector<TableRows>& rows,
                                                              const Note& note, int32_t priority) {
  return BeginRows(tensor, rows,
                   [note, priority](const Part& part, const TableRows& own, uint64_t order, KeepTicket ticket) {
                     part.channel->kept().Push(part.key, {.data = own.address,
                                                          .bytes = own.bytes,
                                                          .rows = own.rows,
                                                          .note = note,
                                                          .priority = priority,
                                                          .order = order,
                                                          .ticket = std::move(ticket)});
                   });
}

Result<std::shared_ptr<KeepOperation>> Engine::FetchRows(uint32_t tensor, const std::vector<TableRows>& rows,
                                                         int32_t priority) {
  return BeginRows(tensor, rows, [priority](const Part& part, const TableRows& own, uint64_t order, KeepTicket ticket) {
    part.channel->kept().Fetch(
        part.key,
        {.rows = own.rows, .out = own.address, .priority = priority, .order = order, .ticket = std::move(ticket)});
  });
}

Result<std::shared_ptr<KeepOperation>> Engine::FetchFiltered(uint32_t tensor, const std::vector<TableRows>& rows,
                                                             int32_t priority) {
  return BeginRows(tensor, rows, [priority](const Part& part, const TableRows& own, uint64_t order, KeepTicket ticket) {
    part.channel->kept().Fetch(
        part.key,
        {.rows = own.rows, .filtered = true, .priority = priority, .order = order, .ticket = std::move(ticket)});
  });
}

Result<std::shared_ptr<KeepOperation>> Engine::FetchRange(const KeepRequest& request, RowRange range) {
  auto operation = BeginKeeping(request);
  if (!operation.ok()) return operation;
  (*operation)->ranges.resize(request.parts.size());
  UseKeys(request, *operation,
          [priority = request.priority, range = std::move(range)](const Part& part, uint64_t order, KeepTicket ticket) {
            const uint64_t since = range.since[ticket.index];
            part.channel->kept().Fetch(part.key, {.range = {range.low, range.high},
                                                  .since = since,
                                                  .most = range.most,
                                                  .priority = priority,
                                                  .order = order,
                                                  .ticket = std::move(ticket)});
          });
  return operation;
}

}  // namespace byteps_like
