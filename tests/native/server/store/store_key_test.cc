// A store key and its memory: limits, copies for readers, and what is refused. What values become is compared with the
// Python twin in tests/property/store/test_native_key.py.
#include "server/store/store_key.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace byteps_like {
namespace {

constexpr size_t kCount = 1024;
constexpr size_t kBytes = kCount * sizeof(float);

// A key of 1,024 zeros of fp32, and pushes to it.
class KeyFixture {
 public:
  explicit KeyFixture(const char* policy, const char* update = "add", uint64_t limit = 0)
      : memory_("shard 0", limit, held_), key_(Made(policy, update)) {}

  Result<std::unique_ptr<StoreKey>>& made() { return key_; }
  StoreKey& key() { return **key_; }
  ShardMemory& memory() { return memory_; }
  uint64_t held() const { return held_; }

  ShardBuffer Filled(float number) {
    ShardBuffer buffer = memory_.Take(kBytes);
    REQUIRE(buffer.size() >= kBytes);
    for (size_t i = 0; i < kCount; ++i) std::memcpy(buffer.data() + i * sizeof(float), &number, sizeof(float));
    return buffer;
  }
  // The source's next, on the version in force.
  WholePush Next(uint32_t source, float number, std::optional<double> lr = std::nullopt) {
    const Ledger& ledger = key().ledger();
    return {{source, ledger.Clock(source), ledger.version(), 1}, Filled(number), lr};
  }
  Status Push(WholePush&& push) {
    answers.clear();
    return key().Push(std::move(push), 0, &answers);
  }

  std::vector<PushAnswer> answers;

 private:
  Result<std::unique_ptr<StoreKey>> Made(const char* policy, const char* update) {
    auto rules = StoreRules::Parse(policy, "sum:age=none,damp=none", update);
    REQUIRE_MESSAGE(rules.ok(), rules.status().message());
    return StoreKey::Make(*rules, {DType::kFloat32, {kCount, 1}, Filled(0)}, 2, 0, memory_);
  }

