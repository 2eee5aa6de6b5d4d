#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <map>
#include <random>

#include "csrc/base/fd.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {
namespace {

Fd EventFd() { return Fd(::eventfd(0, EFD_NONBLOCK)); }

void Ring(const Fd& fd) {
  const uint64_t one = 1;
  CHECK(::write(fd.get(), &one, sizeof(one)) == sizeof(one));
}

}  // namespace

TEST_CASE("event loop: posts of several threads all run, each thread's in order, on the loop's thread") {
  constexpr int kThreads = 4, kPosts = 5000;
  LoopThread thread;
  std::vector<int> next(kThreads, 0);
  bool in_order = true;
  std::vector<std::thread> threads;
  for (int who = 0; who < kThreads; ++who) {
    threads.emplace_back([&, who] {
      for (int i = 0; i < kPosts; ++i) {
        thread.loop().Post([&, who, i] {
          in_order = in_order && next[who] == i && thread.loop().on_loop_thread();
          ++next[who];
        });
      }
    });
  }
  for (auto& each : threads) each.join();
  thread.Do([] {});
  CHECK(in_order);
  for (const int count : next) CHECK(count == kPosts);
  CHECK_FALSE(thread.loop().on_loop_thread());
}

TEST_CASE("event loop: timers run in order, and not when cancelled") {
  LoopThread thread;
  std::vector<int> ran;
  const auto begin = Clock::now();
  thread.Do([&] {
    EventLoop& loop = thread.loop();
    loop.CallAt(begin + std::chrono::milliseconds(30), [&] { ran.push_back(3); });
    loop.CallAt(begin + std::chrono::milliseconds(10), [&] { ran.push_back(1); });
    const uint64_t cancelled = loop.CallAt(begin + std::chrono::milliseconds(15), [&] { ran.push_back(9); });
    loop.CallAt(begin + std::chrono::milliseconds(10), [&loop, &ran, cancelled] {
      ran.push_back(2);
      loop.CancelTimer(cancelled);
    });
  });
  for (bool done = false; !done && Clock::now() < begin + std::chrono::seconds(5);) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    thread.Do([&] { done = ran.size() >= 3; });
  }
  CHECK(Clock::now() - begin >= std::chrono::milliseconds(30));
  CHECK(ran == std::vector<int>{1, 2, 3});
}

