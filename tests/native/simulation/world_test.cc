// The world by itself: its clock, its threads, and what they wait on.
#include "csrc/sim/world.h"

#include <doctest/doctest.h>

#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/entropy.h"
#include "csrc/base/thread.h"
#include "csrc/transport/loop/event_loop.h"

namespace byteps_like::sim {
namespace {

using std::chrono::milliseconds;

void RunAll(World& world) {
  while (world.Step()) {
  }
}

Thread StartOne(std::function<void()> body) {
  auto thread = StartThread("for a test", std::move(body));
  if (!thread.ok()) throw std::runtime_error(thread.status().message());
  return std::move(*thread);
}

}  // namespace

TEST_CASE("world: its time goes by while all sleep, and takes none of the system's") {
  World world(1);
  const auto process = world.AddProcess();
  const auto before = Clock::System::now();
  std::vector<int64_t> woken;
  for (const int seconds : {3000, 1000, 2000})
    world.Run(process, [&woken, seconds] {
      SleepFor(std::chrono::seconds(seconds));
      woken.push_back(seconds);
    });
  RunAll(world);
  CHECK(woken == std::vector<int64_t>{1000, 2000, 3000});
  CHECK(world.age() >= std::chrono::seconds(3000));
  CHECK(Clock::System::now() - before < std::chrono::seconds(60));
  CHECK(world.threads() == 0);
}

TEST_CASE("world: threads are joined, and wait on conditions, mutexes and places") {
  World world(2);
  int count = 0;
  bool timed_out = false;
  world.Run(world.AddProcess(), [&] {
    std::mutex mutex;
    ConditionVariable changed;
    Mutex baton;
    Semaphore places(1);
    std::vector<Thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.push_back(StartOne([&] {
        places.acquire();
        const std::lock_guard held(baton);
        SleepFor(milliseconds(1));  // while it holds the baton
        const std::lock_guard lock(mutex);
        ++count;
        changed.notify_all();
        places.release();
      }));
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return count == 4; });
    timed_out = !changed.wait_for(lock, milliseconds(5), [] { return false; });
    lock.unlock();
    for (Thread& thread : threads) thread.join();
  });
  RunAll(world);
  CHECK(count == 4);
  CHECK(timed_out);
}

TEST_CASE("world: an event loop runs on a simulated thread, by simulated time") {
  World world(3);
  std::vector<std::string> order;
  world.Run(world.AddProcess(), [&] {
    EventLoop loop;
    REQUIRE(loop.made().ok());
    Thread thread = StartOne([&] { loop.Run(); });
    loop.Post([&] {
      loop.CallAt(Clock::now() + std::chrono::hours(1), [&] { order.emplace_back("later"); });
      order.emplace_back("first");
    });
    const bool reached = loop.Drive([&] { return order.size() == 2; }, Deadline::max(), [] { return false; });
    CHECK(reached);
    loop.Stop();
    thread.join();
  });
  RunAll(world);
  CHECK(order == std::vector<std::string>{"first", "later"});
}

TEST_CASE("world: a process that is paused does not run, and its deadlines pass") {
  World world(4);
  const auto process = world.AddProcess();
  Clock::duration woken{};
  world.Run(process, [&] {
    SleepFor(milliseconds(10));
    woken = world.age();
  });
  world.At(world.Now() + milliseconds(5), [&] { world.Pause(process); });
  world.At(world.Now() + milliseconds(50), [&] { world.Continue(process); });
  RunAll(world);
  CHECK(woken >= milliseconds(50));
  CHECK(woken < milliseconds(51));
}

TEST_CASE("world: random bytes come from its seed") {
  const auto draw = [](uint64_t seed) {
    std::vector<std::byte> bytes(64);
    World world(seed);
    world.Run(world.AddProcess(), [&] { CHECK(FillRandomly(bytes).ok()); });
    RunAll(world);
    return bytes;
  };
  CHECK(draw(7) == draw(7));
  CHECK(draw(7) != draw(8));
}

TEST_CASE("world: what a thread throws comes out of the step") {
  World world(5);
  world.Run(world.AddProcess(), [] { throw std::runtime_error("on purpose"); });
  CHECK_THROWS_WITH(RunAll(world), "on purpose");
}

}  // namespace byteps_like::sim
