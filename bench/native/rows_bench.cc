// Measures the rows of a table on a server's shard against plain memory, one thread: a look-up of random rows against a
// gather of as many random rows of an array (goal: half as fast at least), and contributions with row_adagrad against
// adding the same gradients to random rows of an array (goal: the same). Both touch the same number of rows, in the
// same random order; the table's ids are random u64. Widths as arguments (default: 16 64 128); medians of the runs, in
// rows per second of CPU time, and the ratios.
//
//   cmake -S . -B build/bench -G Ninja -DBYTEPS_LIKE_BENCH=ON -DBYTEPS_LIKE_PYTHON=OFF
//   cmake --build build/bench --target rows_bench && build/bench/rows_bench
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "server/store/store_key.h"

namespace byteps_like {
namespace {

constexpr size_t kBytes = 256u << 20;  // of all rows: more than caches hold
constexpr size_t kBatch = 1u << 16;    // rows of a contribution or a look-up
constexpr int kRuns = 9;

double CpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double Timed(const std::function<void()>& run) {
  const double begin = CpuSeconds();
  run();
  return CpuSeconds() - begin;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

[[noreturn]] void Fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

class Bench {
 public:
  explicit Bench(size_t width)
      : width_(width), count_(kBytes / (width * sizeof(float))), ids_(count_), order_(count_), plain_(count_ * width) {
    std::mt19937_64 random(width);
    for (uint64_t& id : ids_) id = random();
    std::iota(order_.begin(), order_.end(), 0u);
    auto rules = StoreRules::Parse("asp", "sum:age=none,damp=none", "row_adagrad:eps=1e-10,lr=0.1");
    if (!rules.ok()) Fail(rules.status());
    auto key = StoreKey::Make(*rules, StoreRows{DType::kFloat32, width}, 1, 0, memory_);
    if (!key.ok()) Fail(key.status());
    key_ = std::move(*key);
    // Rows lie in the order in which they came: at random.
    for (size_t begin = 0; begin < count_; begin += kBatch) Push(begin);
    std::shuffle(order_.begin(), order_.end(), random);
  }

  void Run() {
    std::vector<double> look_up, gather, update, modify;
    for (int run = 0; run <= kRuns; ++run) {
      const size_t begin = static_cast<size_t>(run) * kBatch % (count_ - kBatch);
      const auto list = ListOf(begin);
      const double of_table = Timed([&] {
        if (!key_->rows().All(list->ids(), kMostBytes).ok()) std::abort();
      });
      ShardBuffer out = memory_.Take(kBatch * width_ * sizeof(float));
      const double of_plain = Timed([&] { Gather(begin, reinterpret_cast<float*>(out.data())); });
      WholePush push = PushOf(begin);
      const double of_update = Timed([&] { Give(std::move(push)); });
      const double of_modify = Timed([&] { Modify(begin, reinterpret_cast<const float*>(out.data())); });
      if (run == 0) continue;
      look_up.push_back(kBatch / of_table);
      gather.push_back(kBatch / of_plain);
      update.push_back(kBatch / of_update);
      modify.push_back(kBatch / of_modify);
    }
    std::printf("%5zu %9zu %14.3g %14.3g %7.2f %14.3g %14.3g %7.2f\n", width_, count_, Median(look_up), Median(gather),
                Median(look_up) / Median(gather), Median(update), Median(modify), Median(update) / Median(modify));
  }

 private:
  static constexpr size_t kMostBytes = 1u << 30;

  // Of a batch from `begin` on, ascending, as lists are. order_ follows, so that both touch the same rows.
  std::shared_ptr<const IdList> ListOf(size_t begin) {
    const auto from = order_.begin() + static_cast<ptrdiff_t>(begin);
    const size_t count = std::min(kBatch, count_ - begin);
    std::sort(from, from + static_cast<ptrdiff_t>(count), [&](uint32_t a, uint32_t b) { return ids_[a] < ids_[b]; });
    auto list = std::make_shared<IdList>(IdList{memory_.Take(count * sizeof(uint64_t)), count});
    for (size_t i = 0; i < count; ++i)
      std::memcpy(list->bytes.data() + i * sizeof(uint64_t), &ids_[order_[begin + i]], sizeof(uint64_t));
    return list;
  }
  WholePush PushOf(size_t begin) {
    auto list = ListOf(begin);
    const size_t count = list->count * width_;
    WholePush push{{0, key_->ledger().Clock(0), key_->ledger().version(), 1}, memory_.Take(count * sizeof(float)), {}};
    std::fill_n(reinterpret_cast<float*>(push.gradient.data()), count, 0.5F);
    push.rows.list = std::move(list);
    return push;
  }
  void Push(size_t begin) { Give(PushOf(begin)); }
  void Give(WholePush push) {
    const int64_t clock = push.push.clock;
    std::vector<PushAnswer> answers;
    if (Status status = key_->Push(std::move(push), 0, &answers); !status.ok()) Fail(status);
    key_->Heard(0, clock + 1);
  }
  void Gather(size_t begin, float* out) const {
    for (size_t i = 0; i < kBatch; ++i)
      std::memcpy(out + i * width_, plain_.data() + order_[begin + i] * width_, width_ * sizeof(float));
  }
  void Modify(size_t begin, const float* gradient) {
    for (size_t i = 0; i < kBatch; ++i) {
      float* __restrict const row = plain_.data() + order_[begin + i] * width_;
      const float* __restrict const own = gradient + i * width_;
      for (size_t j = 0; j < width_; ++j) row[j] += own[j];
    }
  }

  const size_t width_, count_;
  std::vector<uint64_t> ids_;
  std::vector<uint32_t> order_;
  std::vector<float> plain_;
  std::atomic<uint64_t> held_{0};
  ShardMemory memory_{"the benchmark", 0, held_};
  std::unique_ptr<StoreKey> key_;
};

}  // namespace
}  // namespace byteps_like

int main(int argc, char** argv) {
  std::vector<size_t> widths;
  for (int i = 1; i < argc; ++i) widths.push_back(std::strtoul(argv[i], nullptr, 10));
  if (widths.empty()) widths = {16, 64, 128};
  std::printf("width      rows   look-ups/s     gathers/s   ratio  row_adagrad/s    modifies/s   ratio\n");
  for (const size_t width : widths) byteps_like::Bench(width).Run();
  return 0;
}
