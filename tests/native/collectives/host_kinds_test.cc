// Every kind of host collective against a closed form, over ranks, sizes, element types and kinds of memory.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "tests/native/collectives/host_fixture.h"

namespace byteps_like::testing {
namespace {

enum class Memory { kPrivate, kShared, kMixed };

// What rank `rank` has at place `i` of what it sends to `to`: small, so that sums are exact in every type.
int Value(uint32_t rank, uint32_t to, size_t i) { return static_cast<int>((rank * 7 + to * 3 + i * 5 + i / 64) % 11); }

int SumAt(uint32_t ranks, uint32_t to, size_t i) {
  int sum = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) sum += Value(rank, to, i);
  return sum;
}

// Elements as small integers, in the three types of the tests.
void Put(DType dtype, std::byte* at, size_t i, int value) {
  const auto real = static_cast<float>(value);
  const auto integer = static_cast<int64_t>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &real, 4);
  const auto brain = static_cast<uint16_t>(bits >> 16);
  if (dtype == DType::kFloat32) std::memcpy(at + i * 4, &real, 4);
  if (dtype == DType::kBFloat16) std::memcpy(at + i * 2, &brain, 2);
  if (dtype == DType::kInt64) std::memcpy(at + i * 8, &integer, 8);
  if (dtype == DType::kUInt8) at[i] = static_cast<std::byte>(value);
}

int Get(DType dtype, const std::byte* at, size_t i) {
  float real = 0;
  int64_t integer = 0;
  uint16_t brain = 0;
  if (dtype == DType::kFloat32) std::memcpy(&real, at + i * 4, 4);
  if (dtype == DType::kInt64) std::memcpy(&integer, at + i * 8, 8);
  if (dtype == DType::kUInt8) return std::to_integer<int>(at[i]);
  if (dtype == DType::kBFloat16) {
    std::memcpy(&brain, at + i * 2, 2);
    const uint32_t bits = static_cast<uint32_t>(brain) << 16;
    std::memcpy(&real, &bits, 4);
  }
  return dtype == DType::kInt64 ? static_cast<int>(integer) : static_cast<int>(real);
}

struct Case {
  uint32_t ranks;
  DType dtype;
  Memory memory;
  size_t count;  // elements of a tensor, or about as many per section
  bool in_place = false;
};

// Elements of the section from `from` to `to`: uneven, some empty.
size_t SectionCount(const Case& c, uint32_t from, uint32_t to) {
  if (c.count > 1 && (from + 2 * to) % 5 == 4) return 0;
  return c.count == 0 ? 0 : c.count + (from * 3 + to) % 4 * (c.count > 64 ? 17 : 0);
}

// One rank's memory in a case: taken from its region or from the heap.
class Memories {
 public:
  Memories(const Case& c, HostRank me)
      : at_(me.region), shared_(c.memory == Memory::kShared || (c.memory == Memory::kMixed && me.rank % 2 == 0)) {}
  std::byte* Take(size_t bytes) {
    if (!shared_) return heap_.emplace_back(bytes + 1, std::byte{0xEE}).data();
    std::byte* taken = at_;
    at_ += (bytes + 127) / 64 * 64;
    return taken;
  }

 private:
  std::byte* at_;
  bool shared_;
  std::vector<std::vector<std::byte>> heap_;
};

struct Sections {
  std::vector<Chunk> chunks;
  uint64_t bytes = 0;
};

template <typename CountOf>
Sections LaySections(const Case& c, const CountOf& count_of) {
  Sections sections;
  for (uint32_t j = 0; j < c.ranks; ++j) {
    const uint64_t bytes = count_of(j) * SizeOf(c.dtype);
    sections.chunks.push_back({static_cast<int64_t>(sections.bytes), bytes});
    sections.bytes += bytes + 8;  // gaps: they need not touch
  }
  return sections;
}

void Fill(const Case& c, std::byte* at, size_t count, uint32_t from, uint32_t to) {
  for (size_t i = 0; i < count; ++i) Put(c.dtype, at, i, Value(from, to, i));
}

template <typename Expected>
size_t Wrong(const Case& c, const std::byte* at, size_t count, const Expected& expected) {
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += Get(c.dtype, at, i) != expected(i);
  return wrong;
}

size_t TryAllReduce(const Case& c, HostRank me, HostGroup& group, HostKind kind) {
  Memories memories(c, me);
  const uint64_t bytes = c.count * SizeOf(c.dtype);
  std::byte* input = memories.Take(bytes);
  std::byte* output = c.in_place ? input : memories.Take(bytes);
  Fill(c, input, c.count, me.rank, 0);
  const uint32_t root = c.ranks - 1;
  HostCall call{.kind = kind, .dtype = c.dtype, .root = root, .input = input, .output = output, .bytes = bytes};
  if (!group.Run(call).ok()) return 1;
  if (kind == HostKind::kReduce && me.rank != root) return 0;
  return Wrong(c, output, c.count, [&](size_t i) { return SumAt(c.ranks, 0, i); });
}

