// Calls on the store keys of a shard: run once, together or not at all, when their rank may read, beside readers.
#include "server/store/calls/shard_calls.h"

#include <doctest/doctest.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/wire/bytes.h"
#include "server/store/calls/command.h"

namespace byteps_like::testing::shard_calls {
namespace {

constexpr size_t kElements = 100;
constexpr size_t kValueBytes = kElements * sizeof(float);

// As Python writes it (csrc/wire/call.h).
std::string Written(const std::string& function, const std::vector<uint8_t>& tensors, std::optional<double> a = {}) {
  std::string text{static_cast<char>(tensors.size()), static_cast<char>(a ? 1 : 0)};
  text += static_cast<char>(function.size()) + function;
  for (const uint8_t tensor : tensors) text += std::string{static_cast<char>(tensor), 0, 0, 0};
  if (!a) return text;
  std::byte bytes[sizeof(double)];
  PutLittle(bytes, std::bit_cast<uint64_t>(*a));
  return text + "\x01" + "a" + std::string(reinterpret_cast<const char*>(bytes), sizeof bytes);
}

// Tensors 1 to 3, each of three partitions, of which the first and the last are here; two ranks.
class Shard : public CalledKeys {
 public:
  explicit Shard(const char* policy = "asp", uint64_t limit = 0) : memory_("shard 0", limit, held_) {
    calls_.Reset(2);
    for (const uint32_t tensor : {1u, 2u, 3u})
      for (const uint32_t part : {0u, 2u})
        keys_.emplace(tensor << kTensorShift | part, Made(policy, static_cast<float>(tensor)));
  }

  StoreKey* FindKey(uint64_t key) override { return keys_.contains(key) ? keys_.at(key).get() : nullptr; }
  void Replaced(uint64_t key) override { replaced.push_back(key); }
  void AnswerRequest(uint32_t, const Header& header, const std::string& payload) override {
    answers.emplace_back(header, payload);
  }
  void RefuseRequest(uint32_t, uint64_t, const std::string& what) override { refused.push_back(what); }
  double RequestTime() const override { return 4; }

  void Call(uint32_t rank, uint32_t number, const std::string& text, uint32_t here = 2, uint32_t parts = 3) {
    Header header;
    header.type = FrameType::kCall;
    header.key = 1 << kTensorShift;
    header.round = number;
    header.aux = here;
    header.total = parts;
    calls_.OnCall(rank, header, {reinterpret_cast<const std::byte*>(text.data()), text.size()});
  }
  void Push(uint64_t key, uint32_t source, float number) {
    std::vector<PushAnswer> told;
    const Ledger& ledger = FindKey(key)->ledger();
    WholePush whole{{source, ledger.Clock(source), ledger.version(), 1}, Filled(number), std::nullopt};
    REQUIRE(FindKey(key)->Push(std::move(whole), 0, &told).ok());
    calls_.OnChange(key);
  }
  float At(uint64_t key, size_t place = 0) {
    float value = 0;
    std::memcpy(&value, FindKey(key)->value().value->data() + place * sizeof value, sizeof value);
    return value;
  }
  void Forget(uint64_t key) { keys_.erase(key); }
  uint64_t held() const { return held_; }
  ShardCalls& calls() { return calls_; }

  std::vector<std::pair<Header, std::string>> answers;
  std::vector<std::string> refused;
  std::vector<uint64_t> replaced;

 private:
  ShardBuffer Filled(float number) {
    ShardBuffer buffer = memory_.Take(kValueBytes);
    REQUIRE(buffer.size() >= kValueBytes);
    for (size_t i = 0; i < kElements; ++i) std::memcpy(buffer.data() + i * sizeof(float), &number, sizeof(float));
    return buffer;
  }
  std::unique_ptr<StoreKey> Made(const char* policy, float number) {
    auto rules = StoreRules::Parse(policy, "sum:age=none,damp=none", "add");
    auto key = StoreKey::Make(*rules, {DType::kFloat32, {kElements, 1}, Filled(number)}, 2, 0, memory_);
    REQUIRE(key.ok());
    return std::move(*key);
  }

