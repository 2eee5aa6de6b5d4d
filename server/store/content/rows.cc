#include "server/store/content/rows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "csrc/wire/bytes.h"
#include "csrc/wire/frame.h"
#include "server/store/combining/combining.h"

namespace byteps_like {
namespace {

constexpr size_t kBatch = 512;     // rows that are looked up at a time, so that their slots stay in the first cache
constexpr size_t kRowsAhead = 16;  // rows whose records are on their way

const uint32_t* SlotsOf(const WholePush& push) { return reinterpret_cast<const uint32_t*>(push.rows.slots.data()); }

size_t Padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

// A row of one of several contributions.
struct Place {
  uint64_t id;
  size_t push, row;
  bool operator>(const Place& other) const { return id != other.id ? id > other.id : push > other.push; }
};

// visit(places) for each id that any contribution has, ascending: where it is, from the first contribution to the last.
// Ends early if that says false, and says so.
template <typename Visit>
bool Merge(std::span<const WholePush> pushes, const Visit& visit) {
  std::priority_queue<Place, std::vector<Place>, std::greater<>> next;
  const auto add = [&](size_t push, size_t row) {
    const auto ids = pushes[push].rows.list->ids();
    if (row < ids.size()) next.push({ids[row], push, row});
  };
  for (size_t push = 0; push < pushes.size(); ++push) add(push, 0);
  std::vector<Place> same;
  while (!next.empty()) {
    same.clear();
    do {
      same.push_back(next.top());
      next.pop();
      add(same.back().push, same.back().row + 1);
    } while (!next.empty() && next.top().id == same.front().id);
    if (!visit(std::span<const Place>(same))) return false;
  }
  return true;
}

}  // namespace

RowContent::RowContent(const ValueUpdate& update, const FirstValues& first_values, DType dtype, size_t width,
                       ShardMemory& memory)
    : memory_(memory),
      first_values_(first_values),
      dtype_(dtype),
      width_(width),
      row_bytes_(width * SizeOf(dtype)),
      state_bytes_(update.StateCount({1, width}) * SizeOf(dtype)),
      table_(sizeof(Head) + row_bytes_ + state_bytes_, memory),
      fresh_(memory.Take(table_.record_bytes())) {}

Result<std::unique_ptr<RowContent>> RowContent::Make(const ValueUpdate& update, const FirstValues& first_values,
                                                     DType dtype, size_t width, ShardMemory& memory) {
  std::unique_ptr<RowContent> content(new RowContent(update, first_values, dtype, width, memory));
  if (content->fresh_.size() == 0) return memory.Exhausted();
  std::memset(content->fresh_.data(), 0, content->table_.record_bytes());
  update.Begin(dtype, {1, width}, content->fresh_.data() + sizeof(Head) + content->row_bytes_);
  return content;
}

std::optional<RowContent::Row> RowContent::Find(uint64_t id) const {
  uint32_t slot = RowTable::kNone;
  table_.Find({&id, 1}, &slot);
  if (slot == RowTable::kNone || !HeadAt(slot).exists()) return std::nullopt;
  return Row{HeadAt(slot).version, HeadAt(slot).updates, ValueAt(slot), ValueAt(slot) + row_bytes_};
}

// Checkpoints

uint64_t RowContent::Save(uint64_t place, size_t most, std::string* to, const Wanted& wanted) const {
  const size_t begin = to->size();
  return table_.VisitFrom(place, [&](uint64_t id, uint32_t slot) {
    if (!HeadAt(slot).exists() || (wanted && !wanted(id))) return true;
    if (to->size() != begin && to->size() - begin + sizeof id + table_.record_bytes() > most) return false;
    std::byte number[sizeof id];
    PutLittle(number, id);
    to->append(reinterpret_cast<const char*>(number), sizeof number);
    to->append(reinterpret_cast<const char*>(table_.At(slot)), table_.record_bytes());
    return true;
  });
}

Status RowContent::Restore(std::span<const std::byte> saved) {
  const size_t size = saved_bytes();
  if (saved.size() % size != 0)
    return Status(Code::kInvalid, std::to_string(saved.size()) + " bytes are no rows of " + std::to_string(size));
  for (; !saved.empty(); saved = saved.subspan(size)) {
    const auto id = GetLittle<uint64_t>(saved.data());
    uint32_t slot = RowTable::kNone;
    if (Status status = table_.FindOrMake({&id, 1}, saved.data() + sizeof id, &slot); !status.ok()) return status;
    std::memcpy(table_.At(slot), saved.data() + sizeof id, table_.record_bytes());
  }
  return {};
}

// Contributions

Status RowContent::Admit(WholePush& whole) {
  const auto ids = whole.rows.list->ids();
  whole.rows.slots = memory_.Take(ids.size() * sizeof(uint32_t));
  if (ids.empty()) return {};
  if (whole.rows.slots.size() == 0) return memory_.Exhausted();
  return FindOrMake(ids, reinterpret_cast<uint32_t*>(whole.rows.slots.data()));
}

// New records are the last ones.
Status RowContent::FindOrMake(std::span<const uint64_t> ids, uint32_t* slots) {
  const size_t before = table_.size();
  Status status = table_.FindOrMake(ids, fresh_.data(), slots);
  for (size_t i = 0; i < ids.size() && table_.size() != before; ++i)
    if (slots[i] != RowTable::kNone && slots[i] >= before)
      first_values_.Make(ids[i], dtype_, width_, ValueAt(slots[i]));
  return status;
}

// Rows of which an update makes what is not finite stay as they are; others don't.
Result<bool> RowContent::Apply(const VersionCall& call, ShardBuffer&) {
  if (!AddUpAll(call)) return false;
  if (call.pushes.size() > 1) {
    Status merged = UpdateMerged(call);
    return merged.ok() ? Result<bool>(true) : merged;
  }
  const WholePush& only = call.pushes.front();
  const uint32_t* const slots = SlotsOf(only);
  const size_t count = only.rows.list->count;
  for (size_t i = 0; i < std::min(kRowsAhead, count); ++i) table_.Prefetch(slots[i], table_.record_bytes());
  for (size_t i = 0; i < count; ++i) {
    if (i + kRowsAhead < count) table_.Prefetch(slots[i + kRowsAhead], table_.record_bytes());
    if (Status status = Update(call, slots[i], GradientOf(only, i)); !status.ok()) return status;
  }
  return true;
}

// The sum of each row is made in place of the first contribution's that has it. False if one is not finite.
bool RowContent::AddUpAll(const VersionCall& call) const {
  if (call.pushes.size() == 1) {
    void* const array = call.pushes.front().gradient.data();
    return AddUp(dtype_, {&array, 1}, call.factors, CountOf(call.pushes.front()));
  }
  std::vector<void*> arrays;
  std::vector<double> factors;
  return Merge(call.pushes, [&](std::span<const Place> places) {
    arrays.clear();
    factors.clear();
    for (const Place& place : places) {
      arrays.push_back(GradientOf(call.pushes[place.push], place.row));
      factors.push_back(call.factors[place.push]);
    }
    return AddUp(dtype_, arrays, factors, width_);
  });
}

Status RowContent::UpdateMerged(const VersionCall& call) {
  std::array<std::pair<uint32_t, const std::byte*>, kRowsAhead> ahead;  // a ring
  size_t begun = 0, done = 0;
  Status status;
  const auto update = [&] {
    const auto [slot, gradient] = ahead[done++ % kRowsAhead];
    if (status.ok()) status = Update(call, slot, gradient);
  };
  Merge(call.pushes, [&](std::span<const Place> places) {
    if (begun - done == kRowsAhead) update();
    const WholePush& push = call.pushes[places.front().push];
    const uint32_t slot = SlotsOf(push)[places.front().row];
    table_.Prefetch(slot, table_.record_bytes());
    ahead[begun++ % kRowsAhead] = {slot, GradientOf(push, places.front().row)};
    return true;
  });
  while (done < begun) update();
  return status;
}

Status RowContent::Update(const VersionCall& call, uint32_t slot, const std::byte* gradient) {
  Head& head = HeadAt(slot);
  head.version = static_cast<uint32_t>(call.version);
  if (head.updates != std::numeric_limits<uint32_t>::max()) ++head.updates;
  return call.update
      .Apply({.dtype = dtype_,
              .shape = {1, width_},
              .value = ValueAt(slot),
              .state = ValueAt(slot) + row_bytes_,
              .gradient = gradient,
              .lr = call.lr,
              .step = head.updates,
              .pushes = call.made_of})
      .status();
}

// Each row was added up in the first contribution that has it.
Result<CombinedGradient> RowContent::TakeCombined(std::span<WholePush> applied) const {
  if (applied.size() == 1) return CombinedGradient{std::move(applied.front().gradient), applied.front().rows.list};
  size_t count = 0;
  Merge(applied, [&](std::span<const Place>) { return ++count != 0; });
  auto list = std::make_shared<IdList>();
  list->bytes = memory_.Take(count * sizeof(uint64_t));
  list->count = count;
  CombinedGradient combined{memory_.Take(count * row_bytes_), list};
  if (list->bytes.size() < count * sizeof(uint64_t) || combined.bytes.size() < count * row_bytes_)
    return memory_.Exhausted();
  size_t row = 0;
  Merge(applied, [&](std::span<const Place> places) {
    const Place& first = places.front();
    std::memcpy(list->bytes.data() + row * sizeof first.id, &first.id, sizeof first.id);
    std::memcpy(combined.bytes.data() + row * row_bytes_, GradientOf(applied[first.push], first.row), row_bytes_);
    return ++row != 0;
  });
  return combined;
}

// Readers

Result<RowAnswer> RowContent::Taken(size_t bytes, size_t most) const {
  if (bytes > most)
    return Status(Code::kInvalid, "a read of rows is answered with " + std::to_string(bytes) + " bytes or more, and " +
                                      std::to_string(most) + " is the limit: read fewer rows at a time");
  RowAnswer answer{memory_.Take(bytes), bytes};
  if (answer.buffer.size() < bytes) return memory_.Exhausted();
  return answer;
}

void RowContent::CopyRows(std::span<const uint64_t> ids, std::span<const uint32_t> slots, std::byte* to) const {
  const auto prefetch = [&](size_t i) {
    if (i < slots.size() && slots[i] != RowTable::kNone) table_.Prefetch(slots[i], sizeof(Head) + row_bytes_);
  };
  for (size_t i = 0; i < kRowsAhead; ++i) prefetch(i);
  for (size_t i = 0; i < slots.size(); ++i, to += row_bytes_) {
    prefetch(i + kRowsAhead);
    if (slots[i] == RowTable::kNone) {
      first_values_.Make(ids[i], dtype_, width_, to);
    } else {
      std::memcpy(to, ValueAt(slots[i]), row_bytes_);
    }
  }
}

Result<RowAnswer> RowContent::All(std::span<const uint64_t> ids, size_t most) const {
  auto answer = Taken(ids.size() * row_bytes_, most);
  if (!answer.ok()) return answer;
  std::array<uint32_t, kBatch> slots;
  for (size_t begin = 0; begin < ids.size(); begin += kBatch) {
    const auto batch = ids.subspan(begin, std::min(kBatch, ids.size() - begin));
    table_.Find(batch, slots.data());
    CopyRows(batch, {slots.data(), batch.size()}, answer->buffer.data() + begin * row_bytes_);
  }
  return answer;
}

Result<RowAnswer> RowContent::Stale(std::span<const uint64_t> ids, const uint32_t* known, uint64_t bound,
                                    size_t most) const {
  std::vector<uint64_t> wanted;
  std::vector<uint32_t> slots(ids.size()), chosen, versions;
  std::vector<uint8_t> bitmap(Padded((ids.size() + 7) / 8));
  table_.Find(ids, slots.data());
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t version = slots[i] == RowTable::kNone ? 0 : HeadAt(slots[i]).version;
    if (known[i] != kUnknown && version - known[i] <= bound) continue;
    bitmap[i / 8] |= static_cast<uint8_t>(1u << (i % 8));
    wanted.push_back(ids[i]);
    chosen.push_back(slots[i]);
    versions.push_back(version);
  }
  const size_t before = bitmap.size() + Padded(versions.size() * sizeof(uint32_t));
  auto answer = Taken(before + chosen.size() * row_bytes_, most);
  if (!answer.ok() || ids.empty()) return answer;
  std::byte* const to = answer->buffer.data();
  std::memset(to, 0, before);
  std::memcpy(to, bitmap.data(), bitmap.size());
  if (!versions.empty()) std::memcpy(to + bitmap.size(), versions.data(), versions.size() * sizeof(uint32_t));
  CopyRows(wanted, chosen, to + before);
  return answer;
}

