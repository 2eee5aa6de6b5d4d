// Collectives among processes of this host, in shared and in private memory, beside a plain direct reduction in shared
// memory measured in the same run: the least that an all-reduce costs here.
//
//   cmake -S . -B build/bench -G Ninja -DBYTEPS_LIKE_BENCH=ON -DBYTEPS_LIKE_PYTHON=OFF
//   cmake --build build/bench --target host_bench && build/bench/host_bench [ranks [kind]]
//
// Prints, per number of bytes: microseconds of the direct reduction, of the call on shared and on private tensors, and
// the ratios; medians over rounds in which the three take turns. Of all_to_all the bytes are those of all sections.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "collectives/host/host.h"
#include "csrc/kernels/kernels.h"

namespace byteps_like {
namespace {

constexpr size_t kMost = 64u << 20;
constexpr int kRounds = 7;
constexpr std::array<const char*, kHostKindCount> kNames = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "scatter", "gather", "all_to_all", "barrier"};

struct Shared {
  alignas(64) std::atomic<uint32_t> arrived;
  alignas(64) std::atomic<uint32_t> turn;
};

class Regions final : public RegionResolver {
 public:
  Regions(std::vector<std::shared_ptr<SharedBuffer>> all, uint32_t rank) : all_(std::move(all)), rank_(rank) {}
  Place Find(const std::byte* data, uint64_t bytes) override {
    const SharedBuffer& own = *all_[rank_];
    if (data < own.data() || data + bytes > own.data() + own.size()) return {};
    return {1, static_cast<uint64_t>(data - own.data())};
  }
  View Resolve(uint32_t rank, uint32_t) override { return {all_[rank]->data(), all_[rank]->size()}; }
  void Announce(uint32_t, uint32_t) override {}

 private:
  const std::vector<std::shared_ptr<SharedBuffer>> all_;
  const uint32_t rank_;
};

class Rank {
 public:
  Rank(uint32_t rank, uint32_t ranks, HostKind kind, Shared& shared, std::vector<std::shared_ptr<SharedBuffer>> buffers,
       HostGroup& group)
      : rank_(rank), ranks_(ranks), kind_(kind), shared_(shared), buffers_(std::move(buffers)), group_(group) {
    private_ = static_cast<std::byte*>(std::aligned_alloc(4096, 2 * kMost));
    ::madvise(private_, 2 * kMost, MADV_HUGEPAGE);
    std::memset(private_, 0, 2 * kMost);
    std::memset(buffers_[rank]->data(), 0, 2 * kMost);
  }

  void Row(size_t bytes) {
    std::array<std::vector<double>, 3> times;
    for (int round = 0; round < kRounds; ++round) {
      for (int what = 0; what < 3; ++what) times[what].push_back(Time(bytes, what));
    }
    if (rank_ != 0) return;
    for (auto& each : times) std::sort(each.begin(), each.end());
    const double direct = times[0][kRounds / 2], in_shared = times[1][kRounds / 2], in_private = times[2][kRounds / 2];
    std::printf("%10zu %12.2f %12.2f %12.2f %8.2f %8.2f\n", bytes, direct, in_shared, in_private, in_shared / direct,
                in_private / direct);
    std::fflush(stdout);
  }

 private:
  double Time(size_t bytes, int what) {
    const int repeats = static_cast<int>(std::clamp<size_t>((8u << 20) / std::max<size_t>(bytes, 4096), 2, 400));
    Meet();
    Once(bytes, what);
    Meet();
    const auto began = Clock::now();
    for (int i = 0; i < repeats; ++i) Once(bytes, what);
    return std::chrono::duration<double, std::micro>(Clock::now() - began).count() / repeats;
  }

  void Once(size_t bytes, int what) {
    if (what == 0) return Direct(bytes);
    std::byte* base = what == 1 ? buffers_[rank_]->data() : private_;
    HostCall call{.kind = kind_, .input = base, .output = base + kMost, .bytes = bytes};
    std::vector<Chunk> sections;
    const uint64_t each = bytes / ranks_ / 4 * 4;
    for (uint32_t j = 0; j < ranks_; ++j) sections.push_back({static_cast<int64_t>(j * each), each});
    if (kind_ == HostKind::kAllToAll || kind_ == HostKind::kReduceScatter || kind_ == HostKind::kScatter) {
      call.input_chunks = sections;
      call.bytes = each;
    }
    if (kind_ == HostKind::kAllToAll || kind_ == HostKind::kAllGather || kind_ == HostKind::kGather) {
      call.output_chunks = sections;
      call.bytes = each;
    }
    const Status status = group_.Run(call);
    if (!status.ok()) {
      std::fprintf(stderr, "rank %u: %s\n", rank_, status.message().c_str());
      std::abort();
    }
  }

