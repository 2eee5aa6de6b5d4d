// Codecs as payload filters: what they say is what the codec says alone, of any trait; what is cut off is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "compression/registry.h"
#include "server/store/filters/filters.h"
#include "tests/native/compression/codec_specs.h"

namespace byteps_like {
namespace {

class Memory {
 public:
  ShardMemory& shard() { return shard_; }
  template <typename T>
  Filtered Copied(const std::vector<T>& values) {
    Filtered found{shard_.Take(values.size() * sizeof(T)), values.size() * sizeof(T)};
    std::memcpy(found.buffer.data(), values.data(), found.bytes);
    return found;
  }

 private:
  std::atomic<uint64_t> held_ = 0;
  ShardMemory shard_{"a test", 0, held_};
};

template <typename T>
std::vector<T> Drawn(size_t count) {
  std::mt19937 draw(7);
  std::normal_distribution<double> normal;
  std::vector<T> values(count);
  for (T& value : values) value = draw() % 8 == 0 ? static_cast<T>(normal(draw)) : T{0};
  return values;
}

template <typename T>
std::vector<T> There(const Filtered& rows) {
  std::vector<T> values(rows.bytes / sizeof(T));
  std::memcpy(values.data(), rows.buffer.data(), rows.bytes);
  return values;
}

// A payload, and what it stands for.
template <typename T>
std::pair<Filtered, std::vector<T>> ThroughFilter(const char* spec, DType dtype, const std::vector<T>& x,
                                                  Memory& memory) {
  const auto filters = *Filters::Parse(spec);
  const Filtered rows = memory.Copied(x);
  const Draw draw{.key = 3, .round = 4, .rank = 5};
  auto payload = filters->Encode(dtype, draw, {rows.buffer.data(), rows.bytes}, 1u << 30, memory.shard());
  REQUIRE(payload.ok());
  CHECK(filters->Fits(dtype, rows.bytes, payload->bytes));
  Filtered copy = memory.Copied(There<std::byte>(*payload));
  auto decoded = filters->Decode(dtype, std::move(copy), rows.bytes, memory.shard());
  REQUIRE_MESSAGE(decoded.ok(), spec << ": " << decoded.status().message());
  decoded->bytes = rows.bytes;
  return {std::move(*payload), There<T>(*decoded)};
}

}  // namespace

TEST_CASE("codec filters: of every codec, float64 comes as float32 does") {
  Memory memory;
  for (const char* const spec : testing::kSpecs) {
    if (std::string_view(spec) == "sketch:block=256,density=0.01,seed=0") continue;  // too small for these
    for (const size_t count : {1, 7, 64, 1000, 70'001}) {
      CAPTURE(spec);
      CAPTURE(count);
      const auto x = Drawn<float>(count);
      const auto [payload, found] = ThroughFilter(spec, DType::kFloat32, x, memory);
      const std::vector<double> wide(x.begin(), x.end());
      const auto [same, widely] = ThroughFilter(spec, DType::kFloat64, wide, memory);
      CHECK(There<std::byte>(payload) == There<std::byte>(same));
      CHECK(std::vector<float>(widely.begin(), widely.end()) == found);
    }
  }
}

TEST_CASE("codec filters: codecs without loss give what went in, whatever their trait") {
  Memory memory;
  for (const char* const spec : {"bitmap", "coo", "blocksparse:block=7,dense=1"}) {
    const auto x = Drawn<float>(5000);
    CHECK(ThroughFilter(spec, DType::kFloat32, x, memory).second == x);
  }
}

TEST_CASE("codec filters: of a vote, each contribution is its own") {
  Memory memory;
  const std::vector<float> x = {1.5f, -2, 0.5f, -8};
  const auto found = ThroughFilter("sign:block=64,magnitude=unit,seed=0", DType::kFloat32, x, memory).second;
  CHECK(found == std::vector<float>{1, -1, 1, -1});
}

TEST_CASE("codec filters: what is cut off is no payload") {
  Memory memory;
  for (const char* const spec : testing::kSpecs) {
    const auto filters = *Filters::Parse(spec);
    const std::vector<std::byte> cut(7);
    const auto decoded = filters->Decode(DType::kFloat32, memory.Copied(cut), 400, memory.shard());
    CHECK(decoded.status().code() == Code::kCorrupt);
    CHECK(decoded.status().message().find("is cut off: it has 7 bytes") != std::string::npos);
  }
}

TEST_CASE("codec filters: integers, other parameters and a second place are refused") {
  CHECK((*Filters::Parse("bf16"))->Check(DType::kInt64).message() == "codec bf16 takes float32 and float64, not int64");
  CHECK(Filters::Parse("bf16:bits=3").status().code() == Code::kInvalid);
  CHECK(Filters::Parse("zlib:level=1 bf16").status().message() == "filter bf16 takes rows: let it be the first");
}

}  // namespace byteps_like