bool RowContent::Has(const IdRange& range, uint64_t id, uint32_t slot) const {
  if (id < range.low || id >= range.high) return false;
  const Head& head = HeadAt(slot);
  return head.exists() && (range.since == 0 || head.version > range.since);
}

// At most so many of them, which ones is not said.
RowContent::Found RowContent::Find(const IdRange& range, size_t most) const {
  Found found;
  table_.VisitAll([&](uint64_t id, uint32_t slot) {
    if (found.size() < most && Has(range, id, slot)) found.emplace_back(id, slot);
  });
  std::ranges::sort(found);
  return found;
}

// The first `count` of them, without sorting the rest: twice as many are cut to the first `count` of them, and ids
// beyond the last of these are passed over from then on, so that few records are read.
RowContent::Found RowContent::First(IdRange range, size_t count) const {
  Found found;
  const auto cut = [&] {
    const auto end = found.begin() + static_cast<Found::difference_type>(count);
    std::ranges::nth_element(found, end - 1);
    found.erase(end, found.end());
    range.high = found.back().first;
  };
  table_.VisitAll([&](uint64_t id, uint32_t slot) {
    if (!Has(range, id, slot)) return;
    found.emplace_back(id, slot);
    if (found.size() == 2 * count) cut();
  });
  if (found.size() > count) cut();
  std::ranges::sort(found);
  return found;
}

