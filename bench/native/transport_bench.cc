// Throughput and latency of links on each transport, between two processes (inproc: two threads), beside what the
// machine allows, measured in the same run.
//
//   cmake -S . -B build/bench -G Ninja -DBYTEPS_LIKE_BENCH=ON -DBYTEPS_LIKE_PYTHON=OFF
//   cmake --build build/bench --target transport_bench && build/bench/transport_bench
//
// Prints, per transport: GB/s of payload in segments of 256 KiB, received into 64 MiB and into a window of 1 MiB that
// stays in the cache, and the microseconds of one way of a ping-pong; medians of several runs.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "csrc/kernels/kernels.h"
#include "csrc/transport/links/link.h"

namespace byteps_like {
namespace {

constexpr size_t kBytes = 64u << 20;
constexpr size_t kWindow = 1u << 20;
constexpr int kRuns = 5;
constexpr uint64_t kPing = 1, kStream = 2, kWindowed = 3, kLast = 4;  // what a frame's key asks of the other side

const StreamKeys kKeys{"the secret of a job that only measures", {}};

double Seconds(Deadline since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The two ends on two cores, always: the scheduler would put them on one when the machine is busy.
void PinThread(unsigned which) {
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(which % cores, &set);
  ::sched_setaffinity(0, sizeof(set), &set);
}

// One end: sends `left` frames of a size, receives into its block, and answers what asks for an answer.
class End final : public LinkHandler {
 public:
  End(EventLoop& loop, std::unique_ptr<Stream> stream)
      : block_(kBytes, std::byte{1}), link_(MakeLink(loop, std::move(stream), *this)) {
    loop.Post([this] { link_->Start(); });
  }

  // On the loop's thread.
  void Send(uint64_t key, size_t size, size_t frames) {
    key_ = key;
    size_ = size;
    left_ = frames;
    sent_ = 0;
    link_->Kick();
  }
  std::function<void(const Header&)> on_frame;  // on the loop's thread
  std::function<void()> on_closed = [] {};

  std::byte* PlaceFor(Link&, const Header& header) override {
    const size_t place = header.key == kWindowed ? header.offset % kWindow : header.offset % kBytes;
    return block_.data() + std::min(place, kBytes - header.length);
  }
  void OnFrame(Link&, const Header& header, std::byte*) override { on_frame(header); }
  bool NextFrame(Link&, Outgoing& next) override {
    if (left_ == 0) return false;
    --left_;
    next.header.type = FrameType::kPush;
    next.header.key = key_;
    next.header.length = static_cast<uint32_t>(size_);
    next.header.total = kMaxPartition;
    next.header.offset = sent_;
    next.header.aux = left_ == 0 ? kLast : 0;
    next.payload = block_.data() + sent_ % kBytes;
    sent_ += size_;
    return true;
  }
  void OnSent(Link&, const Header&) override {}
  void OnClosed(Link&, const Status&) override { on_closed(); }

 private:
  std::vector<std::byte> block_;
  std::unique_ptr<Link> link_;
  uint64_t key_ = 0;
  size_t size_ = 0, left_ = 0, sent_ = 0;
};

// The other side, until its link closes: sends pings back, and a word when a stream is over.
void Serve(std::unique_ptr<Stream> stream) {
  PinThread(1);
  EventLoop loop;
  End end(loop, std::move(stream));
  end.on_frame = [&](const Header& header) {
    if (header.key == kPing) end.Send(kPing, header.length, 1);
    if (header.key != kPing && header.aux == kLast) end.Send(header.key, 0, 1);
  };
  end.on_closed = [&] { loop.Stop(); };
  loop.Run();
}

class Driver {
 public:
  explicit Driver(std::unique_ptr<Stream> stream)
      : end_(loop_, std::move(stream)), thread_([this] {
          PinThread(0);
          loop_.Run();
        }) {}
  ~Driver() {
    loop_.Stop();
    thread_.join();
  }

  double GigabytesPerSecond(uint64_t key) {
    return Timed(key, 256u << 10, kBytes / (256u << 10), 1, [](double seconds) { return kBytes / seconds / 1e9; });
  }
  double OneWayMicroseconds(size_t size) {
    const int rounds = size > (256u << 10) ? 100 : 1000;
    return Timed(kPing, size, 1, rounds, [rounds](double seconds) { return seconds / rounds / 2 * 1e6; });
  }

 private:
  double Timed(uint64_t key, size_t size, size_t frames, int rounds, const std::function<double(double)>& result) {
    std::vector<double> values;
    for (int run = 0; run <= kRuns; ++run) {
      const auto begin = Clock::now();
      Run(key, size, frames, rounds);
      if (run > 0) values.push_back(result(Seconds(begin)));  // the first one warms up
    }
    return Median(values);
  }

  void Run(uint64_t key, size_t size, size_t frames, int rounds) {
    bool done = false;
    loop_.Post([&, left = rounds]() mutable {
      end_.on_frame = [&, left](const Header&) mutable {
        if (--left > 0) return end_.Send(key, size, frames);
        std::lock_guard lock(mutex_);
        done = true;
        changed_.notify_one();
      };
      end_.Send(key, size, frames);
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done; });
  }

  EventLoop loop_;
  End end_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

double CopyRate() {
  std::vector<std::byte> from(kBytes, std::byte{1}), to(kBytes);
  std::vector<double> values;
  for (int run = 0; run < kRuns; ++run) {
    const auto begin = Clock::now();
    std::memcpy(to.data(), from.data(), kBytes);
    values.push_back(kBytes / Seconds(begin) / 1e9);
  }
  return Median(values);
}

double ChecksumRate() {
  std::vector<std::byte> block(256u << 10, std::byte{1});
  const auto begin = Clock::now();
  uint32_t crc = 0;
  for (size_t done = 0; done < kBytes; done += block.size()) crc = kernels::Crc32c(crc, block.data(), block.size());
  return crc == 1 ? 0 : kBytes / Seconds(begin) / 1e9;
}

void Report(const char* scheme, Driver& driver, double copy_rate) {
  const double large = driver.GigabytesPerSecond(kStream);
  const double window = driver.GigabytesPerSecond(kWindowed);
  std::printf("%-7s %6.2f GB/s into 64 MiB (%.2f of memcpy)  %6.2f into 1 MiB  one way:", scheme, large,
              large / copy_rate, window);
  for (const size_t size : {size_t{64}, size_t{4} << 10, size_t{64} << 10, size_t{1} << 20}) {
    std::printf("  %zu B %.1f us", size, driver.OneWayMicroseconds(size));
  }
  std::printf("\n");
}

bool Fail(const char* scheme, const Status& status) {
  std::fprintf(stderr, "%s: %s\n", scheme, status.message().c_str());
  return false;
}

bool BenchAcrossProcesses(const char* scheme, const std::string& url, double copy_rate) {
  auto listener = Listen(url);
  if (!listener.ok()) return Fail(scheme, listener.status());
  const Deadline deadline = Clock::now() + std::chrono::seconds(10);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    auto stream = Connect((*listener)->url(), deadline);
    if (stream.ok()) {
      (*stream)->UseKeys(kKeys);
      Serve(std::move(*stream));
    }
    ::_exit(stream.ok() ? 0 : 1);
  }
  auto stream = (*listener)->Accept(deadline);
  if (stream.ok()) {
    (*stream)->UseKeys(kKeys);
    Driver driver(std::move(*stream));
    Report(scheme, driver, copy_rate);
  }
  ::kill(child, SIGTERM);
  ::waitpid(child, nullptr, 0);
  return stream.ok() || Fail(scheme, stream.status());
}

bool BenchThreads(const std::string& url, double copy_rate) {
  auto listener = Listen(url);
  const Deadline deadline = Clock::now() + std::chrono::seconds(10);
  auto client = Connect(url, deadline);
  if (!client.ok()) return Fail("inproc", client.status());
  auto server = (*listener)->Accept(deadline);
  std::thread other([&] { Serve(std::move(*server)); });
  {
    Driver driver(std::move(*client));
    Report("inproc", driver, copy_rate);
  }
  other.join();
  return true;
}

}  // namespace
}  // namespace byteps_like

int main() {
  using namespace byteps_like;  // NOLINT
  const double copy_rate = CopyRate();
  std::printf("limits of this run: memcpy 64 MiB %.1f GB/s, CRC32C in cache %.1f GB/s\n", copy_rate, ChecksumRate());
  bool all = BenchAcrossProcesses("tcp", "tcp://127.0.0.1:0", copy_rate);
  all &= BenchAcrossProcesses("tls+tcp", "tls+tcp://127.0.0.1:0", copy_rate);
  all &= BenchAcrossProcesses("shm", "shm://transport-bench-" + std::to_string(::getpid()), copy_rate);
  all &= BenchThreads("inproc://transport-bench", copy_rate);
  return all ? 0 : 1;
}
