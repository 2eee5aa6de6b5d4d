// What one run of a command is on, of one shard: a partition of each of some tensors, or rows of a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/base/status.h"
#include "csrc/wire/call.h"
#include "server/memory.h"
#include "server/store/store_key.h"

namespace byteps_like {

class Command;

// What it runs on stays as it is until Commit. On the shard's thread; keys and memory live longer.
class CalledValues {
 public:
  struct Key {
    uint64_t number = 0;
    StoreKey* key = nullptr;
  };

  explicit CalledValues(std::vector<Key> keys) : keys_(std::move(keys)) {}
  virtual ~CalledValues() = default;
  std::span<const Key> keys() const { return keys_; }  // one of each tensor
  DType dtype() const { return keys_.front().key->dtype(); }

  // kInvalid for what is not finite; kCapacity.
  virtual Status Run(const Command& command, const ServerCall& call, Figures* figures) = 0;
  // What was written counts. The keys that have it.
  virtual std::vector<uint64_t> Commit() = 0;

 private:
  const std::vector<Key> keys_;
};

// Dense values, all as long.
class CalledPartition final : public CalledValues {
 public:
  CalledPartition(std::vector<Key> keys, ShardMemory& memory)
      : CalledValues(std::move(keys)), memory_(memory), results_(this->keys().size()) {}

  Status Run(const Command& command, const ServerCall& call, Figures* figures) override;
  std::vector<uint64_t> Commit() override;

 private:
  ShardMemory& memory_;
  std::vector<ShardBuffer> results_;  // of those that are written
};

// Of the first table those rows of a range that there are, in the order of their ids, some at a time; of the others the
// rows of the same ids: zeros where there is none, which a function that writes them makes.
class CalledRows final : public CalledValues {
 public:
  CalledRows(std::vector<Key> tables, const IdRange& range, ShardMemory& memory);

  Status Run(const Command& command, const ServerCall& call, Figures* figures) override;
  std::vector<uint64_t> Commit() override;

 private:
  RowContent& rows(size_t table) const { return keys()[table].key->rows(); }
  size_t row_bytes() const { return rows(0).row_bytes(); }
  Status Prepare(const Command& command);

  ShardMemory& memory_;
  std::vector<uint64_t> ids_;
  struct Table {
    std::vector<uint32_t> slots;
    bool written = false;
    ShardBuffer results;  // of all rows, if they are written
  };
  std::vector<Table> tables_;
};

}  // namespace byteps_like