  std::atomic<uint64_t> held_{0};
  ShardMemory memory_;
  Result<std::unique_ptr<StoreKey>> key_;
};

float First(const Snapshot& snapshot) {
  float number = 0;
  std::memcpy(&number, snapshot.value->data(), sizeof number);
  return number;
}

TEST_CASE("store key: a value without readers changes in place, and staged contributions go back") {
  KeyFixture fixture("asp");
  const std::byte* const place = fixture.key().value().value->data();
  for (int step = 1; step <= 3; ++step) {
    REQUIRE(fixture.Push(fixture.Next(0, 1)).ok());
    CHECK(fixture.key().value().value->data() == place);
    CHECK(First(fixture.key().value()) == static_cast<float>(step));
  }
  CHECK(fixture.held() == 2 * kBytes);  // the value, and one contribution at a time
}

TEST_CASE("store key: readers keep their version, each its own, while later ones are made") {
  KeyFixture fixture("asp");
  std::vector<Snapshot> read;
  for (int step = 0; step < 4; ++step) {
    read.push_back(fixture.key().value());
    REQUIRE(fixture.Push(fixture.Next(0, 1)).ok());
  }
  for (int step = 0; step < 4; ++step) {
    CHECK(read[step].version == step);
    CHECK(First(read[step]) == static_cast<float>(step));
  }
  read.clear();
  CHECK(First(fixture.key().value()) == 4);
  const std::byte* const place = fixture.key().value().value->data();
  REQUIRE(fixture.Push(fixture.Next(1, 1)).ok());
  CHECK(fixture.key().value().value->data() == place);
}

TEST_CASE("store key: a version of nothing that is finite needs no copy, but is one") {
  KeyFixture fixture("asp");
  const Snapshot read = fixture.key().value();
  REQUIRE(fixture.Push(fixture.Next(0, std::numeric_limits<float>::infinity())).ok());
  REQUIRE(fixture.answers.size() == 1);
  CHECK(fixture.answers[0].applied == Applied::kNotFinite);
  CHECK(read.version == 0);
  CHECK(fixture.key().value().version == 1);
  CHECK(fixture.key().value().value == read.value);
}

TEST_CASE("store key: where there is no memory for the state there is no key") {
  KeyFixture fixture("asp", "momentum:lr=0.1,momentum=0.9,weight_decay=0", kBytes);
  CHECK(fixture.made().status().code() == Code::kCapacity);
}

TEST_CASE("store key: without memory for a copy nothing has happened, and a push can be made again") {
  KeyFixture fixture("asp", "add", 2 * kBytes);
  Snapshot read = fixture.key().value();
  WholePush push = fixture.Next(0, 1);
  const Status status = fixture.Push(std::move(push));
  CHECK(status.code() == Code::kCapacity);
  CHECK(fixture.answers.empty());
  CHECK(fixture.key().ledger().Clock(0) == 0);
  read = {};
  REQUIRE(push.gradient.size() >= kBytes);  // NOLINT(bugprone-use-after-move): it was not taken
  REQUIRE(fixture.Push(std::move(push)).ok());
  CHECK(First(fixture.key().value()) == 1);
}

TEST_CASE("store key: time and losses make versions too, or nothing without memory") {
  KeyFixture fixture("k_of_n:grace=1,k=1,late=drop,max_age=0", "add", 3 * kBytes);
  REQUIRE(fixture.Push(fixture.Next(0, 1)).ok());
  CHECK(fixture.key().ReadyAt() == 1);
  Snapshot read = fixture.key().value();
  ShardBuffer other = fixture.memory().Take(kBytes);
  CHECK(fixture.key().PassTime(0.5, &fixture.answers).ok());
  CHECK(fixture.key().PassTime(1, &fixture.answers).code() == Code::kCapacity);
  CHECK(fixture.key().Lose(1, 1, &fixture.answers).code() == Code::kCapacity);
  CHECK(fixture.key().ledger().live() == 2);
  CHECK(fixture.key().value().version == 0);
  other.Release();
  REQUIRE(fixture.key().Lose(1, 1, &fixture.answers).ok());
  CHECK(fixture.key().value().version == 1);
  CHECK(First(read) == 0);
}

TEST_CASE("store key: ranks of two schedules are refused, and a repetition is not asked again") {
  KeyFixture fixture("bsp", "sgd:lr=0.5,weight_decay=0");
  REQUIRE(fixture.Push(fixture.Next(0, 1, 0.1)).ok());
  const Status status = fixture.Push(fixture.Next(1, 1));
  CHECK(status.code() == Code::kMismatch);
  CHECK(status.message() ==
        "rank 1 has pushed with lr=None, but rank 0 with lr=0.1, both computed on version 0: all ranks must have one "
        "schedule");
  WholePush again{{0, 0, 0, 1}, {}, 0.7};
  CHECK(fixture.key().HasCome(again.push));
  CHECK(fixture.Push(std::move(again)).ok());
  CHECK(fixture.answers.empty());  // it is open: the answer comes with the version
  REQUIRE(fixture.Push(fixture.Next(1, 3, 0.1)).ok());
  CHECK(fixture.answers.size() == 2);
  CHECK(First(fixture.key().value()) == doctest::Approx(-0.4));
}

TEST_CASE("store key: a held contribution is told so each time it comes, then counted once") {
  KeyFixture fixture("bsp");
  REQUIRE(fixture.Push(fixture.Next(0, 1)).ok());
  WholePush second = fixture.Next(0, 10);
  const StorePush note = second.push;
  REQUIRE(fixture.Push(std::move(second)).ok());
  for (int times = 0; times < 2; ++times) {
    REQUIRE(fixture.answers.size() == 1);
    CHECK(fixture.answers[0].applied == Applied::kHeld);
    REQUIRE(fixture.Push({note, {}, {}}).ok());
  }
  REQUIRE(fixture.Push(fixture.Next(1, 2)).ok());
  REQUIRE(fixture.Push(fixture.Next(1, 20)).ok());
  CHECK(First(fixture.key().value()) == 33);
  REQUIRE(fixture.Push({note, {}, {}}).ok());
  REQUIRE(fixture.answers.size() == 1);
  CHECK(fixture.answers[0].applied == Applied::kCounted);
  CHECK(fixture.answers[0].version == 2);
  fixture.key().Heard(0, 2);
  CHECK(fixture.Push({note, {}, {}}).code() == Code::kCorrupt);
}

}  // namespace
}  // namespace byteps_like
