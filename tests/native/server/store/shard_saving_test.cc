// What is saved of a shard and restored: cuts of all ranks, repeated requests, links that break, what makes no sense.
#include "server/store/saving/shard_saving.h"

#include <doctest/doctest.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/wire/bytes.h"
#include "server/store/saving/key_bytes.h"
#include "server/store/saving/set_aside.h"

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
  uint32_t PutAside(uint64_t key) override {
    aside.insert(key);
    return key == kX ? 5 : kNoShard;
  }
  std::optional<uint32_t> OwnShard() const override { return own; }
  void AskAside(uint32_t shard, std::string text, ShardAsks::Then then) override {
    asked.emplace_back(shard, std::move(text), std::move(then));
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
  std::set<uint64_t> aside;
  std::optional<uint32_t> own = 3;
  std::vector<std::tuple<uint32_t, std::string, ShardAsks::Then>> asked;
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
  wrong(Text() << uint8_t{13} << kX);
  wrong(Text() << static_cast<uint8_t>(StateRequest::kLetGo) << uint64_t{1});
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
  wrong(Text() << static_cast<uint8_t>(StateRequest::kSetAside) << uint64_t{77});
  CHECK(shard.FindKey(kX)->ledger().version() == 0);
  shard.Send(0, FrameType::kState, shard.numbers + 1, "x");
  CHECK(shard.refused.back() == "request 21 has come in place of request 20");
  shard.Send(0, FrameType::kCut, shard.numbers, Cut({}, ""));
  shard.Send(0, FrameType::kCut, shard.numbers, Cut({77}, ""));
  shard.Send(0, FrameType::kCut, shard.numbers, Cut({kX}, std::string(kMaxWord + 1, 'a')));
  CHECK(shard.refused.size() == 4);
}

// Between two worlds --------------------------------------------------------------------------------------------------

namespace {

Text Of(const std::string& text) {
  Text made;
  made.text = text;
  return made;
}

std::string Name(uint64_t key, int64_t version, uint32_t epoch = 7) { return (Text() << epoch << key << version).text; }

std::string Bytes(SavedPart part, uint64_t offset, uint64_t bytes) {
  return (Text() << static_cast<uint8_t>(part) << offset << bytes).text;
}

Text Take(uint64_t key, SavedPart part, uint64_t target, uint32_t shard, const std::string& what) {
  return Request(StateRequest::kTake, key) << static_cast<uint8_t>(part) << target << shard << what;
}

// A key of the world before, whose value has been pushed to once.
std::unique_ptr<StoreKey> Momentum(ShardMemory& memory, float number) {
  auto rules = StoreRules::Parse("asp", "sum:age=none,damp=none", "momentum:lr=1.0,momentum=0.5,weight_decay=0.0");
  const auto filled = [&](float one) {
    ShardBuffer buffer = memory.Take(kElements * sizeof(float));
    for (size_t i = 0; i < kElements; ++i) std::memcpy(buffer.data() + i * sizeof(float), &one, sizeof(float));
    return buffer;
  };
  auto key = StoreKey::Make(*rules, {DType::kFloat32, {kElements, 1}, filled(0)}, 1, 0, memory);
  std::vector<PushAnswer> told;
  REQUIRE((*key)->Push({{0, 0, 0, 1}, filled(number), std::nullopt}, 0, &told).ok());
  return std::move(*key);
}

}  // namespace

TEST_CASE("shard saving: what is set aside is said to be here, and where else") {
  Shard shard;
  shard.Push(kX, 0, 1);
  const std::string answer = shard.Asked(Of(std::string(1, char(StateRequest::kSetAside))) << kX << kTable);
  CHECK(At<uint32_t>(answer, 0) == 3);
  CHECK(At<uint32_t>(answer, 4) == 5);
  CHECK(At<uint32_t>(answer, 8) == kNoShard);
  CHECK(At<int64_t>(answer, 12) == 1);  // then the heads
  CHECK(shard.aside == std::set<uint64_t>{kX, kTable});
  shard.own.reset();
  CHECK(shard.Asked(Of(std::string(1, char(StateRequest::kSetAside))) << kY, Code::kInvalid).find("next one") !=
        std::string::npos);
  CHECK(!shard.aside.contains(kY));
}

