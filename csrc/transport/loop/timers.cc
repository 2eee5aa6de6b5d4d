#include "csrc/transport/loop/timers.h"

#include <utility>

namespace byteps_like {

uint64_t Timers::Add(Deadline when, std::function<void()> task) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  const Entry entry{when, (++last_ << kSlotBits) | slot};
  slots_[slot].id = entry.id;
  slots_[slot].task = std::move(task);
  heap_.push_back(entry);
  Put(heap_.size() - 1, entry);
  SiftUp(heap_.size() - 1);
  return entry.id;
}

void Timers::Cancel(uint64_t id) {
  const size_t slot = id & ((1u << kSlotBits) - 1);
  if (slot < slots_.size() && slots_[slot].id == id && id != 0) Remove(slots_[slot].place);
}

std::function<void()> Timers::TakeSoonest() { return Remove(0); }

std::function<void()> Timers::Remove(size_t place) {
  Slot& slot = SlotOf(heap_[place]);
  auto task = std::exchange(slot.task, nullptr);
  slot.id = 0;
  free_slots_.push_back(static_cast<uint32_t>(&slot - slots_.data()));
  const Entry last = heap_.back();
  heap_.pop_back();
  if (place == heap_.size()) return task;
  Put(place, last);
  SiftUp(place);
  SiftDown(SlotOf(last).place);
  return task;
}

void Timers::Put(size_t place, const Entry& entry) {
  heap_[place] = entry;
  SlotOf(entry).place = place;
}

void Timers::SiftUp(size_t place) {
  const Entry entry = heap_[place];
  for (size_t parent; place > 0 && entry < heap_[parent = (place - 1) / 2]; place = parent) Put(place, heap_[parent]);
  Put(place, entry);
}

void Timers::SiftDown(size_t place) {
  const Entry entry = heap_[place];
  for (size_t child; (child = 2 * place + 1) < heap_.size(); place = child) {
    if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
    if (!(heap_[child] < entry)) break;
    Put(place, heap_[child]);
  }
  Put(place, entry);
}

}  // namespace byteps_like
