// Waiting threads that drive the loop: one at a time, none forgotten, and its own thread when there are none.
#include <doctest/doctest.h>
#include <sys/eventfd.h>

#include "collectives/communicator.h"
#include "csrc/base/fd.h"
#include "tests/native/collectives/mesh_fixture.h"

namespace byteps_like::testing {
namespace {

struct Flag final : Completion {
  void Set() { Finish({}); }
};

}  // namespace

TEST_CASE("drive: events, posts and timers run on the driver's thread, then on the loop's own again") {
  LoopThread thread;
  Fd fd(::eventfd(0, EFD_NONBLOCK));
  std::atomic<int> events{0};
  std::thread::id ran_on;
  thread.Do([&] {
    const Status watched = thread.loop().Watch(fd.get(), [&] {
      ran_on = std::this_thread::get_id();
      ++events;
    });
    CHECK(watched.ok());
  });
  const auto drive = [&](int until) {
    return thread.loop().Drive([&] { return events >= until; }, In(5), [] { return false; });
  };
  const uint64_t one = 1;
  const auto ring = [&] { CHECK(::write(fd.get(), &one, sizeof(one)) == sizeof(one)); };
  for (int round = 1; round <= 50; ++round) {
    const int before = events;
    std::thread other([&] {
      if (round % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(round % 5));
      ring();
    });
    CHECK(drive(before + 1));
    other.join();
    bool posted = false;
    thread.loop().Post([&] { posted = thread.loop().on_loop_thread(); });
    thread.Do([&] { CHECK(posted); });
  }
  CHECK_FALSE(thread.loop().Drive([] { return false; }, In(0.05), [] { return true; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const int before = events;
  ring();
  const auto limit = In(5);
  while (events == before && Clock::now() < limit) std::this_thread::yield();
  CHECK(events > before);
  thread.Do([&] { CHECK(ran_on == std::this_thread::get_id()); });
  bool timer = false;
  thread.Do([&] { thread.loop().CallAt(In(0.01), [&] { timer = true; }); });
  CHECK(thread.loop().Drive([&] { return timer; }, In(5), [] { return false; }));
  thread.Do([&] {
    bool elsewhere = false;
    CHECK(thread.loop().Drive([] { return true; }, In(1), [&] { return elsewhere = true; }));
    CHECK(elsewhere);
  });
}

TEST_CASE("drive: many threads wait at once, each for its own, and all are woken") {
  for (const bool spin : {false, true}) {
    LoopThread thread;
    thread.loop().SetPatience(std::chrono::microseconds(50), spin);
    LoopGate gate(thread.loop());
    constexpr int kThreads = 6;
    const int rounds = 300 / int(kSlow) + 1;
    std::vector<std::thread> threads;
    std::atomic<int> missed{0};
    for (int who = 0; who < kThreads; ++who) {
      threads.emplace_back([&, who] {
        for (int i = 0; i < rounds; ++i) {
          struct Waiting final : Completion {
            explicit Waiting(LoopGate& at) : gate(at) {}
            bool Wait(Deadline deadline) override { return WaitDriving(&gate, deadline); }
            void Set() { Finish({}); }
            LoopGate& gate;
          };
          auto waiting = std::make_shared<Waiting>(gate);
          const auto delay = std::chrono::microseconds((who * 37 + i * 101) % 700);
          thread.loop().Post([&thread, waiting, delay] {
            if (delay.count() % 3 == 0) return waiting->Set();
            thread.loop().CallAt(Clock::now() + delay, [waiting] { waiting->Set(); });
          });
          if (!waiting->Wait(In(5))) ++missed;
        }
      });
    }
    for (auto& each : threads) each.join();
    CHECK(missed == 0);
    gate.Close();
  }
}

TEST_CASE("drive: what is posted under a lock that a task takes, or by a thread that a task joins, runs elsewhere") {
  LoopThread thread;
  std::mutex mutex;
  const int rounds = 200 / int(kSlow) + 1;
  for (int round = 0; round < rounds; ++round) {
    CHECK_FALSE(thread.loop().Drive([] { return false; }, In(0.0001), [] { return true; }));  // drivers are about
    std::atomic<int> ran{0};
    std::thread::id ran_on;
    {
      std::lock_guard lock(mutex);
      thread.loop().Post([&] {
        std::lock_guard inner(mutex);
        ran_on = std::this_thread::get_id();
        ++ran;
      });
      CHECK(ran == 0);
    }
    CHECK(thread.loop().Drive([&] { return ran == 1; }, In(5),
                              [&] {
                                const auto limit = In(5);
                                while (ran == 0 && Clock::now() < limit) std::this_thread::yield();
                                return ran == 1;
                              }));
    auto dial = std::make_unique<std::thread>();
    std::mutex assigned;
    {
      std::lock_guard lock(assigned);
      *dial = std::thread([&] {
        std::lock_guard wait(assigned);
        thread.loop().Post([&] {
          dial->join();
          ++ran;
        });
      });
    }
    const auto limit = In(5);
    while (ran < 2 && Clock::now() < limit) std::this_thread::yield();
    REQUIRE(ran == 2);
  }
}

TEST_CASE("drive: PostOrRun runs it here and now while the loop's own thread keeps away, else over there") {
  LoopThread thread;
  std::thread::id ran_on, own;
  thread.Do([&] { own = std::this_thread::get_id(); });
  int next = 0;
  const auto run = [&](int number) {
    ran_on = {};
    std::atomic<bool> ran{false};
    thread.loop().PostOrRun([&, number] {
      CHECK(thread.loop().on_loop_thread());
      CHECK(next++ == number);
      ran_on = std::this_thread::get_id();
      ran = true;
    });
    const bool at_once = ran;
    const auto limit = In(5);
    while (!ran && Clock::now() < limit) std::this_thread::yield();
    REQUIRE(ran);
    return at_once && ran_on == std::this_thread::get_id();
  };
  CHECK_FALSE(run(0));  // nobody has driven yet
  CHECK(ran_on == own);
  int here = 0;
  for (int number = 1; number <= 200; ++number) {
    CHECK_FALSE(thread.loop().Drive([] { return false; }, In(0.0001), [] { return true; }));
    here += run(number);  // within a millisecond, unless this thread has to wait for the processor
  }
  CHECK(here > 0);
}

TEST_CASE("drive: a driver leaves when the loop stops") {
  EventLoop loop;
  std::thread own([&] { loop.Run(); });
  std::atomic<bool> driving{false};
  std::thread driver([&] {
    loop.Drive(
        [&] {
          driving = true;
          return false;
        },
        In(20), [] { return false; });
  });
  while (!driving) std::this_thread::yield();
  const auto begin = Clock::now();
  loop.Stop();
  driver.join();
  own.join();
  CHECK(Clock::now() - begin < std::chrono::seconds(5));
}

TEST_CASE("drive: ping-pong by several threads of two communicators") {
  for (const std::string scheme : {"shm", "tcp", "inproc"}) {
    CAPTURE(scheme);
    std::vector<std::unique_ptr<Communicator>> all;
    std::vector<std::vector<std::string>> urls;
    for (int rank = 0; rank < 2; ++rank) {
      all.push_back(std::move(*Communicator::Listen(OptionsFor({FreshUrl(scheme)}))));
      urls.push_back(all.back()->urls());
    }
    for (uint32_t rank = 0; rank < 2; ++rank) all[rank]->SetWorld(WorldOf(rank, urls));
    constexpr uint32_t kPairs = 3;
    const uint32_t rounds = 500 / kSlow;
    std::atomic<uint32_t> good{0};
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      for (uint32_t tag = 0; tag < kPairs; ++tag) {
        threads.emplace_back([&, rank, tag] {
          PointOptions options;
          options.lane = 1;
          options.ranks = {0, 1};
          options.tag = tag;
          options.timeout = 20;
          PointToPoint& points = all[rank]->point_to_point();
          for (uint32_t i = 0; i < rounds; ++i) {
            const size_t size = i % 50 == 0 ? 100'000 : 8 + i % 100;
            const Bytes out = Pattern(size, i);
            Bytes in(size);
            if (rank == 1 && !points.Receive(options, 0, in.data(), size)->Wait(In(20))) return;
            if (!points.Send(options, 1 - rank, out.data(), size)->Wait(In(20))) return;
            if (rank == 0 && !points.Receive(options, 1, in.data(), size)->Wait(In(20))) return;
            good += in == out;
          }
        });
      }
    }
    for (auto& each : threads) each.join();
    CHECK(good == 2 * kPairs * rounds);
  }
}

}  // namespace byteps_like::testing
