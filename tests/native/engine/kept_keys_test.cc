// The store keys of one link: whose turn it is, within the credit; texts of specs; what is refused or forgotten.
#include "csrc/engine/keeping/kept_keys.h"

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace byteps_like::testing {
namespace {

constexpr uint32_t kSize = 100;

struct Settlements : KeepSink {
  void CutOff(uint64_t, bool) override {}
  void Settled(const KeepTicket& ticket, const Status& status, KeepOutcome) override {
    found[ticket.index] = status.code();
  }
  std::map<size_t, Code> found;
};

EngineOptions Credit(size_t bytes) {
  EngineOptions options;
  options.credit_bytes = bytes;
  options.member = 4;
  return options;
}

// A link's keys, and its far end.
struct Keys {
  explicit Keys(size_t credit = 1000) : context(Credit(credit), loop), keys(context, told, [this] { ++kicks; }) {}

  void Open(uint64_t key, const std::string& text = "spec") {
    keys.Open({.key = key, .dtype = DType::kFloat32, .bytes = kSize}, text, nullptr, {operation, 1000 + key});
  }
  void OpenAll(uint64_t count) {
    for (uint64_t key = 1; key <= count; ++key) Open(key);
    Sent();
    for (uint64_t key = 1; key <= count; ++key) Came(FrameType::kOpened, key, 0);
  }
  void Push(uint64_t key, int32_t priority, size_t number) {
    keys.Push(key, {.data = memory, .note = {}, .priority = priority, .order = number, .ticket = {operation, number}});
  }
  void Read(uint64_t key, int32_t priority, size_t number) {
    keys.Read(key, {.out = memory, .priority = priority, .order = number, .ticket = {operation, number}});
  }
  void Came(FrameType type, uint64_t key, uint32_t round) {
    Header header;
    header.type = type;
    header.key = key;
    header.round = round;
    header.total = kSize;
    CHECK(keys.OnFrame(header, nullptr).ok());
  }

  // The keys of all frames that may go now; a text is named.
  std::string Sent() {
    std::string words;
    while (keys.NextPriority()) {
      Outgoing next;
      keys.Next(64, next);
      CHECK(next.header.member == 4);
      words += std::to_string(next.header.key);
      if (next.header.type == FrameType::kSpec && next.payload != nullptr)
        words += "(" + std::string(reinterpret_cast<const char*>(next.payload), next.header.length) + ")";
      words += " ";
    }
    return words;
  }

  EventLoop loop;
  EngineContext context;
  Settlements told;
  int kicks = 0;
  KeptKeys keys;
  std::shared_ptr<KeepOperation> operation = std::make_shared<KeepOperation>();
  std::byte memory[kSize] = {};
};

}  // namespace

TEST_CASE("kept keys: a spec's text travels once by each link") {
  Keys all;
  all.Open(1, "a");
  all.Open(2, "b");
  all.Open(3, "a");
  CHECK(all.Sent() == "1(a) 2(b) 3 ");
  all.keys.OnNewLink();
  const std::string again = all.Sent();  // in any order
  CHECK(again.size() == std::string("1(a) 2(b) 3 ").size());
  CHECK(again.find("(a)") != again.npos);
  CHECK(again.find("(b)") != again.npos);
}

TEST_CASE("kept keys: the most urgent goes first, and of equals who came first") {
  Keys all;
  all.OpenAll(3);
  all.Push(1, 0, 1);
  all.Push(2, 5, 2);
  all.Read(3, 0, 3);
  all.Push(3, 9, 4);  // behind the read of its own key, by its call
  CHECK(*all.keys.NextPriority() == 5);
  CHECK(all.Sent() == "2 2 2 1 1 1 3 3 3 3 ");
  CHECK(all.keys.busy());
}

TEST_CASE("kept keys: no more goes out unanswered than the credit, and reads cost none") {
  Keys all(250);
  all.OpenAll(4);
  for (uint64_t key = 1; key <= 4; ++key) all.Push(key, 0, key);
  all.Read(1, -1, 5);
  CHECK(all.Sent() == "1 1 1 2 2 2 1 ");
  const int kicks = all.kicks;
  all.Came(FrameType::kApplied, 1, 0);
  CHECK(all.kicks > kicks);
  CHECK(all.Sent() == "3 3 3 ");
  all.Came(FrameType::kApplied, 3, 0);
  all.Came(FrameType::kApplied, 2, 0);
  CHECK(all.Sent() == "4 4 4 ");
}

TEST_CASE("kept keys: two of the largest go out at once, whatever the credit") {
  Keys all(10);
  all.OpenAll(3);
  for (uint64_t key = 1; key <= 3; ++key) all.Push(key, 0, key);
  CHECK(all.Sent() == "1 1 1 2 2 2 ");
}

TEST_CASE("kept keys: a new link starts with all of its credit") {
  Keys all(200);
  all.OpenAll(3);
  for (uint64_t key = 1; key <= 3; ++key) all.Push(key, 0, key);
  CHECK(all.Sent() == "1 1 1 2 2 2 ");
  all.keys.OnNewLink();
  all.Sent();
  for (uint64_t key = 1; key <= 3; ++key) all.Came(FrameType::kOpened, key, 0);
  CHECK(all.Sent() == "1 1 1 2 2 2 ");
}

TEST_CASE("kept keys: what was never opened fails, and so does everything after the end") {
  Keys all;
  all.Push(1, 0, 1);
  CHECK(all.told.found.at(1) == Code::kInvalid);
  all.OpenAll(1);
  all.Push(1, 0, 2);
  all.keys.End(Status(Code::kPeerLost, "gone"));
  all.Read(1, 0, 3);
  all.Open(2);
  CHECK(all.told.found.at(2) == Code::kPeerLost);
  CHECK(all.told.found.at(3) == Code::kPeerLost);
  CHECK(all.told.found.at(1002) == Code::kPeerLost);
  CHECK(!all.keys.busy());
  CHECK(!all.keys.NextPriority());
}

TEST_CASE("kept keys: a key without its first value is refused, and may be opened again") {
  Keys all;
  all.Open(1);
  all.Push(1, 0, 1);
  all.Sent();
  Header header;
  header.type = FrameType::kOpened;
  header.key = 1;
  header.aux = 1;
  CHECK(all.keys.OnFrame(header, nullptr).ok());
  CHECK(all.told.found.at(1001) == Code::kInvalid);
  CHECK(all.told.found.at(1) == Code::kInvalid);
  CHECK(!all.keys.Holds(1));
  all.OpenAll(1);
  CHECK(all.told.found.at(1001) == Code::kOk);
}

TEST_CASE("kept keys: tables take turns with values, and neither is taken for the other") {
  Keys all;
  all.OpenAll(1);
  all.keys.OpenTable({.key = 2, .dtype = DType::kFloat32, .bytes = 20, .width = 5}, "rows", {all.operation, 1002});
  CHECK(all.Sent() == "2(rows) ");
  all.Came(FrameType::kOpened, 2, 0);
  const auto rows = std::make_shared<const RowList>(std::vector<uint64_t>{1, 2});
  all.Push(1, 0, 1);
  all.keys.Push(2,
                {.data = all.memory, .bytes = 40, .rows = rows, .note = {}, .order = 2, .ticket = {all.operation, 2}});
  all.keys.Fetch(2, {.rows = rows, .out = all.memory, .priority = 1, .order = 3, .ticket = {all.operation, 3}});
  CHECK(all.Sent() == "1 1 1 2 2 2 2 ");
  all.Read(2, 0, 4);
  all.Push(2, 0, 5);
  all.keys.Fetch(1, {.rows = rows, .ticket = {all.operation, 6}});
  all.keys.OpenTable({.key = 1, .dtype = DType::kFloat32, .bytes = 20}, "rows", {all.operation, 7});
  for (size_t number = 4; number <= 7; ++number) CHECK(all.told.found.at(number) == Code::kInvalid);
  all.Open(2);
  CHECK(all.told.found.at(1002) == Code::kInvalid);
  all.keys.OpenTable({.key = 2, .dtype = DType::kFloat32, .bytes = 20}, "rows", {all.operation, 8});
  CHECK(all.told.found.at(8) == Code::kOk);
}

TEST_CASE("kept keys: what is in flight is not forgotten") {
  Keys all;
  all.OpenAll(2);
  all.Push(1, 0, 1);
  CHECK(!all.keys.Forget(1));
  CHECK(all.keys.Forget(2));
  CHECK(!all.keys.Forget(2));
  all.Sent();
  all.Came(FrameType::kApplied, 1, 0);
  CHECK(all.keys.Forget(1));
  CHECK(!all.keys.Holds(1));
}

TEST_CASE("kept keys: where nothing is answered for a while, credit is lent") {
  Keys all(200);
  all.OpenAll(5);
  for (uint64_t key = 1; key <= 5; ++key) all.Push(key, 0, key);
  CHECK(all.Sent() == "1 1 1 2 2 2 ");
  std::string later;
  std::thread loop([&] {
    all.context.loop.CallAt(Clock::now() + std::chrono::milliseconds(75), [&] {
      later = all.Sent();
      all.context.loop.Stop();
    });
    all.context.loop.Run();
  });
  loop.join();
  CHECK(later == "3 3 3 4 4 4 ");
}

}  // namespace byteps_like::testing
