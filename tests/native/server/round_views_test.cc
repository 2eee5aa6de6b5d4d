// One round object through views of other sizes: each round is over the ranks that it began with.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "server/policy/policies.h"
#include "server/rounds/dense_round.h"

namespace byteps_like::testing {
namespace {

constexpr uint32_t kCount = 48;
constexpr uint32_t kBytes = kCount * sizeof(float);

std::shared_ptr<std::byte> Filled(float value) {
  auto memory = std::make_shared<std::vector<float>>(kCount, value);
  return {memory, reinterpret_cast<std::byte*>(memory->data())};
}

float First(const std::shared_ptr<std::byte>& memory) { return *reinterpret_cast<const float*>(memory.get()); }

// Rank r brings r + 1; `absent` brings nothing.
void CheckAverage(DenseRound& round, uint32_t number, uint32_t ranks, uint32_t absent) {
  CAPTURE(ranks);
  Header first;
  first.round = number;
  first.op = Op::kAverage;
  first.total = kBytes;
  const Terms terms = TermsOf(first, nullptr);
  const PolicyRow* const row = FindPolicy(Policies(), terms);
  REQUIRE(row != nullptr);
  const Seats seats(ranks);
  round.Begin(first, terms, {*row}, seats);
  CHECK(round.ranks().size() == ranks);
  std::vector<std::shared_ptr<std::byte>> memories;
  float sum = 0;
  uint32_t brought = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    CHECK_FALSE(round.finished());
    if (rank == absent) {
      round.Excuse(rank);
      continue;
    }
    round.Refer(rank, memories.emplace_back(Filled(static_cast<float>(rank + 1))));
    sum += static_cast<float>(rank + 1);
    ++brought;
  }
  auto advanced = round.Advance();
  REQUIRE(advanced.ok());
  CHECK(*advanced);
  CHECK(round.finished());
  for (const auto& memory : memories) CHECK(First(memory) == doctest::Approx(sum / static_cast<float>(brought)));
  round.Release();
}

}  // namespace

TEST_CASE("averages are divided by those who bring something in the view of their round") {
  std::atomic<uint64_t> used{0};
  ShardMemory memory("shard", 0, used);
  DenseRound round(0, memory);
  uint32_t number = 0;
  for (const uint32_t ranks : {2u, 5u, 1u, 8u, 3u}) CheckAverage(round, number++, ranks, kNobody);
  for (const uint32_t ranks : {3u, 6u, 2u}) CheckAverage(round, number++, ranks, ranks - 1);
}

}  // namespace byteps_like::testing
