#include "tests/software_gpu/launch.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/software_gpu/block.h"
#include "tests/software_gpu/cuda.h"

namespace software_gpu {

void Register(const Kernel* kernel);

namespace {

std::vector<const Kernel*>& Table() {
  static std::vector<const Kernel*> table;
  return table;
}

std::mutex turn;  // guards what follows, and all of the running block
const Kernel* launched = nullptr;
void* const* launched_with = nullptr;

void RunThread() { launched->run(launched_with); }

// Exactly as long as it says: what is beyond is the sanitizer's.
struct Free {
  void operator()(unsigned char* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<unsigned char, Free>;

Memory Allocate(uint32_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 16, bytes == 0 ? 1 : bytes) != 0) std::abort();
  return Memory(static_cast<unsigned char*>(memory));
}

// Kept, with their stacks, until one fails.
std::vector<std::unique_ptr<Block>> blocks;

Block& BlockOf(uint32_t threads) {
  for (const auto& block : blocks)
    if (block->threads() == threads) return *block;
  return *blocks.emplace_back(std::make_unique<Block>(threads));
}

}  // namespace

void Register(const Kernel* kernel) { Table().push_back(kernel); }
std::span<const Kernel* const> Kernels() { return Table(); }

const Kernel* Find(std::string_view name) {
  const auto found = std::ranges::find(Table(), name, [](const Kernel* kernel) { return kernel->name; });
  return found == Table().end() ? nullptr : *found;
}

std::string Launch(const Kernel& kernel, const Shape& shape, void* const* arguments) {
  const std::string about = "kernel " + std::string(kernel.name) + ": ";
  if (shape.threads != kernel.threads)
    return about + "launched with " + std::to_string(shape.threads) + " threads a block, written for " +
           std::to_string(kernel.threads);
  if (shape.blocks == 0) return about + "launched with no blocks";
  std::lock_guard lock(turn);
  launched = &kernel;
  launched_with = arguments;
  grid_size = {shape.blocks, 1, 1};
  block_size = {shape.threads, 1, 1};
  const Memory memory = Allocate(shape.shared);
  dynamic_shared = memory.get();
  Block& threads = BlockOf(shape.threads);
  for (uint32_t block = 0; block < shape.blocks; ++block) {
    std::memset(memory.get(), 0xA5, shape.shared);
    const std::string failure = threads.Run(block, RunThread);
    if (failure.empty()) continue;
    blocks.clear();
    return about + "block " + std::to_string(block) + ": " + failure;
  }
  return "";
}

}  // namespace software_gpu
