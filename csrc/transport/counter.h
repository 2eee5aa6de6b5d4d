// A count that one thread advances and any thread reads.
#pragma once

#include <atomic>
#include <cstdint>

namespace byteps_like {

class Counter {
 public:
  void Add(uint64_t more) { value_.store(get() + more, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct Traffic {  // one direction of a link, headers included in bytes
  Counter frames, bytes, payload;
};

}  // namespace byteps_like