TEST_CASE("shard saving: a shard takes what was set aside, and answers when it is here") {
  Shard shard;
  const std::string what = Name(70, 1) + Bytes(SavedPart::kValue, 4, 8);
  CHECK(shard.Asked(Request(StateRequest::kClear, kX)).empty());
  const Text take = Take(kX, SavedPart::kValue, 12, 9, what);
  const uint32_t number = shard.numbers++;
  shard.Send(0, FrameType::kState, number, take.text);
  shard.Send(0, FrameType::kState, number, take.text);  // over another link
  REQUIRE(shard.asked.size() == 1);
  CHECK(shard.answers[0].size() == 1);
  const auto& [from, text, then] = shard.asked.front();
  CHECK(from == 9);
  CHECK(text == what);
  std::atomic<uint64_t> held{0};
  ShardMemory memory("a shard", 0, held);
  SetAside aside;
  SetAside::Keys keys;
  keys.emplace(70, Momentum(memory, 3));
  aside.Replace(7, std::move(keys));
  then(aside.Answer(std::as_bytes(std::span(text))));
  REQUIRE(shard.answers[0].size() == 2);
  CHECK(shard.answers[0].back().first.aux == 0);
  CHECK(shard.Asked(Request(StateRequest::kCommit, kX) << int64_t{1}).empty());
  const std::string value = Read(shard, kX, SavedPart::kValue);
  for (size_t i = 0; i < kElements; ++i)
    CHECK(std::bit_cast<float>(At<uint32_t>(value, 8 + 4 * i)) == (i == 3 || i == 4 ? -3.0f : 0.0f));
}

TEST_CASE("shard saving: who waits for another shard is named, and answered when that has let go") {
  Shard shard;
  Text let_go;
  let_go << static_cast<uint8_t>(StateRequest::kLetGo) << uint32_t{4};
  shard.Send(1, FrameType::kState, 0, let_go.text);
  CHECK(shard.saving().waits());
  const auto waits = shard.saving().Waits(0);
  REQUIRE(waits.size() == 1);
  CHECK(waits[0].rank == 1);
  CHECK(waits[0].text == "rank 1 waits for what shard 4 of all servers has set aside of the world before");
  REQUIRE(shard.asked.size() == 1);
  CHECK(std::get<0>(shard.asked[0]) == 4);
  CHECK(std::get<1>(shard.asked[0]) == (Text() << uint32_t{0} << kAllKeys).text);
  std::get<2>(shard.asked[0])(std::string());
  CHECK_FALSE(shard.saving().waits());
  CHECK(shard.answers[1].back().first.aux == 0);
}

TEST_CASE("shard saving: what can't be taken is said") {
  std::atomic<uint64_t> held{0};
  ShardMemory memory("a shard", 0, held);
  SetAside aside;
  SetAside::Keys keys;
  keys.emplace(70, Momentum(memory, 3));
  aside.Replace(7, std::move(keys));
  const auto code = [&](const std::string& asked) {
    const Status status = aside.Answer(std::as_bytes(std::span(asked))).status();
    return status.code();
  };
  const std::string bytes = Bytes(SavedPart::kState, 0, 8);
  CHECK(code(Name(70, 1) + bytes) == Code::kOk);
  CHECK(code(Name(71, 1) + bytes) == Code::kPeerLost);
  CHECK(code(Name(70, 2) + bytes) == Code::kPeerLost);
  CHECK(code(Name(70, 1, 6) + bytes) == Code::kPeerLost);
  CHECK(code(Name(70, 1) + Bytes(SavedPart::kState, 20, 8)) == Code::kInvalid);
  CHECK(code(Name(70, 1) + std::string(8, 0)) == Code::kInvalid);
  CHECK(code("short") == Code::kInvalid);
  CHECK(aside.size() == 1);
  CHECK(code((Text() << uint32_t{0} << kAllKeys).text) == Code::kOk);
  CHECK(aside.size() == 0);
  CHECK(code(Name(70, 1) + bytes) == Code::kPeerLost);

  Shard shard;
  CHECK_FALSE(shard.Asked(Request(StateRequest::kTake, kX), Code::kInvalid).empty());
  shard.Send(0, FrameType::kState, shard.numbers++, Take(kX, SavedPart::kValue, 0, 9, Name(70, 1) + bytes).text);
  std::get<2>(shard.asked.back())(std::string(16, 0));
  CHECK(shard.answers[0].back().first.aux == static_cast<uint32_t>(Code::kPeerLost));  // nobody has begun to restore it
}

