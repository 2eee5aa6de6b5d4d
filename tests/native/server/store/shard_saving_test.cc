// What is saved of a shard and restored: cuts of all ranks, repeated requests, links that break, what makes no sense.
#include "server/store/saving/shard_saving.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "csrc/wire/bytes.h"

namespace byteps_like::testing::shard_saving {
namespace {

constexpr uint32_t kRanks = 3;
constexpr size_t kElements = 6;
constexpr uint64_t kX = 8, kY = 9, kTable = 10;

class Text {
 public:
  template <typename T>
  Text& operator<<(T value) {
    std::byte bytes[sizeof(T)];
    PutLittle(bytes, value);
    text.append(reinterpret_cast<const char*>(bytes), sizeof bytes);
    return *this;
  }
  Text& operator<<(const std::string& more) {
    text += more;
    return *this;
  }
  std::string text;
};

template <typename T>
T At(const std::string& text, size_t place) {
  REQUIRE(text.size() >= place + sizeof(T));
  return GetLittle<T>(reinterpret_cast<const std::byte*>(text.data()) + place);
}

std::string Cut(const std::vector<uint64_t>& keys, const std::string& word) {
  Text text;
  text << static_cast<uint32_t>(keys.size());
  for (const uint64_t key : keys) text << key;
  return (text << word).text;
}

Text Request(StateRequest what, uint64_t key) {
  Text text;
  text << static_cast<uint8_t>(what) << key;
  return text;
}

// Two values with momentum, and a table with adam.
class Shard : public SavedKeys {
 public:
  Shard() : memory_("shard 0", 0, held_) {
    saving_.Reset(kRanks);
    auto rules = StoreRules::Parse("asp", "sum:age=none,damp=none", "momentum:lr=1.0,momentum=0.5,weight_decay=0.0");
    REQUIRE_MESSAGE(rules.ok(), rules.status().message());
    for (const uint64_t key : {kX, kY}) {
      auto made = StoreKey::Make(*rules, {DType::kFloat32, {kElements, 1}, Filled(0)}, kRanks, 0, memory_);
      REQUIRE(made.ok());
      keys_.emplace(key, std::move(*made));
    }
    auto table = StoreKey::Make(*rules, StoreRows{DType::kFloat32, 2}, kRanks, 0, memory_);
    REQUIRE(table.ok());
    keys_.emplace(kTable, std::move(*table));
  }

  StoreKey* FindKey(uint64_t key) override { return keys_.contains(key) ? keys_.at(key).get() : nullptr; }
  bool HasLeft(uint32_t rank) const override { return left.contains(rank); }
  void RestAt(uint64_t key, uint32_t rank) override { resting.insert({key, rank}); }
  void WakeAt(uint64_t key, uint32_t rank) override { resting.erase({key, rank}); }
  void Restored(uint64_t, const Status& status, std::vector<PushAnswer> answers) override {
    CHECK(status.ok());
    late += answers.size();
  }
  void AnswerRequest(uint32_t rank, const Header& header, const std::string& payload) override {
    answers[rank].emplace_back(header, payload);
  }
  void RefuseRequest(uint32_t, uint64_t, const std::string& what) override { refused.push_back(what); }
  double RequestTime() const override { return 4; }

  void Send(uint32_t rank, FrameType type, uint32_t number, const std::string& text, uint64_t key = kX) {
    Header header;
    header.type = type;
    header.key = key;
    header.round = number;
    saving_.OnFrame(rank, header, {reinterpret_cast<const std::byte*>(text.data()), text.size()});
  }
  // The answer of a request of rank 0.
  std::string Asked(const Text& text, Code code = Code::kOk) {
    Send(0, FrameType::kState, numbers++, text.text);
    CHECK(answers[0].back().first.aux == static_cast<uint32_t>(code));
    return answers[0].back().second;
  }
  void Push(uint64_t key, uint32_t source, float number) {
    std::vector<PushAnswer> told;
    const Ledger& ledger = FindKey(key)->ledger();
    WholePush whole{{source, ledger.Clock(source), ledger.version(), 1}, Filled(number), std::nullopt};
    REQUIRE(FindKey(key)->Push(std::move(whole), 0, &told).ok());
  }
  ShardSaving& saving() { return saving_; }

  std::map<uint32_t, std::vector<std::pair<Header, std::string>>> answers;
  std::vector<std::string> refused;
  std::set<uint32_t> left;
  std::set<std::pair<uint64_t, uint32_t>> resting;
  size_t late = 0;
  uint32_t numbers = 0;

 private:
  ShardBuffer Filled(float number) {
    ShardBuffer buffer = memory_.Take(kElements * sizeof(float));
    for (size_t i = 0; i < kElements; ++i) std::memcpy(buffer.data() + i * sizeof(float), &number, sizeof(float));
    return buffer;
  }