Result<RowAnswer> RowContent::Range(const IdRange& range, size_t count, size_t most) const {
  const Found found = count == 0 ? Find(range, most / (sizeof(uint64_t) + row_bytes_) + 1) : First(range, count);
  auto answer = Taken(found.size() * (sizeof(uint64_t) + row_bytes_), most);
  if (!answer.ok()) return answer;
  std::byte* to = answer->buffer.data();
  std::vector<uint64_t> ids;
  std::vector<uint32_t> slots;
  for (const auto& [id, slot] : found) {
    std::memcpy(to, &id, sizeof id);
    to += sizeof id;
    ids.push_back(id);
    slots.push_back(slot);
  }
  CopyRows(ids, slots, to);
  return answer;
}

// Functions

std::vector<uint32_t> RowContent::Slots(std::span<const uint64_t> ids) const {
  std::vector<uint32_t> slots(ids.size());
  table_.Find(ids, slots.data());
  return slots;
}

Status RowContent::MakeSlots(std::span<const uint64_t> ids, std::vector<uint32_t>* slots) {
  slots->resize(ids.size());
  return FindOrMake(ids, slots->data());
}

void RowContent::Replace(std::span<const uint32_t> slots, const std::byte* values, int64_t version) {
  for (size_t i = 0; i < slots.size(); ++i, values += row_bytes_) {
    HeadAt(slots[i]).version = static_cast<uint32_t>(version);
    std::memcpy(ValueAt(slots[i]), values, row_bytes_);
  }
}

}  // namespace byteps_like