TEST_CASE("shard saving: rows come page by page, those of some buckets") {
  Shard shard;
  auto record = [](uint64_t bucket, uint64_t id) {
    Text text;
    text << (bucket << kBucketShift | id) << uint32_t{4} << uint32_t{1} << uint64_t{1}
         << uint64_t{2};  // two values, and what momentum has of them
    return text.text;
  };
  CHECK(shard.Asked(Request(StateRequest::kClear, kTable)).empty());
  CHECK(shard.Asked(Request(StateRequest::kWriteRows, kTable) << record(0, 1) << record(9, 2) << record(4095, 3))
            .empty());
  CHECK(shard.Asked(Request(StateRequest::kCommit, kTable) << int64_t{4}).empty());
  std::string bits(kBucketMapBytes, 0);
  bits[1] = 2;                            // bucket 9
  bits[kBucketMapBytes - 1] = char(128);  // and 4095
  const std::string page = (Text() << uint64_t{0}).text + bits;
  auto rows = ReadRows(*shard.FindKey(kTable), std::as_bytes(std::span(page)));
  REQUIRE(rows.ok());
  CHECK(rows->size() == 16 + 2 * record(0, 0).size());
  CHECK(rows->find(record(0, 1)) == std::string::npos);
  Shard other;
  CHECK(other.Asked(Request(StateRequest::kClear, kTable)).empty());
  Text take = Request(StateRequest::kTakeRows, kTable) << uint32_t{2} << Name(70, 4) << page;
  other.Send(0, FrameType::kState, other.numbers++, take.text);
  std::get<2>(other.asked.back())(*rows);
  CHECK(At<uint64_t>(other.answers[0].back().second, 8) == 0);  // that was all
  CHECK(other.Asked(Request(StateRequest::kCommit, kTable) << int64_t{4}).empty());
  CHECK(other.FindKey(kTable)->rows().Find(uint64_t{9} << kBucketShift | 2).has_value());
  CHECK(!other.FindKey(kTable)->rows().Find(1).has_value());
}

TEST_CASE("shard asks: each is answered once, over whatever link, or its server is gone") {
  ShardAsks asks;
  asks.Reset({0, 0, 1});
  std::vector<std::string> told;
  const auto tell = [&](Result<std::string> answer) {
    told.push_back(answer.ok() ? *answer : answer.status().message());
  };
  asks.Ask(2, "first", tell);
  asks.Ask(2, "second", tell);
  asks.Ask(3, "nobody", tell);
  CHECK(told == std::vector<std::string>{"there is no shard 3"});
  const auto next = [&](uint32_t shard) -> std::string {
    Outgoing frame;
    std::shared_ptr<const void> keep;
    if (!asks.Next(shard, frame, keep)) return "";
    CHECK(frame.header.type == FrameType::kState);
    return std::to_string(frame.header.round) +
           std::string(reinterpret_cast<const char*>(frame.payload), frame.header.length);
  };
  const auto answer = [&](uint32_t number, const std::string& text, Code code = Code::kOk) {
    Header header;
    header.round = number;
    header.aux = static_cast<uint32_t>(code);
    asks.OnAnswer(2, header, std::as_bytes(std::span(text)));
  };
  CHECK(next(1).empty());
  CHECK(next(2) == "0first");
  answer(0, "yes");
  answer(0, "again");  // of a link before
  CHECK(next(2) == "1second");
  asks.OnNewWay(2);
  answer(1, "too early");
  CHECK(next(2) == "1second");
  CHECK(next(2).empty());
  answer(1, "no", Code::kInvalid);
  CHECK(told == std::vector<std::string>{"there is no shard 3", "yes", "no"});
  asks.Ask(2, "third", tell);
  asks.Lose(1);
  asks.Ask(2, "fourth", tell);
  CHECK(told.size() == 5);
  CHECK(told[3] == "server 1, which had it, is gone");
  CHECK(told[4] == told[3]);
  CHECK(next(2).empty());
}

}  // namespace byteps_like::testing::shard_saving