  std::atomic<uint64_t> held_{0};
  ShardMemory memory_;
  std::map<uint64_t, std::unique_ptr<StoreKey>> keys_;
  ShardSaving saving_{*this, memory_};
};

std::string Read(Shard& shard, uint64_t key, SavedPart part) {
  return shard.Asked(Request(StateRequest::kRead, key)
                     << static_cast<uint8_t>(part) << uint64_t{0} << uint64_t{kElements * sizeof(float)});
}

}  // namespace

TEST_CASE("shard saving: a cut is over when all ranks have come, and says what each has said") {
  Shard shard;
  shard.Send(1, FrameType::kCut, 0, Cut({kX, kY}, "one"));
  shard.Send(0, FrameType::kCut, 0, Cut({kX, kY}, ""));
  CHECK(shard.answers.empty());
  CHECK(shard.resting == std::set<std::pair<uint64_t, uint32_t>>{{kX, 0}, {kY, 0}, {kX, 1}, {kY, 1}});
  REQUIRE(shard.saving().Waits(0).size() == 2);
  CHECK(shard.saving().Waits(0)[1].text ==
        "store key 8: rank 1 waits until all ranks save or restore it; ranks that do not: 2");
  CHECK(shard.saving().Waits(9)[0].since == 9);
  shard.Send(2, FrameType::kCut, 0, Cut({kX, kY}, "2"));
  CHECK(shard.resting.empty());
  CHECK_FALSE(shard.saving().waits());
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    REQUIRE(shard.answers[rank].size() == 1);
    const auto [header, words] = shard.answers[rank].front();
    CHECK(header.type == FrameType::kCut);
    CHECK(words == (Text() << 0u << 3u << std::string("one") << 1u << std::string("2")).text);
    shard.Send(rank, FrameType::kCut, 0, Cut({kX, kY}, "again"));  // the answer was lost
    CHECK(shard.answers[rank].back().second == words);
  }
}

TEST_CASE("shard saving: a link that breaks takes a rank out of a cut, and one that leaves isn't waited for") {
  Shard shard;
  shard.Send(0, FrameType::kCut, 0, Cut({kX}, "a"));
  shard.saving().OnLinkGone(0);
  CHECK(shard.resting.empty());
  shard.Send(1, FrameType::kCut, 0, Cut({kX}, "b"));
  shard.Send(0, FrameType::kCut, 0, Cut({kX}, "a"));
  CHECK(shard.answers.empty());
  shard.left.insert(2);
  shard.saving().OnLeft(2);
  CHECK(shard.answers[0].front().second ==
        (Text() << 1u << std::string("a") << 1u << std::string("b") << kNoWord).text);
}

TEST_CASE("shard saving: ranks that cut through different keys are told, all of them") {
  Shard shard;
  shard.Send(0, FrameType::kCut, 0, Cut({kX, kY}, ""));
  shard.Send(1, FrameType::kCut, 0, Cut({kX}, ""));
  for (const uint32_t rank : {0u, 1u}) {
    CHECK(shard.answers[rank].front().first.aux == static_cast<uint32_t>(Code::kMismatch));
    CHECK(shard.answers[rank].front().second.find("disagree") != std::string::npos);
  }
  CHECK(shard.resting.empty());
}

TEST_CASE("shard saving: a value, its state and its version come, and go back, together") {
  Shard shard;
  for (const float number : {1.0f, 2.0f}) shard.Push(kX, 1, number);
  const std::string value = Read(shard, kX, SavedPart::kValue), state = Read(shard, kX, SavedPart::kState);
  CHECK(At<uint64_t>(value, 0) == 2);
  float velocity = 0;
  std::memcpy(&velocity, state.data() + sizeof(uint64_t), sizeof velocity);
  CHECK(velocity == 2.5f);
  const std::string heads = shard.Asked(Text() << static_cast<uint8_t>(StateRequest::kHeads) << kX << kTable);
  CHECK(At<uint64_t>(heads, 0) == 2);
  CHECK(At<uint64_t>(heads, 8) == kElements * sizeof(float));
  CHECK(At<uint32_t>(heads, 20) == kRanks);
  CHECK(At<uint64_t>(heads, 24) == 0);
  CHECK(At<uint64_t>(heads, 32) == 2);
  CHECK(heads.size() == 2 * (24 + 8 * kRanks));
  shard.Push(kX, 0, 7);

  shard.Asked(Request(StateRequest::kClear, kX));
  for (const auto& [part, bytes] : {std::pair{SavedPart::kValue, value}, std::pair{SavedPart::kState, state}})
    for (const size_t at : {size_t{0}, size_t{12}})
      shard.Asked(Request(StateRequest::kWrite, kX)
                  << static_cast<uint8_t>(part) << uint64_t{at} << bytes.substr(8 + at, 12));
  CHECK(Read(shard, kX, SavedPart::kValue) != value);
  shard.Asked(Request(StateRequest::kCommit, kX) << uint64_t{2});
  CHECK(Read(shard, kX, SavedPart::kValue) == value);
  CHECK(Read(shard, kX, SavedPart::kState) == state);
  CHECK(shard.FindKey(kX)->ledger().version() == 2);
  CHECK(shard.FindKey(kX)->ledger().Clock(0) == 1);  // whose clock goes on
  shard.Push(kX, 0, 1);
  CHECK(shard.FindKey(kX)->ledger().version() == 3);
}