size_t TryBroadcast(const Case& c, HostRank me, HostGroup& group) {
  Memories memories(c, me);
  const uint64_t bytes = c.count * SizeOf(c.dtype);
  std::byte* tensor = memories.Take(bytes);
  const uint32_t root = c.ranks / 2;
  Fill(c, tensor, c.count, me.rank, 0);
  HostCall call{
      .kind = HostKind::kBroadcast, .dtype = c.dtype, .root = root, .input = tensor, .output = tensor, .bytes = bytes};
  if (!group.Run(call).ok()) return 1;
  return Wrong(c, tensor, c.count, [&](size_t i) { return Value(root, 0, i); });
}

size_t TryReduceScatter(const Case& c, HostRank me, HostGroup& group) {
  Memories memories(c, me);
  const auto count_to = [&](uint32_t to) { return SectionCount(c, 0, to); };
  const Sections in = LaySections(c, count_to);
  std::byte* input = memories.Take(in.bytes);
  std::byte* output = c.in_place ? input + in.chunks[me.rank].offset : memories.Take(in.chunks[me.rank].bytes);
  for (uint32_t to = 0; to < c.ranks; ++to) Fill(c, input + in.chunks[to].offset, count_to(to), me.rank, to);
  HostCall call{.kind = HostKind::kReduceScatter, .dtype = c.dtype, .input = input, .output = output};
  call.bytes = in.chunks[me.rank].bytes;
  call.input_chunks = in.chunks;
  if (!group.Run(call).ok()) return 1;
  return Wrong(c, output, count_to(me.rank), [&](size_t i) { return SumAt(c.ranks, me.rank, i); });
}

size_t TryGather(const Case& c, HostRank me, HostGroup& group, HostKind kind) {
  Memories memories(c, me);
  const auto count_from = [&](uint32_t from) { return SectionCount(c, from, 0); };
  const Sections out = LaySections(c, count_from);
  std::byte* output = memories.Take(out.bytes);
  const auto own = out.chunks[me.rank];
  std::byte* input = c.in_place ? output + own.offset : memories.Take(own.bytes);
  Fill(c, input, count_from(me.rank), me.rank, 0);
  const uint32_t root = c.ranks - 1;
  HostCall call{.kind = kind, .dtype = c.dtype, .root = root, .input = input, .output = output, .bytes = own.bytes};
  call.output_chunks = out.chunks;
  if (!group.Run(call).ok()) return 1;
  if (kind == HostKind::kGather && me.rank != root) return 0;
  size_t wrong = 0;
  for (uint32_t from = 0; from < c.ranks; ++from) {
    wrong += Wrong(c, output + out.chunks[from].offset, count_from(from), [&](size_t i) { return Value(from, 0, i); });
  }
  return wrong;
}

size_t TryScatter(const Case& c, HostRank me, HostGroup& group) {
  Memories memories(c, me);
  const auto count_to = [&](uint32_t to) { return SectionCount(c, 0, to); };
  const Sections in = LaySections(c, count_to);
  std::byte* input = memories.Take(in.bytes);
  std::byte* output = memories.Take(in.chunks[me.rank].bytes);
  for (uint32_t to = 0; to < c.ranks; ++to) Fill(c, input + in.chunks[to].offset, count_to(to), me.rank, to);
  HostCall call{.kind = HostKind::kScatter, .dtype = c.dtype, .input = input, .output = output};
  call.bytes = in.chunks[me.rank].bytes;
  if (me.rank == 0) call.input_chunks = in.chunks;
  if (!group.Run(call).ok()) return 1;
  return Wrong(c, output, count_to(me.rank), [&](size_t i) { return Value(0, me.rank, i); });
}

size_t TryAllToAll(const Case& c, HostRank me, HostGroup& group) {
  Memories memories(c, me);
  const Sections in = LaySections(c, [&](uint32_t to) { return SectionCount(c, me.rank, to); });
  const Sections out = LaySections(c, [&](uint32_t from) { return SectionCount(c, from, me.rank); });
  std::byte* input = memories.Take(in.bytes);
  std::byte* output = memories.Take(out.bytes);
  for (uint32_t to = 0; to < c.ranks; ++to) {
    Fill(c, input + in.chunks[to].offset, SectionCount(c, me.rank, to), me.rank, to);
  }
  HostCall call{.kind = HostKind::kAllToAll, .dtype = c.dtype, .input = input, .output = output};
  call.input_chunks = in.chunks;
  call.output_chunks = out.chunks;
  if (!group.Run(call).ok()) return 1;
  size_t wrong = 0;
  for (uint32_t from = 0; from < c.ranks; ++from) {
    wrong += Wrong(c, output + out.chunks[from].offset, SectionCount(c, from, me.rank),
                   [&](size_t i) { return Value(from, me.rank, i); });
  }
  return wrong;
}

size_t Try(HostKind kind, const Case& c, HostRank me, HostGroup& group) {
  switch (kind) {
    case HostKind::kBroadcast:
      return TryBroadcast(c, me, group);
    case HostKind::kReduceScatter:
      return TryReduceScatter(c, me, group);
    case HostKind::kAllGather:
    case HostKind::kGather:
      return TryGather(c, me, group, kind);
    case HostKind::kScatter:
      return TryScatter(c, me, group);
    case HostKind::kAllToAll:
      return TryAllToAll(c, me, group);
    case HostKind::kBarrier:
      return group.Run({.kind = kind}).ok() ? 0 : 1;
    default:
      return TryAllReduce(c, me, group, kind);
  }
}

