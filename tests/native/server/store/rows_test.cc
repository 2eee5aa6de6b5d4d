// Ranges of random rows, compared with a sorted map. Whole tables are compared with NumPy in
// tests/property/store/test_native_rows.py.
#include "server/store/content/rows.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "csrc/wire/frame.h"
#include "server/update/updates.h"

namespace byteps_like {
namespace {

using Ids = std::vector<uint64_t>;
using Values = std::vector<float>;
constexpr size_t kWidth = 3;

struct Expected {
  uint32_t version = 0;
  Values value;
};

// A table, and what is in it.
class RandomRows {
 public:
  RandomRows(uint32_t seed, uint64_t largest_id, size_t count) : random_(seed), largest_id_(largest_id) {
    std::set<uint64_t> drawn;
    for (size_t i = 0; i < count; ++i) drawn.insert(RandomId());
    const Ids ids(drawn.begin(), drawn.end());
    std::vector<uint32_t> slots;
    REQUIRE(content_->MakeSlots(ids, &slots).ok());
    for (size_t i = 0; i < ids.size(); ++i) {
      if (random_() % 4 == 0) continue;  // its memory is taken, and it doesn't exist
      Expected& row = rows_[ids[i]];
      row = {static_cast<uint32_t>(1 + random_() % 9), Values(kWidth, static_cast<float>(random_() % 1000))};
      content_->Replace({&slots[i], 1}, reinterpret_cast<const std::byte*>(row.value.data()), row.version);
    }
  }

  uint64_t RandomId() { return std::uniform_int_distribution<uint64_t>(0, largest_id_)(random_); }

  // Compares one range, or the first `count` rows of it.
  void Check(const IdRange& range, size_t count) {
    CAPTURE(range.low);
    CAPTURE(range.high);
    CAPTURE(range.since);
    CAPTURE(count);
    auto answer = content_->Range(range, count, kMaxPartition);
    REQUIRE(answer.ok());
    const auto [ids, values] = First(range, count);
    REQUIRE(answer->bytes == ids.size() * (sizeof(uint64_t) + kWidth * sizeof(float)));
    const std::byte* const bytes = answer->buffer.data();
    if (ids.empty()) return;
    CHECK(std::memcmp(bytes, ids.data(), ids.size() * sizeof(uint64_t)) == 0);
    CHECK(std::memcmp(bytes + ids.size() * sizeof(uint64_t), values.data(), values.size() * sizeof(float)) == 0);
  }

  // Reads `count` rows at a time, each time from behind the last one, until there are fewer: these are all rows.
  void CheckPieces(size_t count) {
    size_t read = 0;
    for (uint64_t low = 0;;) {
      const IdRange rest{.low = low, .high = std::numeric_limits<uint64_t>::max()};
      Check(rest, count);
      const Ids ids = First(rest, count).first;
      read += ids.size();
      if (ids.size() < count) break;
      low = ids.back() + 1;
    }
    CHECK(read == rows_.size());
  }

  size_t size() const { return rows_.size(); }

 private:
  std::pair<Ids, Values> First(const IdRange& range, size_t count) const {
    std::pair<Ids, Values> found;
    for (const auto& [id, row] : rows_) {
      if (id < range.low || id >= range.high || (range.since != 0 && row.version <= range.since)) continue;
      if (count != 0 && found.first.size() == count) break;
      found.first.push_back(id);
      found.second.insert(found.second.end(), row.value.begin(), row.value.end());
    }
    return found;
  }

  std::mt19937_64 random_;
  const uint64_t largest_id_;
  std::atomic<uint64_t> held_ = 0;
  ShardMemory memory_{"a test", 0, held_};
  UpdatePointer update_ = std::move(*MakeUpdate("add"));
  std::unique_ptr<const FirstValues> zeros_ = std::move(*MakeFirstValues("zeros"));
  std::unique_ptr<RowContent> content_ =
      std::move(*RowContent::Make(*update_, *zeros_, DType::kFloat32, kWidth, memory_));
  std::map<uint64_t, Expected> rows_;
};

}  // namespace

TEST_CASE("store rows: a range has its first rows in the order of their ids") {
  for (const uint64_t largest : {uint64_t{700}, std::numeric_limits<uint64_t>::max() - 1}) {
    for (const size_t made : {0u, 1u, 2u, 60u, 3000u}) {
      CAPTURE(largest);
      CAPTURE(made);
      RandomRows rows(static_cast<uint32_t>(made), largest, made);
      const size_t all = rows.size();
      for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{7}, all / 2, all, all + 1, 2 * all, 3 * all}) {
        rows.Check({.low = 0, .high = std::numeric_limits<uint64_t>::max()}, count);
        rows.Check({.low = rows.RandomId(), .high = rows.RandomId()}, count);
        for (uint64_t since = 0; since < 11; since += 2)
          rows.Check({.low = rows.RandomId(), .high = std::numeric_limits<uint64_t>::max(), .since = since}, count);
      }
    }
  }
}

TEST_CASE("store rows: pieces of a table are all of it") {
  RandomRows rows(5, std::numeric_limits<uint64_t>::max() - 1, 2000);
  for (const size_t count : {size_t{1}, size_t{16}, size_t{100}, rows.size(), rows.size() + 1}) rows.CheckPieces(count);
}

}  // namespace byteps_like