  std::atomic<uint64_t> held_{0};
  ShardMemory memory_;
  std::map<uint64_t, std::unique_ptr<StoreKey>> keys_;
  ShardCalls calls_{*this, memory_};
};

constexpr uint64_t kX = 1 << kTensorShift, kY = 2 << kTensorShift;

double Figure(const std::string& payload) {
  return std::bit_cast<double>(GetLittle<uint64_t>(reinterpret_cast<const std::byte*>(payload.data()) + 5));
}

}  // namespace

TEST_CASE("shard calls: all partitions here, each once, however often it is asked for") {
  Shard shard;
  const Snapshot before = shard.FindKey(kY)->value();
  for (int time = 0; time < 3; ++time) {
    shard.Call(0, 0, Written("axpy", {1, 2}, 0.5));
    CHECK(shard.answers.back().first.aux == 0);
    CHECK(shard.answers.back().first.round == 0);
  }
  CHECK(shard.answers.size() == 3);
  for (const uint64_t part : {0, 2}) {
    CHECK(shard.At(kX + part) == 1);
    CHECK(shard.At(kY + part) == 2.5F);
    CHECK(shard.At(kY + part, kElements - 1) == 2.5F);
    CHECK(shard.FindKey(kX + part)->ledger().version() == 0);
    CHECK(shard.FindKey(kY + part)->ledger().version() == 1);
  }
  CHECK(shard.replaced == std::vector<uint64_t>{kY, kY + 2});
  float kept = 0;
  std::memcpy(&kept, before.value->data(), sizeof kept);
  CHECK(kept == 2);  // a reader's version stays as it is
  shard.Call(0, 1, Written("dot", {1, 2}));
  CHECK(Figure(shard.answers.back().second) == 2 * kElements * 2.5);
  shard.Call(1, 0, Written("copy", {2, 1}));
  CHECK(shard.At(kX) == 2.5F);
  CHECK(shard.refused.empty());
}

TEST_CASE("shard calls: numbers that are left out, or go back, break the protocol") {
  Shard shard;
  shard.Call(0, 1, Written("scale", {1}, 2));
  shard.Call(0, 0, Written("scale", {1}, 2));
  shard.Call(0, 1, Written("scale", {1}, 2));
  shard.Call(0, 0, Written("scale", {1}, 2));
  CHECK(shard.refused.size() == 2);
  CHECK(shard.At(kX) == 4);
  shard.Call(0, 2, "nonsense");
  CHECK(shard.refused.size() == 3);
  shard.Call(0, 2, Written("scale", {1}, 2), 2, 65537);
  CHECK(shard.refused.size() == 4);
}

TEST_CASE("shard calls: one waits until its rank may read all of it, and only for that") {
  Shard shard("bsp");
  shard.Push(kY + 2, 0, 10);
  shard.Call(0, 0, Written("axpy", {2, 1}, 1));
  CHECK(shard.answers.empty());
  REQUIRE(shard.calls().Waits().size() == 1);
  CHECK(shard.calls().Waits().front().key == kY + 2);
  CHECK(shard.calls().Waits().front().since == 4);
  shard.Call(1, 0, Written("scale", {2}, 3));  // who has pushed nothing need not wait
  CHECK(shard.answers.size() == 1);
  shard.calls().OnChange(kY);
  CHECK(shard.answers.size() == 1);
  shard.Push(kY + 2, 1, 100);
  REQUIRE(shard.answers.size() == 2);
  CHECK(shard.At(kX) == 7);
  CHECK(shard.At(kX + 2) == 1 + 6 + 110);
  CHECK(shard.calls().Waits().empty());
}

TEST_CASE("shard calls: a link that breaks takes its question along, and asks again") {
  Shard shard("bsp");
  shard.Push(kX, 0, 10);
  shard.Call(0, 0, Written("scale", {1}, 2));
  shard.calls().OnLinkGone(0);
  CHECK(shard.calls().Waits().empty());
  shard.Push(kX, 1, 10);
  CHECK(shard.answers.empty());
  shard.Call(0, 0, Written("scale", {1}, 2));
  CHECK(shard.answers.size() == 1);
  CHECK(shard.At(kX) == 42);
}

TEST_CASE("shard calls: one that waits for a key which is freed is told so") {
  Shard shard("bsp");
  shard.Push(kX, 0, 10);
  shard.Call(0, 0, Written("scale", {1}, 2));
  CHECK(shard.answers.empty());
  shard.Forget(kX);
  shard.calls().OnChange(kX);
  REQUIRE(shard.answers.size() == 1);
  CHECK(CodeFrom(shard.answers.back().first.aux) == Code::kInvalid);
  CHECK(shard.answers.back().second.find("1 partitions of 2 have a value here") != std::string::npos);
}

TEST_CASE("shard calls: where one partition fails, nothing has changed, and the error is kept, too") {
  Shard shard;
  shard.Push(kX + 2, 0, std::numeric_limits<float>::max());
  for (int time = 0; time < 2; ++time) {
    shard.Call(0, 0, Written("scale", {1}, 16));
    CHECK(CodeFrom(shard.answers.back().first.aux) == Code::kInvalid);
    CHECK(shard.answers.back().second.find("store key 65538: what comes of scale has infinities") == 0);
  }
  CHECK(shard.At(kX) == 1);
  CHECK(shard.replaced.empty());
}

TEST_CASE("shard calls: what can't be called is told to who called it") {
  struct Case {
    std::string text, words;
    uint32_t here = 2;
  };
  Shard shard;
  shard.Forget(3 << kTensorShift | 2);
  uint32_t number = 0;
  for (const Case& one : {Case{Written("dot", {1}), "dot is of 2 tensors, not of 1"},
                          {Written("dot", {1, 9}), "don't lie together"},
                          {Written("dot", {1, 3}), "don't lie together"},
                          {Written("dot", {1, 2}), "2 partitions of 3 have a value here", 3},
                          {Written("nobodys", {1}), "it has dot, axpy, scale, copy"},
                          {Written("scale", {1}), "scale has one scalar, a"},
                          {Written("scale", {1}, std::numeric_limits<double>::infinity()), "not finite"}}) {
    shard.Call(0, number++, one.text, one.here);
    CHECK(CodeFrom(shard.answers.back().first.aux) == Code::kInvalid);
    CHECK_MESSAGE(shard.answers.back().second.find(one.words) != std::string::npos, shard.answers.back().second);
  }
  CHECK(shard.refused.empty());
  CHECK(shard.At(kX) == 1);
}

TEST_CASE("shard calls: without memory for what is written nothing has happened") {
  const uint64_t needed = Shard().held();
  Shard shard("asp", needed);
  shard.Call(0, 0, Written("scale", {1}, 2));
  CHECK(CodeFrom(shard.answers.back().first.aux) == Code::kCapacity);
  CHECK(shard.At(kX) == 1);
}

}  // namespace byteps_like::testing::shard_calls