TEST_CASE("event loop: a descriptor that can't be watched is an error, and the loop goes on") {
  LoopThread thread;
  char name[] = "/tmp/byteps_like_XXXXXX";
  const Fd file(::mkstemp(name));  // epoll takes no files
  ::unlink(name);
  const Fd fd = EventFd();
  std::atomic<int> calls{0};
  thread.Do([&] {
    CHECK(thread.loop().Watch(file.get(), [] { FAIL("an event of a file"); }).code() == Code::kSystem);
    CHECK(thread.loop().Watch(fd.get(), [&] { ++calls; }).ok());
    thread.loop().Unwatch(file.get());
  });
  const auto limit = In(5);
  while (calls == 0 && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(calls == 1);
}

TEST_CASE("timers: soonest first, equal ones in the order in which they were set, whichever are cancelled") {
  std::mt19937 random(7);
  Timers timers;
  std::map<std::pair<int, uint64_t>, uint64_t> reference;  // (when, order) -> id
  const Deadline begin = Clock::now();
  uint64_t orders = 0, taken = 0;
  for (int step = 0; step < 20'000; ++step) {
    const uint32_t what = random() % 8;
    if (what < 4) {
      const int when = static_cast<int>(random() % 50);
      const std::pair<int, uint64_t> key{when, orders++};
      reference[key] = timers.Add(begin + std::chrono::seconds(when), [&taken, key] { taken = key.second; });
    } else if (what < 6 && !reference.empty()) {
      const auto victim = std::next(reference.begin(), static_cast<int64_t>(random() % reference.size()));
      timers.Cancel(victim->second);
      timers.Cancel(victim->second);  // nothing more
      reference.erase(victim);
    } else if (!reference.empty()) {
      const auto first = reference.begin();
      REQUIRE(timers.soonest() == begin + std::chrono::seconds(first->first.first));
      timers.TakeSoonest()();
      REQUIRE(taken == first->first.second);
      timers.Cancel(first->second);  // nothing more
      reference.erase(first);
    }
    REQUIRE(timers.empty() == reference.empty());
  }
}

TEST_CASE("timers: to cancel one costs no look at the others") {
  const uint64_t count = 300'000 / kSlow;
  Timers timers;
  std::vector<uint64_t> ids;
  const Deadline begin = Clock::now();
  for (uint64_t i = 0; i < count; ++i)
    ids.push_back(timers.Add(begin + std::chrono::milliseconds(i * 7919 % count), [] {}));
  for (const uint64_t id : ids) timers.Cancel(id);
  CHECK(timers.empty());
  CHECK(Clock::now() - begin < std::chrono::seconds(5));
}

TEST_CASE("event loop: an edge calls once; unwatched inside the callback, never again") {
  LoopThread thread;
  const Fd fd = EventFd();
  std::atomic<int> calls{0};
  thread.Do([&] {
    const Status watched = thread.loop().Watch(fd.get(), [&, keep = std::make_shared<int>(5)] {
      ++calls;
      if (calls == 3) {
        thread.loop().Unwatch(fd.get());
        CHECK(*keep == 5);  // the callback outlives its own removal
      }
    });
    CHECK(watched.ok());
  });
  for (int expected = 1; expected <= 3; ++expected) {
    const auto limit = In(5);
    while (calls < expected && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(calls == expected);
    Ring(fd);
  }
  thread.Do([] {});
  thread.Do([] {});
  CHECK(calls == 3);
}

TEST_CASE("event loop: an event of a removed watcher does not reach the next one on the same descriptor") {
  LoopThread thread;
  const Fd first = EventFd(), second = EventFd();
  std::vector<std::string> calls;
  thread.Do([&] {
    // Both are ready at once: whichever comes first replaces the other.
    const auto replace = [&](const Fd& mine, const Fd& other, const char* name) {
      thread.loop().Unwatch(mine.get());
      thread.loop().Unwatch(other.get());
      calls.push_back(name);
      CHECK(thread.loop().Watch(other.get(), [&calls, name] { calls.push_back(std::string("after ") + name); }).ok());
    };
    CHECK(thread.loop().Watch(first.get(), [&, replace] { replace(first, second, "first"); }).ok());
    CHECK(thread.loop().Watch(second.get(), [&, replace] { replace(second, first, "second"); }).ok());
  });
  for (int i = 0; i < 3; ++i) thread.Do([] {});
  thread.Do([&] {
    // Writable eventfds give each new watcher one edge of its own, and no more.
    CHECK(calls.size() == 2);
    CHECK(calls[1] == "after " + calls[0]);
  });
}

TEST_CASE("event loop: a deferred call runs once per request, and not when forgotten") {
  struct Counting : EventLoop::Deferred {
    void RunDeferred() override {
      ++runs;
      if (again-- > 0) loop->Defer(*this);
      if (victim != nullptr) loop->Forget(*victim);
    }
    EventLoop* loop = nullptr;
    Counting* victim = nullptr;
    int runs = 0, again = 0;
  };
  LoopThread thread;
  Counting one, two, three;
  thread.Do([&] {
    for (Counting* each : {&one, &two, &three}) {
      each->loop = &thread.loop();
      thread.loop().Defer(*each);
      thread.loop().Defer(*each);
    }
    one.again = 2;
    two.victim = &three;
  });
  for (int i = 0; i < 5; ++i) thread.Do([] {});
  thread.Do([&] {
    CHECK(one.runs == 3);
    CHECK(two.runs == 1);
    CHECK(three.runs == 0);
  });
}

TEST_CASE("event loop: stop before run, and what was posted before stop still runs") {
  EventLoop loop;
  int ran = 0;
  loop.Post([&] { ++ran; });
  loop.Stop();
  loop.Run();
  CHECK(ran == 1);
  loop.Post([&] { loop.Stop(); });
  loop.Run();
}

TEST_CASE("event loop: sleeps when there is nothing to do") {
  LoopThread thread;
  StreamPair streams = MakeStreams(FreshUrl("inproc"));
  Peer client(thread, std::move(streams.client)), server(thread, std::move(streams.server));
  client.Send(Push(1, Pattern(100, 1)));
  REQUIRE(server.WaitFrames(1));
  const auto spent = [&] {
    rusage usage{};
    thread.Do([&] { ::getrusage(RUSAGE_THREAD, &usage); });
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
  };
  const auto before = spent();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(spent() - before < 10'000);
}

TEST_CASE("shared buffer: zero-filled, mapped twice, sealed; what is not is refused") {
  auto buffer = SharedBuffer::Create(10'000);
  REQUIRE(buffer.ok());
  CHECK((*buffer)->size() == 10'000);
  CHECK((*buffer)->data()[9'999] == std::byte{0});
  auto again = SharedBuffer::Map(::dup((*buffer)->fd()));
  REQUIRE(again.ok());
  (*buffer)->data()[7] = std::byte{3};
  CHECK((*again)->data()[7] == std::byte{3});
  CHECK(::ftruncate((*buffer)->fd(), 1) != 0);
  CHECK(SharedBuffer::Create(0).status().code() == Code::kInvalid);
  CHECK(SharedBuffer::Map(EventFd().Release()).status().code() == Code::kCorrupt);
}

}  // namespace byteps_like::testing
