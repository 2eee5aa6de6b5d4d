#include "csrc/base/trace.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace byteps_like {
namespace {

constexpr uint32_t kMostTexts = 1u << 14;
constexpr size_t kLeastRecords = 2, kMostRecords = 1u << 22;

// One thread puts, one takes. Its memory is touched as it is used.
class Ring {
 public:
  Ring(size_t records, uint32_t thread)
      : thread_(thread), mask_(records - 1), memory_(new std::byte[records * sizeof(TraceRecord)]) {}

  void Put(TraceRecord& record) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head - tail_.load(std::memory_order_acquire) > mask_) {
      lost_.store(lost_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      return;
    }
    record.thread = thread_;
    std::memcpy(At(head), &record, sizeof record);
    head_.store(head + 1, std::memory_order_release);
  }

  void Take(std::vector<TraceRecord>& out) {
    uint64_t tail = tail_.load(std::memory_order_relaxed);
    const uint64_t head = head_.load(std::memory_order_acquire);
    for (; tail != head; ++tail) std::memcpy(&out.emplace_back(), At(tail), sizeof(TraceRecord));
    tail_.store(tail, std::memory_order_release);
  }

  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }
  void End() { ended_.store(true, std::memory_order_release); }  // its thread has put its last
  bool ended() const { return ended_.load(std::memory_order_acquire); }

 private:
  std::byte* At(uint64_t position) const { return memory_.get() + (position & mask_) * sizeof(TraceRecord); }

  const uint32_t thread_;
  const uint64_t mask_;
  const std::unique_ptr<std::byte[]> memory_;
  alignas(64) std::atomic<uint64_t> head_{0};
  std::atomic<uint64_t> lost_{0};
  std::atomic<bool> ended_{false};
  alignas(64) std::atomic<uint64_t> tail_{0};
};

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Ring>> rings;  // of an ended thread: until it was drained
  size_t records = 1u << 15;
  uint32_t threads = 0;
  uint64_t lost_of_ended = 0;
  std::unordered_map<std::string, uint32_t> numbers;
  std::vector<std::string> texts;
};

Registry& TheRegistry() {
  static auto* const registry = new Registry();  // threads may still record while the process ends
  return *registry;
}

// A thread's hold on its ring.
struct Writer {
  Writer() {
    Registry& registry = TheRegistry();
    std::lock_guard lock(registry.mutex);
    ring = registry.rings.emplace_back(std::make_unique<Ring>(registry.records, registry.threads++)).get();
  }
  ~Writer() { ring->End(); }
  Ring* ring;
};

}  // namespace

void Trace(TraceRecord record) {
  thread_local const Writer writer;
  writer.ring->Put(record);
}

void TraceSince(int64_t begin, TraceRecord record) {
  const int64_t now = TraceClock();
  record.begin = begin == 0 ? now : begin;
  record.duration = now - record.begin;
  Trace(record);
}

uint32_t TraceText(std::string_view text) {
  Registry& registry = TheRegistry();
  std::lock_guard lock(registry.mutex);
  const auto found = registry.numbers.find(std::string(text));
  if (found != registry.numbers.end()) return found->second;
  if (registry.texts.size() >= kMostTexts) return 0;
  registry.texts.emplace_back(text);
  return registry.numbers[registry.texts.back()] = static_cast<uint32_t>(registry.texts.size());
}

void StartTracing(size_t records) {
  Registry& registry = TheRegistry();
  {
    std::lock_guard lock(registry.mutex);
    registry.records = std::bit_ceil(std::clamp(records, kLeastRecords, kMostRecords));
  }
  internal::tracing.store(true, std::memory_order_relaxed);
}

void StopTracing() { internal::tracing.store(false, std::memory_order_relaxed); }

Traced DrainTrace() {
  Registry& registry = TheRegistry();
  Traced traced;
  std::lock_guard lock(registry.mutex);
  std::erase_if(registry.rings, [&](const std::unique_ptr<Ring>& ring) {
    const bool ended = ring->ended();  // looked at before the last records are taken
    ring->Take(traced.records);
    if (ended) registry.lost_of_ended += ring->lost();
    traced.lost += ended ? 0 : ring->lost();
    return ended;
  });
  traced.lost += registry.lost_of_ended;
  return traced;
}

std::vector<std::string> TraceTexts(uint32_t first) {
  Registry& registry = TheRegistry();
  std::lock_guard lock(registry.mutex);
  const size_t begin = std::min<size_t>(std::max(first, 1u) - 1, registry.texts.size());
  return {registry.texts.begin() + static_cast<std::ptrdiff_t>(begin), registry.texts.end()};
}

}  // namespace byteps_like