TEST_CASE("shard saving: what was brought is dropped when it is cleared") {
  Shard shard;
  const std::string before = Read(shard, kX, SavedPart::kValue);
  shard.Asked(Request(StateRequest::kClear, kX));
  shard.Asked(Request(StateRequest::kWrite, kX) << uint8_t{0} << uint64_t{0} << std::string(8, '\x01'));
  shard.Asked(Request(StateRequest::kClear, kX));
  shard.Asked(Request(StateRequest::kCommit, kX) << uint64_t{5});
  CHECK(Read(shard, kX, SavedPart::kValue).substr(8) == before.substr(8));
}

TEST_CASE("shard saving: a restoration that was begun at another server is not ended here") {
  Shard shard;
  const auto lost = [&](const Text& text) { CHECK_FALSE(shard.Asked(text, Code::kPeerLost).empty()); };
  lost(Request(StateRequest::kWrite, kX) << uint8_t{0} << uint64_t{0} << std::string(8, 'a'));
  lost(Request(StateRequest::kWriteRows, kTable));
  lost(Request(StateRequest::kCommit, kX) << uint64_t{5});
  shard.Asked(Request(StateRequest::kClear, kX));
  shard.Asked(Request(StateRequest::kCommit, kX) << uint64_t{5});
  lost(Request(StateRequest::kCommit, kX) << uint64_t{6});
  CHECK(shard.FindKey(kX)->ledger().version() == 5);
}

TEST_CASE("shard saving: a restoration ends when it is given up, or when its rank leaves") {
  Shard shard;
  const auto before = shard.FindKey(kX)->ledger().version();
  const auto is_over = [&] {
    CHECK_FALSE(shard.Asked(Request(StateRequest::kCommit, kX) << uint64_t{5}, Code::kPeerLost).empty());
    CHECK(shard.saving().restoring() == 0);
    CHECK(shard.FindKey(kX)->ledger().version() == before);
  };
  shard.Asked(Request(StateRequest::kGiveUp, kX));  // none has begun
  shard.Asked(Request(StateRequest::kClear, kX));
  CHECK(shard.saving().restoring() == 1);
  shard.Asked(Request(StateRequest::kGiveUp, kX));
  is_over();
  shard.Asked(Request(StateRequest::kClear, kX));
  shard.saving().OnLeft(1);
  CHECK(shard.saving().restoring() == 1);
  shard.saving().OnLeft(0);
  is_over();
}

TEST_CASE("shard saving: what makes no sense is answered so, and changes nothing") {
  Shard shard;
  for (const uint64_t key : {kX, kTable}) shard.Asked(Request(StateRequest::kClear, key));
  const auto wrong = [&](const Text& text) { CHECK_FALSE(shard.Asked(text, Code::kInvalid).empty()); };
  wrong(Text());
  wrong(Text() << uint8_t{0} << kX);
  wrong(Text() << uint8_t{9} << kX);
  wrong(Request(StateRequest::kRead, 77));
  wrong(Request(StateRequest::kRead, kX) << uint8_t{0});
  wrong(Request(StateRequest::kRead, kX) << uint8_t{2} << uint64_t{0} << uint64_t{4});
  wrong(Request(StateRequest::kRead, kX) << uint8_t{0} << uint64_t{1} << uint64_t{24});
  wrong(Request(StateRequest::kRead, kX) << uint8_t{0} << ~uint64_t{0} << uint64_t{24});
  wrong(Request(StateRequest::kRead, kTable) << uint8_t{0} << uint64_t{0} << uint64_t{8});
  wrong(Request(StateRequest::kRows, kX) << uint64_t{0});
  wrong(Request(StateRequest::kWrite, kX) << uint8_t{0} << uint64_t{20} << std::string(8, 'a'));
  wrong(Request(StateRequest::kWriteRows, kX) << uint64_t{0});
  wrong(Request(StateRequest::kWriteRows, kTable) << uint64_t{0});
  wrong(Request(StateRequest::kCommit, kX) << uint32_t{0});
  wrong(Request(StateRequest::kCommit, kX) << ~uint64_t{0});
  wrong(Text() << static_cast<uint8_t>(StateRequest::kHeads) << uint64_t{77});
  CHECK(shard.FindKey(kX)->ledger().version() == 0);
  shard.Send(0, FrameType::kState, shard.numbers + 1, "x");
  CHECK(shard.refused.back() == "request 19 has come in place of request 18");
  shard.Send(0, FrameType::kCut, shard.numbers, Cut({}, ""));
  shard.Send(0, FrameType::kCut, shard.numbers, Cut({77}, ""));
  shard.Send(0, FrameType::kCut, shard.numbers, Cut({kX}, std::string(kMaxWord + 1, 'a')));
  CHECK(shard.refused.size() == 4);
}

}  // namespace byteps_like::testing::shard_saving
