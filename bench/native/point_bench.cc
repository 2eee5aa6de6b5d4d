// Point to point between two processes of one host, over tcp and shm: microseconds of one way of a ping-pong of
// blocking calls, and GB/s of a large message. Beside transport_bench, which gives what a link allows.
//
//   cmake -S . -B build/bench -G Ninja -DBYTEPS_LIKE_BENCH=ON -DBYTEPS_LIKE_PYTHON=OFF
//   cmake --build build/bench --target point_bench && build/bench/point_bench
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "collectives/communicator.h"

namespace byteps_like {
namespace {

constexpr size_t kLarge = 64u << 20;
constexpr int kRuns = 5;

Deadline In(double seconds) { return Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3)); }
double Since(Deadline begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

class Bench {
 public:
  Bench(Communicator& communicator, uint32_t rank) : points_(communicator.point_to_point()), rank_(rank) {
    options_.lane = 1;
    options_.ranks = {0, 1};
    options_.timeout = 30;
  }
  bool Send(size_t size) { return points_.Send(options_, 1 - rank_, block_.data(), size)->Wait(In(30)); }
  bool Receive(size_t size) {
    return points_.Receive(options_, static_cast<int32_t>(1 - rank_), block_.data(), size)->Wait(In(30));
  }
  double OneWayMicroseconds(size_t size) {
    std::array<double, kRuns> values;
    for (double& value : values) {
      const int rounds = size > 65536 ? 200 : 2000;
      const auto begin = Clock::now();
      for (int i = 0; i < rounds; ++i) {
        if (rank_ == 0) Send(size);
        Receive(size);
        if (rank_ == 1) Send(size);
      }
      value = Since(begin) / rounds / 2 * 1e6;
    }
    std::sort(values.begin(), values.end());
    return values[kRuns / 2];
  }
  double GigabytesPerSecond() {
    std::array<double, kRuns + 1> values;
    for (double& value : values) {
      const auto begin = Clock::now();
      if (rank_ == 0) Send(kLarge), Receive(0);
      if (rank_ == 1) Receive(kLarge), Send(0);
      value = kLarge / Since(begin) / 1e9;
    }
    std::sort(values.begin(), values.end());
    return values[kRuns / 2];
  }

 private:
  PointToPoint& points_;
  const uint32_t rank_;
  PointOptions options_;
  std::vector<std::byte> block_ = std::vector<std::byte>(kLarge, std::byte{1});
};

// The two processes tell each other where they listen through pipes.
int RunRank(uint32_t rank, const std::string& scheme, int in, int out) {
  MeshOptions options;
  options.job = "bench";
  options.secret = std::string(32, 's');
  options.urls = {scheme == "tcp" ? "tcp://127.0.0.1:0" : scheme + "://point-bench-" + std::to_string(::getpid())};
  auto communicator = Communicator::Listen(std::move(options));
  if (!communicator.ok()) return std::fprintf(stderr, "%s\n", communicator.status().message().c_str()), 1;
  std::array<char, 128> mine{}, theirs{};
  (*communicator)->urls()[0].copy(mine.data(), mine.size() - 1);
  if (::write(out, mine.data(), mine.size()) < 0 || ::read(in, theirs.data(), theirs.size()) <= 0) return 1;
  MeshWorld world;
  world.rank = rank;
  for (uint32_t peer = 0; peer < 2; ++peer)
    world.peers.push_back({{peer == rank ? mine.data() : theirs.data()}, "h", "", peer + 1});
  (*communicator)->SetWorld(std::move(world));
  Bench bench(**communicator, rank);
  bench.OneWayMicroseconds(8);
  if (rank == 0) std::printf("%-4s one way:", scheme.c_str());
  for (const size_t size : {size_t{8}, size_t{4096}, size_t{65536}, size_t{1} << 20}) {
    const double value = bench.OneWayMicroseconds(size);
    if (rank == 0) std::printf("  %zu B %.1f us", size, value);
  }
  const double rate = bench.GigabytesPerSecond();
  if (rank == 0) std::printf("  64 MiB %.2f GB/s\n", rate);
  return 0;
}

}  // namespace
}  // namespace byteps_like

int main() {
  for (const char* scheme : {"tcp", "shm"}) {
    int there[2], back[2];
    if (::pipe(there) != 0 || ::pipe(back) != 0) return 1;
    std::fflush(stdout);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(byteps_like::RunRank(1, scheme, there[0], back[1]));
    const int failed = byteps_like::RunRank(0, scheme, back[0], there[1]);
    ::waitpid(child, nullptr, 0);
    if (failed != 0) return failed;
  }
  return 0;
}
