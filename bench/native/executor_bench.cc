// Ring all-reduce between ranks of one process, beside the floor of its path measured in the same run: the same bytes
// over the same kind of links in the same ring with nothing done to them, and the sums with nothing moved.
//
//   cmake -S . -B build/bench -G Ninja -DBYTEPS_LIKE_BENCH=ON -DBYTEPS_LIKE_PYTHON=OFF
//   cmake --build build/bench --target executor_bench && build/bench/executor_bench [MiB]
//
// Prints medians: milliseconds of the all-reduce, of the links alone, of the sums alone (all ranks' on the cores there
// are), and the ratio of the first to the sum of the others; then microseconds of a small all-reduce.
#define DOCTEST_CONFIG_DISABLE  // of the fixtures, only the worlds are used here
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "csrc/kernels/kernels.h"
#include "csrc/transport/links/link.h"
#include "tests/native/collectives/schedules.h"
#include "tests/native/transport/links/link_world.h"

namespace byteps_like::testing {
namespace {

constexpr int kRuns = 7;

double Seconds(Deadline since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double MedianOf(const std::function<void()>& once, int runs) {
  std::vector<double> seconds;
  once();
  for (int i = 0; i < runs; ++i) {
    const auto begin = Clock::now();
    once();
    seconds.push_back(Seconds(begin));
  }
  return Median(seconds);
}

// One end of a link that sends `left` segments of its block and receives into a window that stays in the cache.
class Pump final : public LinkHandler {
 public:
  Pump(LoopThread& thread, std::unique_ptr<Stream> stream, std::atomic<uint64_t>& received)
      : thread_(thread), received_(received), block_(16u << 20, std::byte{1}), window_(kDefaultSegment) {
    thread_.Do([&] {
      link_ = MakeLink(thread_.loop(), std::move(stream), *this);
      link_->Start();
    });
  }
  ~Pump() override {
    thread_.Do([&] { link_.reset(); });
  }
  void Send(uint64_t segments) {
    thread_.loop().Post([this, segments] {
      left_ = segments;
      link_->Kick();
    });
  }
  std::byte* PlaceFor(Link&, const Header&) override { return window_.data(); }
  void OnFrame(Link&, const Header& header, std::byte*) override {
    received_.fetch_add(header.length);
    received_.notify_one();
  }
  bool NextFrame(Link&, Outgoing& next) override {
    if (left_ == 0) return false;
    --left_;
    next.header.type = FrameType::kData;
    next.header.length = kDefaultSegment;
    next.payload = block_.data() + (left_ * kDefaultSegment) % block_.size();
    return true;
  }
  void OnSent(Link&, const Header&) override {}
  void OnClosed(Link&, const Status&) override {}

 private:
  LoopThread& thread_;
  std::atomic<uint64_t>& received_;
  std::vector<std::byte> block_, window_;
  uint64_t left_ = 0;
  std::unique_ptr<Link> link_;
};

// Every rank sends `bytes` to the next one, over links of its own.
double LinksAlone(uint32_t n, const std::string& scheme, uint64_t bytes) {
  std::vector<std::unique_ptr<LoopThread>> threads;
  for (uint32_t rank = 0; rank < n; ++rank) threads.push_back(std::make_unique<LoopThread>());
  std::atomic<uint64_t> received{0};
  std::vector<std::unique_ptr<Pump>> senders, receivers;
  for (uint32_t rank = 0; rank < n; ++rank) {
    StreamPair pair = MakeStreams(FreshUrl(scheme));
    senders.push_back(std::make_unique<Pump>(*threads[rank], std::move(pair.client), received));
    receivers.push_back(std::make_unique<Pump>(*threads[(rank + 1) % n], std::move(pair.server), received));
  }
  const uint64_t segments = bytes / kDefaultSegment;
  return MedianOf(
      [&] {
        received = 0;
        for (auto& sender : senders) sender->Send(segments);
        const uint64_t all = n * segments * kDefaultSegment;
        for (uint64_t now; (now = received.load()) < all;) received.wait(now);
      },
      kRuns);
}

// The sum that one rank computes, on as many threads as there are ranks.
double SumsAlone(uint32_t n, uint64_t bytes) {
  std::vector<std::vector<float>> a(n, std::vector<float>(bytes / 4)), b(n, std::vector<float>(kDefaultSegment / 4));
  return MedianOf(
      [&] {
        std::vector<std::thread> threads;
        for (uint32_t rank = 0; rank < n; ++rank) {
          threads.emplace_back([&, rank] {
            for (uint64_t at = 0; at + b[rank].size() <= a[rank].size(); at += b[rank].size()) {
              kernels::Reduce(Op::kSum, DType::kFloat32, a[rank].data() + at, b[rank].data(), b[rank].size());
            }
          });
        }
        for (auto& thread : threads) thread.join();
      },
      kRuns);
}

std::shared_ptr<const Plan> RingPlan(uint32_t rank, uint32_t n, uint64_t count) {
  auto program = Program::Compile(RingAllReduce(rank, n), 0);
  if (!program.ok()) std::abort();
  const auto chunks = Lay(Cut(count, n), 4);
  auto plan = Plan::Make(*program, WorldRanks(n), {chunks, chunks, {}});
  if (!plan.ok()) std::abort();
  return *plan;
}

double AllReduce(LinkWorld& world, uint32_t n, uint64_t count, uint32_t& call, int runs) {
  std::vector<std::vector<float>> buffers(n, std::vector<float>(count, 1.0f));
  std::vector<std::shared_ptr<const Plan>> plans;
  for (uint32_t rank = 0; rank < n; ++rank) plans.push_back(RingPlan(rank, n, count));
  return MedianOf(
      [&] {
        std::vector<std::shared_ptr<Completion>> completions;
        for (uint32_t rank = 0; rank < n; ++rank) {
          RunOptions options;
          options.id = {1, call};
          options.description = "all_reduce";
          options.plan = plans[rank];
          options.output = reinterpret_cast<std::byte*>(buffers[rank].data());
          completions.push_back(world.at(rank).Launch(std::move(options)));
        }
        ++call;
        for (auto& completion : completions) {
          if (completion->Wait(In(60)) && completion->status().ok()) continue;
          std::fprintf(stderr, "failed: %s\n", completion->status().message().c_str());
          std::abort();
        }
      },
      runs);
}

void Measure(const std::string& scheme, uint32_t n, uint64_t bytes) {
  LinkWorld world(n, scheme);
  uint32_t call = 0;
  const double run = AllReduce(world, n, bytes / 4, call, kRuns);
  const double small = AllReduce(world, n, 256, call, 300);
  const double links = LinksAlone(n, scheme, 2 * (n - 1) * bytes / n);
  const double sums = SumsAlone(n, (n - 1) * bytes / n);
  std::printf("%-7s %u ranks  %7.1f ms  links alone %7.1f  sums alone %6.1f  ratio %.2f   small %6.1f us\n",
              scheme.c_str(), n, run * 1e3, links * 1e3, sums * 1e3, run / (links + sums), small * 1e6);
  std::fflush(stdout);
}

}  // namespace
}  // namespace byteps_like::testing

int main(int argc, char** argv) {
  const uint64_t bytes = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 64) << 20;
  for (const char* scheme : {"inproc", "shm", "tcp"}) {
    for (const uint32_t n : {2u, 4u}) byteps_like::testing::Measure(scheme, n, bytes);
  }
  return 0;
}
