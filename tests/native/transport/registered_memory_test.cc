#include "csrc/transport/memory/registered_memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "csrc/engine/buffer_pool.h"
#include "csrc/transport/memory/shared_buffer.h"
#include "server/memory.h"

namespace byteps_like::testing {
namespace {

class Watcher final : public MemoryWatcher {
 public:
  Watcher() { StartWatching(); }
  ~Watcher() override { StopWatching(); }
  void OnMemoryGone(uint64_t id) override { gone.push_back(id); }
  bool Saw(uint64_t id) const { return std::count(gone.begin(), gone.end(), id) == 1; }
  std::vector<uint64_t> gone;
};

}  // namespace

TEST_CASE("registered memory: found whole or not at all, gone with its owner, and watchers are told before") {
  Watcher watcher;
  std::vector<std::byte> memory(4096);
  std::byte* const data = memory.data();
  uint64_t id = 0;
  const uint64_t before = MemoryGeneration();
  {
    RegisteredMemory first(data, 4000);
    RegisteredMemory registered = std::move(first);
    const auto found = FindMemory(data + 10, 3990);
    REQUIRE(found.has_value());
    CHECK(found->data == data);
    CHECK(found->bytes == 4000);
    id = found->id;
    CHECK_FALSE(FindMemory(data + 10, 3991).has_value());
    CHECK_FALSE(FindMemory(data + 4001, 1).has_value());
    CHECK(MemoryGeneration() > before);
    CHECK(watcher.gone.empty());
  }
  CHECK(watcher.Saw(id));
  CHECK_FALSE(FindMemory(data, 1).has_value());
}

TEST_CASE("registered memory: shared buffers, the memory of shards and pools of payloads are in it while they live") {
  Watcher watcher;
  std::vector<uint64_t> ids;
  const auto note = [&](const std::byte* data, size_t bytes) {
    const auto found = FindMemory(data, bytes);
    REQUIRE(found.has_value());
    ids.push_back(found->id);
  };
  std::atomic<uint64_t> held{0};
  {
    auto buffer = SharedBuffer::Create(100'000);
    REQUIRE(buffer.ok());
    note((*buffer)->data(), 100'000);
    ShardMemory memory("test", 0, held);
    const ShardBuffer sum = memory.Take(1 << 20);
    note(sum.data(), 1 << 20);
    BufferPool pool;
    PooledBuffer payload = pool.Take(1 << 20);
    note(payload.data, 1 << 20);
    pool.Give(payload);
    CHECK(watcher.gone.empty());
  }
  for (const uint64_t id : ids) CHECK(watcher.Saw(id));
}

}  // namespace byteps_like::testing