  void Direct(size_t bytes) {
    Meet();
    std::vector<const void*> sources;
    std::vector<void*> targets;
    const size_t share = (bytes / ranks_ + 63) / 64 * 64;
    const size_t begin = std::min(bytes, rank_ * share), end = std::min(bytes, begin + share);
    for (const auto& buffer : buffers_) {
      sources.push_back(buffer->data() + begin);
      targets.push_back(buffer->data() + kMost + begin);
    }
    kernels::ReduceMany(Op::kSum, DType::kFloat32, targets, sources, (end - begin) / 4, 1);
    Meet();
  }

  void Meet() {
    const uint32_t turn = shared_.turn.load();
    if (shared_.arrived.fetch_add(1) + 1 == ranks_) {
      shared_.arrived.store(0);
      shared_.turn.store(turn + 1);
      return;
    }
    const bool crowded = ranks_ > static_cast<uint32_t>(::sysconf(_SC_NPROCESSORS_ONLN));
    while (shared_.turn.load() == turn) {
      if (crowded) ::sched_yield();
    }
  }

  const uint32_t rank_, ranks_;
  const HostKind kind_;
  Shared& shared_;
  const std::vector<std::shared_ptr<SharedBuffer>> buffers_;
  HostGroup& group_;
  std::byte* private_;
};

void Pin(uint32_t which) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(which % static_cast<uint32_t>(::sysconf(_SC_NPROCESSORS_ONLN)), &set);
  ::sched_setaffinity(0, sizeof(set), &set);
}

int Run(uint32_t ranks, HostKind kind) {
  auto meeting = SharedBuffer::Create(4096);
  auto area = MakeHostArea(ranks);
  if (!meeting.ok() || !area.ok()) return 1;
  std::vector<std::shared_ptr<SharedBuffer>> buffers;
  std::vector<std::string> names;
  for (uint32_t i = 0; i < ranks; ++i) {
    buffers.push_back(*SharedBuffer::Create(2 * kMost));
    names.push_back("rank " + std::to_string(i));
  }
  std::printf("%s, %u ranks, us\n%10s %12s %12s %12s %8s %8s\n", kNames[static_cast<int>(kind)], ranks, "bytes",
              "direct", "shared", "private", "ratio", "ratio");
  std::fflush(stdout);
  std::vector<pid_t> children;
  for (uint32_t i = 0; i < ranks; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    Pin(i);
    auto attached = HostArea::Attach({*area, i, names, std::make_shared<Regions>(buffers, i)});
    std::vector<uint32_t> members;
    for (uint32_t j = 0; j < ranks; ++j) members.push_back(j);
    auto group = (*attached)->Group(1, members);
    Rank rank(i, ranks, kind, *reinterpret_cast<Shared*>((*meeting)->data()), buffers, **group);
    for (const size_t bytes : {size_t{8}, size_t{1} << 10, size_t{4} << 10, size_t{16} << 10, size_t{64} << 10,
                               size_t{256} << 10, size_t{1} << 20, size_t{4} << 20, size_t{16} << 20, kMost}) {
      rank.Row(bytes);
    }
    std::fflush(stdout);
    ::_exit(0);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    failed |= status;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace byteps_like

int main(int argc, char** argv) {
  const auto ranks = static_cast<uint32_t>(argc > 1 ? std::atoi(argv[1]) : 2);
  auto kind = byteps_like::HostKind::kAllReduce;
  for (int i = 0; argc > 2 && i < byteps_like::kHostKindCount; ++i) {
    if (std::string(argv[2]) == byteps_like::kNames[i]) kind = static_cast<byteps_like::HostKind>(i);
  }
  return byteps_like::Run(ranks, kind);
}