void CheckEveryKind(const std::vector<Case>& cases, size_t region_bytes = 48u << 20) {
  const uint32_t ranks = cases.front().ranks;
  HostWorld world(ranks, region_bytes);
  world.Run([&](HostRank me) {
    auto group = me.area.Group(1, world.everybody());
    REQUIRE(group.ok());
    for (const Case& c : cases) {
      for (int kind = 0; kind < kHostKindCount; ++kind) {
        CAPTURE(kind);
        CAPTURE(me.rank);
        CAPTURE(c.count);
        CAPTURE(static_cast<int>(c.memory));
        CAPTURE(static_cast<int>(c.dtype));
        CHECK(Try(static_cast<HostKind>(kind), c, me, **group) == 0);
      }
    }
  });
}

}  // namespace

TEST_CASE("host: every kind, 1 to 5 ranks, every memory, sizes around the thresholds") {
  for (const uint32_t ranks : {1u, 2u, 3u, 4u, 5u}) {
    CAPTURE(ranks);
    std::vector<Case> cases;
    for (const Memory memory : {Memory::kPrivate, Memory::kShared, Memory::kMixed}) {
      for (const size_t count : {0u, 1u, 17u, 1000u, 4096u, 4097u, 8193u, 65536u, 70001u, 200003u}) {
        cases.push_back({ranks, DType::kFloat32, memory, count, count % 2 == 1});
      }
    }
    CheckEveryKind(cases);
  }
}

TEST_CASE("host: every kind with elements of 1, 2 and 8 bytes") {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kUInt8, DType::kBFloat16, DType::kInt64}) {
    for (const Memory memory : {Memory::kPrivate, Memory::kShared, Memory::kMixed}) {
      for (const size_t count : {1u, 1001u, 70001u})
        cases.push_back({3, dtype, memory, count, memory == Memory::kMixed});
    }
  }
  CheckEveryKind(cases);
}

TEST_CASE("host: every kind with as many ranks as an area is for, which no area is for more of") {
  std::vector<Case> cases;
  for (const Memory memory : {Memory::kPrivate, Memory::kShared, Memory::kMixed})
    cases.push_back({kMostHostRanks, DType::kFloat32, memory, 17});
  CheckEveryKind(cases, 64u << 10);
  HostWorld world(kMostHostRanks + 1);
  CHECK(HostArea::Attach({world.area(), 0, RankNames(kMostHostRanks + 1), nullptr}).status().code() == Code::kInvalid);
}

TEST_CASE("host: a large tensor, 2 and 3 ranks") {
  for (const uint32_t ranks : {2u, 3u}) {
    for (const Memory memory : {Memory::kPrivate, Memory::kShared}) {
      CheckEveryKind({{ranks, DType::kFloat32, memory, 1200007u}});
    }
  }
}

TEST_CASE("host: sums in the order of ranks are bit-identical on all ranks, in any memory, run after run") {
  constexpr uint32_t kRanks = 4;
  constexpr size_t kCount = 150001;
  HostWorld world(kRanks, 4u << 20);
  std::vector<std::vector<float>> results(kRanks * 4);
  world.Run([&](HostRank me) {
    auto group = me.area.Group(1, world.everybody());
    std::mt19937 random(me.rank);
    std::normal_distribution<float> normal;
    std::vector<float> input(kCount);
    for (float& x : input) x = normal(random);
    auto* shared = reinterpret_cast<float*>(me.region);
    for (uint32_t run = 0; run < 4; ++run) {
      const bool in_region = run % 2 == 0 || (run == 3 && me.rank < 2);
      std::vector<float>& result = results[me.rank * 4 + run];
      result.resize(kCount);
      std::copy(input.begin(), input.end(), shared);
      float* in = in_region ? shared : input.data();
      float* out = in_region ? shared + kCount : result.data();
      HostCall call{.bytes = kCount * 4};
      call.input = reinterpret_cast<std::byte*>(in);
      call.output = reinterpret_cast<std::byte*>(out);
      CHECK((*group)->Run(call).ok());
      if (in_region) std::copy(out, out + kCount, result.begin());
    }
  });
  for (const auto& result : results) CHECK(std::memcmp(result.data(), results[0].data(), kCount * 4) == 0);
}

TEST_CASE("host: average divides, by the divisor given") {
  HostWorld world(3);
  world.Run([&](HostRank me) {
    auto group = me.area.Group(1, world.everybody());
    std::vector<float> tensor(10, static_cast<float>(me.rank));
    auto* data = reinterpret_cast<std::byte*>(tensor.data());
    HostCall call{.op = Op::kAverage, .divisor = 6, .input = data, .output = data, .bytes = 40};
    CHECK((*group)->Run(call).ok());
    CHECK(tensor == std::vector<float>(10, 0.5F));
  });
}

}  // namespace byteps_like::testing
