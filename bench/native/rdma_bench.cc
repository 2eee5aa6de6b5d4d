// One end of a measurement of links between two hosts or two devices, for bench/internals/rdma.py: frames of a size
// into memory that the receiver has offered or through the link's landing slots, and ping-pong.
//
//   cmake -S . -B build/bench -G Ninja -DBYTEPS_LIKE_BENCH=ON -DBYTEPS_LIKE_PYTHON=OFF
//   cmake --build build/bench --target rdma_bench
//   build/bench/rdma_bench serve rdma://10.0.0.2:0                   prints the address, ends with its one client
//   build/bench/rdma_bench placed|slots|ping ADDRESS BYTES COUNT     prints a line of JSON
//
// `placed` and `slots`: seconds until the receiver has said that it has all. `ping`: seconds of COUNT there and back.
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/transport/links/link.h"
#include "csrc/transport/memory/registered_memory.h"

namespace byteps_like {
namespace {

constexpr size_t kBlock = 16u << 20;
constexpr uint64_t kPing = 1, kPlaced = 2, kSlots = 3, kLast = 4;  // what a frame's key asks of the other end

// Both ends: sends frames from its block, takes them into its block or leaves them where they came.
class End final : public LinkHandler {
 public:
  End(EventLoop& loop, std::unique_ptr<Stream> stream)
      : block_(kBlock, std::byte{1}),
        registered_(block_.data(), block_.size()),
        link_(MakeLink(loop, std::move(stream), *this)) {}

  // These on the loop's thread.
  void Start() {
    link_->Start();
    Header about;
    about.type = FrameType::kPush;
    about.key = kPlaced;
    link_->Offer(about, block_.data(), block_.size());
  }
  void Send(uint64_t key, uint32_t size, uint64_t frames) {
    key_ = key;
    size_ = size;
    left_ = frames;
    offset_ = 0;
    link_->Kick();
  }
  Link& link() { return *link_; }

  std::function<void(const Header&)> on_frame;
  std::function<void(const Status&)> on_closed;

  std::byte* PlaceFor(Link&, const Header& header) override {
    if (header.offset + header.length > kBlock) return nullptr;
    return header.key == kPlaced ? block_.data() + header.offset : kAnywhere;
  }
  void OnFrame(Link&, const Header& header, std::byte*) override { on_frame(header); }
  bool NextFrame(Link&, Outgoing& next) override {
    if (left_ == 0) return false;
    --left_;
    next.header.type = FrameType::kPush;
    next.header.key = key_;
    next.header.length = size_;
    next.header.total = kMaxPartition;
    next.header.offset = offset_;
    next.header.aux = left_ == 0 ? kLast : 0;
    next.payload = block_.data() + offset_;
    offset_ = offset_ + 2 * size_ <= kBlock ? offset_ + size_ : 0;
    return true;
  }
  void OnSent(Link&, const Header&) override {}
  void OnClosed(Link&, const Status& why) override { on_closed(why); }

 private:
  std::vector<std::byte> block_;
  RegisteredMemory registered_;
  std::unique_ptr<Link> link_;
  uint64_t key_ = 0, left_ = 0;
  uint32_t size_ = 0, offset_ = 0;
};

int Fail(const Status& status) {
  std::fprintf(stderr, "rdma_bench: %s\n", status.message().c_str());
  return 1;
}

// Sends pings back, and an empty one when a stream of frames is whole; until the client goes.
int Serve(const std::string& url) {
  auto listener = Listen(url);
  if (!listener.ok()) return Fail(listener.status());
  std::printf("%s\n", (*listener)->url().c_str());
  std::fflush(stdout);
  auto stream = (*listener)->Accept(Clock::now() + std::chrono::seconds(60));
  if (!stream.ok()) return Fail(stream.status());
  EventLoop loop;
  End end(loop, std::move(*stream));
  end.on_frame = [&](const Header& header) {
    if (header.key == kPing) end.Send(kPing, header.length, 1);
    if (header.key != kPing && header.aux == kLast) end.Send(kPing, 0, 1);
  };
  end.on_closed = [&](const Status&) { loop.Stop(); };
  loop.Post([&] { end.Start(); });
  loop.Run();
  const LinkCounters counters = end.link().counters();
  std::printf("{\"payload_received\": %zu, \"payload_placed\": %zu}\n", size_t{counters.payload_received},
              size_t{counters.payload_placed});
  return 0;
}

class Client {
 public:
  explicit Client(std::unique_ptr<Stream> stream) : end_(loop_, std::move(stream)), thread_([this] { loop_.Run(); }) {
    end_.on_closed = [this](const Status& why) { Done(why.ok() ? Status(Code::kClosed, "closed") : why); };
    loop_.Post([this] { end_.Start(); });
  }
  ~Client() {
    loop_.Stop();
    thread_.join();
  }

  // Seconds of `rounds` times: `frames` frames there, one back.
  Result<double> Run(uint64_t key, uint32_t size, uint64_t frames, uint64_t rounds) {
    const auto begin = Clock::now();
    done_ = false;
    loop_.Post([=, this] {
      end_.on_frame = [=, this, left = rounds](const Header&) mutable {
        if (--left > 0) return end_.Send(key, size, frames);
        Done({});
      };
      end_.Send(key, size, frames);
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    if (!status_.ok()) return status_;
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
  LinkCounters counters() { return end_.link().counters(); }

 private:
  void Done(const Status& status) {
    std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
    done_ = true;
    changed_.notify_one();
  }

  EventLoop loop_;
  End end_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Status status_;
};

int Measure(const std::string& what, const std::string& url, uint32_t size, uint64_t count) {
  auto stream = Connect(url, Clock::now() + std::chrono::seconds(20));
  if (!stream.ok()) return Fail(stream.status());
  Client client(std::move(*stream));
  const uint64_t key = what == "ping" ? kPing : what == "placed" ? kPlaced : kSlots;
  const uint64_t warm_up = std::min<uint64_t>(count, 10);
  // The first frame comes back after the server's offer; the others meet with all memory registered.
  for (const uint64_t first : {kPing, key}) {
    auto warm = client.Run(first, first == kPing ? 0 : size, 1, first == kPing ? warm_up : 1);
    if (!warm.ok()) return Fail(warm.status());
  }
  const LinkCounters before = client.counters();
  auto seconds = key == kPing ? client.Run(key, size, 1, count) : client.Run(key, size, count, 1);
  if (!seconds.ok()) return Fail(seconds.status());
  const LinkCounters after = client.counters();
  std::printf(
      "{\"what\": \"%s\", \"bytes\": %u, \"count\": %zu, \"seconds\": %.9f, \"frames_sent\": %zu, "
      "\"payload_sent\": %zu}\n",
      what.c_str(), size, size_t{count}, *seconds, size_t{after.frames_sent - before.frames_sent},
      size_t{after.payload_sent - before.payload_sent});
  return 0;
}

}  // namespace
}  // namespace byteps_like

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 2 && words[0] == "serve") return byteps_like::Serve(words[1]);
  if (words.size() == 4) {
    return byteps_like::Measure(words[0], words[1], std::stoul(words[2]), std::stoull(words[3]));
  }
  std::fprintf(stderr, "rdma_bench serve ADDRESS | rdma_bench placed|slots|ping ADDRESS BYTES COUNT\n");
  return 2;
}
