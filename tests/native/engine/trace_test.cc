// The rings that the timeline is recorded in.
#include "csrc/base/trace.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <thread>

namespace byteps_like {
namespace {

constexpr uint64_t kMine = 0xC0FFEE;  // other tests' threads may have left records

std::vector<TraceRecord> Mine(const Traced& traced, uint64_t key) {
  std::vector<TraceRecord> found;
  for (const TraceRecord& record : traced.records)
    if (record.key == key) found.push_back(record);
  return found;
}

void RecordReady(uint32_t round, uint64_t key) {
  if (Tracing()) TraceSince(0, {.kind = TraceKind::kReady, .key = key, .round = round});
}

}  // namespace

TEST_CASE("trace: nothing is recorded while it is off") {
  StopTracing();
  RecordReady(1, kMine);
  CHECK(Mine(DrainTrace(), kMine).empty());
}

TEST_CASE("trace: records come out whole, in their thread's order, once") {
  StartTracing(1024);
  const int64_t before = TraceClock();
  for (uint32_t round = 0; round < 10; ++round) RecordReady(round, kMine + 1);
  StopTracing();
  const auto records = Mine(DrainTrace(), kMine + 1);
  REQUIRE(records.size() == 10);
  for (uint32_t round = 0; round < 10; ++round) {
    CHECK(records[round].round == round);
    CHECK(records[round].kind == TraceKind::kReady);
    CHECK(records[round].begin >= before);
    CHECK(records[round].thread == records[0].thread);
  }
  CHECK(Mine(DrainTrace(), kMine + 1).empty());
}

TEST_CASE("trace: a full ring loses the newest records, counts them, and goes on when it was drained") {
  StartTracing(8);
  const uint64_t lost_before = DrainTrace().lost;
  // A thread of its own: rings keep the size they were made with.
  std::thread([&] {
    for (uint32_t round = 0; round < 11; ++round) RecordReady(round, kMine + 2);
    auto traced = DrainTrace();
    auto records = Mine(traced, kMine + 2);
    CHECK(traced.lost - lost_before == 3);
    REQUIRE(records.size() == 8);
    CHECK(records.back().round == 7);
    for (uint32_t turn = 0; turn < 5; ++turn) {  // around the end of the memory
      for (uint32_t round = 0; round < 6; ++round) RecordReady(100 * turn + round, kMine + 3);
      records = Mine(DrainTrace(), kMine + 3);
      REQUIRE(records.size() == 6);
      CHECK(records.front().round == 100 * turn);
      CHECK(records.back().round == 100 * turn + 5);
    }
    RecordReady(1, kMine + 4);
  }).join();
  StopTracing();
  const Traced after = DrainTrace();  // of a thread that has ended
  CHECK(Mine(after, kMine + 4).size() == 1);
  CHECK(after.lost - lost_before == 3);
}

TEST_CASE("trace: threads record while another drains; what is neither drained nor lost is nothing") {
  constexpr uint32_t kThreads = 4, kEach = 20000;
  StartTracing(256);
  const uint64_t lost_before = DrainTrace().lost;
  std::atomic<uint32_t> running{kThreads};
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&running, thread] {
      for (uint32_t round = 0; round < kEach; ++round) RecordReady(round, kMine + 10 + thread);
      --running;
    });
  }
  std::map<uint64_t, std::vector<uint32_t>> rounds;
  Traced traced;
  bool more = true;
  while (more) {
    more = running > 0;
    traced = DrainTrace();
    for (const TraceRecord& record : traced.records) rounds[record.key].push_back(record.round);
  }
  for (auto& thread : threads) thread.join();
  StopTracing();
  size_t drained = 0;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    const auto& mine = rounds[kMine + 10 + thread];
    drained += mine.size();
    CHECK(std::is_sorted(mine.begin(), mine.end()));
    CHECK(std::adjacent_find(mine.begin(), mine.end()) == mine.end());
  }
  CHECK(drained + traced.lost - lost_before == kThreads * kEach);
}

TEST_CASE("trace: texts have numbers") {
  const uint32_t one = TraceText("one text"), two = TraceText("another");
  CHECK(TraceText("one text") == one);
  CHECK(one != two);
  CHECK(TraceTexts(one).front() == "one text");
  CHECK(TraceTexts(two).front() == "another");
  CHECK(TraceTexts(two + 1).empty());
}

}  // namespace byteps_like
