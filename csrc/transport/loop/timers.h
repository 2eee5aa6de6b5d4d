// One-shot timers of an event loop: a heap, soonest first, in which each knows its place, so that setting and
// cancelling one costs a logarithm of how many there are. Takes memory only while their number grows.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "csrc/transport/stream.h"

namespace byteps_like {

class Timers {
 public:
  uint64_t Add(Deadline when, std::function<void()> task);  // its id, never 0
  void Cancel(uint64_t id);                                 // does nothing if it has been taken
  bool empty() const { return heap_.empty(); }
  Deadline soonest() const { return heap_.front().when; }  // not of none
  std::function<void()> TakeSoonest();                     // of equal ones, that which was added first

 private:
  struct Entry {
    Deadline when;
    uint64_t id = 0;  // a number that grows, above the slot
    bool operator<(const Entry& other) const { return when != other.when ? when < other.when : id < other.id; }
  };
  struct Slot {
    uint64_t id = 0;
    size_t place = 0;  // in the heap
    std::function<void()> task;
  };

  static constexpr int kSlotBits = 24;
  Slot& SlotOf(const Entry& entry) { return slots_[entry.id & ((1u << kSlotBits) - 1)]; }
  void Put(size_t place, const Entry& entry);
  void SiftUp(size_t place);
  void SiftDown(size_t place);
  std::function<void()> Remove(size_t place);

  std::vector<Entry> heap_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  uint64_t last_ = 0;
};

}  // namespace byteps_like
