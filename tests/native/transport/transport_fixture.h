// What the tests of transports and links share: a loop on its own thread, and a handler that sends and records frames.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/transport/links/link.h"
#include "csrc/transport/memory/shared_buffer.h"
#include "csrc/transport/rdma/verbs/device.h"
#include "tests/native/slow.h"

namespace byteps_like::testing {

// Member numbers in the worlds of tests: unlike ranks, and never one for two.
inline uint32_t NumberOf(uint32_t rank) { return 40 + rank; }
inline uint32_t ServerNumberOf(uint32_t server) { return 90 + server; }
inline std::vector<uint32_t> NumbersOf(uint32_t workers) {
  std::vector<uint32_t> numbers;
  for (uint32_t rank = 0; rank < workers; ++rank) numbers.push_back(NumberOf(rank));
  return numbers;
}

inline Deadline In(double seconds) { return Clock::now() + std::chrono::microseconds(int64_t(seconds * 1e6)); }
inline double SecondsSince(Deadline began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

inline bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
// The exact text is part of the contract with people: ranks are named.
inline bool Says(const Status& status, const std::string& text) { return Contains(status.message(), text); }

class LoopThread {
 public:
  LoopThread() : thread_([this] { loop_.Run(); }) {}
  ~LoopThread() {
    loop_.Stop();
    thread_.join();
  }
  EventLoop& loop() { return loop_; }
  void Do(const std::function<void()>& task) {  // on the loop's thread; waits
    auto done = std::make_shared<std::promise<void>>();
    const std::future<void> over = done->get_future();
    loop_.Post([&task, done] {
      task();
      done->set_value();
    });
    over.wait();
  }

 private:
  EventLoop loop_;
  std::thread thread_;
};

using Bytes = std::vector<std::byte>;

inline Bytes Pattern(size_t size, uint32_t seed) {  // bytes that differ from place to place and seed to seed
  Bytes bytes(size);
  uint64_t state = seed * 0x9E3779B97F4A7C15 + 1;
  for (size_t at = 0; at < size; at += sizeof(state)) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t word = state ^ (state >> 29);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), size - at));
  }
  return bytes;
}

struct Message {
  Header header;
  Bytes payload;
};

inline Message Push(uint64_t key, Bytes payload) {
  Message message;
  message.header.type = FrameType::kPush;
  message.header.key = key;
  message.header.length = message.header.total = static_cast<uint32_t>(payload.size());
  message.payload = std::move(payload);
  return message;
}

// One end of a link. Everything under its mutex may be looked at from the test's thread by Wait.
class Peer : public LinkHandler {
 public:
  Peer(LoopThread& thread, std::unique_ptr<Stream> stream) : thread_(thread) {
    thread_.Do([&] {
      link_ = MakeLink(thread_.loop(), std::move(stream), *this);
      link_->Start();
    });
  }
  ~Peer() override {
    thread_.Do([&] { link_.reset(); });
  }

  void Send(Message message) {
    {
      std::lock_guard lock(mutex_);
      outgoing_.push_back(std::move(message));
    }
    thread_.loop().Post([this] {
      if (link_ != nullptr) link_->Kick();
    });
  }
  void Close(const Status& why) {
    thread_.Do([&] { link_->Close(why); });
  }
  // Called with each frame on the loop's thread, instead of recording it.
  void SetOnFrame(std::function<void(Link&, const Header&, std::byte*)> on_frame) {
    thread_.Do([&] { on_frame_ = std::move(on_frame); });
  }
  Link& link() { return *link_; }

  // Waits until `condition` holds, which is asked under the mutex; false after `seconds`.
  bool Wait(const std::function<bool()>& condition, double seconds = 20) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, In(seconds), condition);
  }
  bool WaitFrames(size_t count, double seconds = 20) {
    return Wait([&] { return received.size() >= count; }, seconds);
  }
  bool WaitClosed(double seconds = 20) {
    return Wait([&] { return closed > 0; }, seconds);
  }

  std::deque<Message> received;
  size_t sent = 0;
  int closed = 0;
  Status why;
  bool refuse = false;  // these three: set on the loop's thread
  bool anywhere = false;
  bool destroy_when_closed = false;

  std::byte* PlaceFor(Link&, const Header& header) override {
    if (refuse) return nullptr;
    if (anywhere) return kAnywhere;
    place_.assign(header.length, std::byte{0});
    return place_.data();
  }
  void OnFrame(Link& link, const Header& header, std::byte* payload) override {
    if (on_frame_) return on_frame_(link, header, payload);
    std::lock_guard lock(mutex_);
    received.push_back({header, Bytes(payload, payload + header.length)});
    changed_.notify_all();
  }
  bool NextFrame(Link&, Outgoing& next) override {
    std::lock_guard lock(mutex_);
    if (outgoing_.empty()) return false;
    in_flight_.push_back(std::move(outgoing_.front()));
    outgoing_.pop_front();
    next.header = in_flight_.back().header;
    next.payload = in_flight_.back().payload.data();
    return true;
  }
  void OnSent(Link&, const Header& header) override {
    std::lock_guard lock(mutex_);
    if (in_flight_.front().header.key != header.key) why = Status(Code::kInvalid, "sent out of order");
    in_flight_.pop_front();
    ++sent;
    changed_.notify_all();
  }
  void OnClosed(Link&, const Status& status) override {
    const Status copy = status;
    if (destroy_when_closed) link_.reset();
    std::lock_guard lock(mutex_);
    ++closed;
    why = copy;
    changed_.notify_all();
  }

 private:
  LoopThread& thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> outgoing_, in_flight_;
  std::unique_ptr<Link> link_;
  Bytes place_;
  std::function<void(Link&, const Header&, std::byte*)> on_frame_;
};

struct StreamPair {
  std::unique_ptr<Stream> client, server;
};

const StreamKeys kTestKeys{"the secret of two ends in a test", {std::byte{7}}};

// Both ends of a stream that encrypts prove their keys, so that a test may use one end alone.
inline void Secure(StreamPair& pair) {
  if (!pair.client->authenticates()) return;
  pair.client->UseKeys(kTestKeys);
  pair.server->UseKeys(kTestKeys);
  for (const auto limit = In(5); pair.client->binding().empty() || pair.server->binding().empty();) {
    for (Stream* end : {pair.client.get(), pair.server.get()}) {
      auto moved = end->Write({});
      if (!moved.ok()) throw std::runtime_error(moved.status().message());
    }
    if (Clock::now() > limit) throw std::runtime_error("the keys were not proven in time");
  }
}

inline StreamPair MakeStreams(const std::string& url) {
  auto listener = Listen(url);
  if (!listener.ok()) throw std::runtime_error(listener.status().message());
  StreamPair pair;
  std::thread accept([&] {
    auto stream = (*listener)->Accept(In(10));
    if (stream.ok()) pair.server = std::move(*stream);
  });
  auto stream = Connect((*listener)->url(), In(10));
  accept.join();
  if (!stream.ok()) throw std::runtime_error(stream.status().message());
  pair.client = std::move(*stream);
  Secure(pair);
  return pair;
}

// The transports that the suites of all transports run here; those that cannot run are named with the reason. In the
// virtual machine of `make test-rdma` only RDMA: the others have been through it on the host.
inline std::vector<std::string> TestedSchemes() {
  const char* only = std::getenv("BYTEPS_LIKE_TEST_TRANSPORT");
  std::vector<std::string> schemes;
  for (const Transport& transport : Transports()) {
    if (only != nullptr && transport.scheme != only) continue;
    const Status viable = transport.is_viable();
    if (viable.ok()) {
      schemes.emplace_back(transport.scheme);
    } else {
      MESSAGE("skipped: ", std::string(transport.scheme), ": ", viable.message());
    }
  }
  return schemes;
}

// An address of this transport that no other test uses.
inline std::string FreshUrl(const std::string& scheme, const std::string& query = "") {
  static std::atomic<int> count{0};
  if (scheme.ends_with("tcp")) return scheme + "://127.0.0.1:0" + query;
  if (scheme.ends_with("rdma")) return scheme + "://" + rdma::LocalAddresses().back().host + ":0" + query;
  const std::string place = "test-" + std::to_string(::getpid()) + "-" + std::to_string(count.fetch_add(1));
  return scheme + "://" + place + query;
}

// Delays, stalls and a rate that slow a test down by little, but cut reads and writes at odd places.
inline constexpr char kMildChaos[] = "?seed=5&delay_ms=1&rate=2e9&stall=0.001&stall_ms=2";

inline std::vector<std::string> TestedUrls() {
  std::vector<std::string> urls;
  for (const std::string& scheme : TestedSchemes()) {
    urls.push_back(FreshUrl(scheme));
    urls.push_back(FreshUrl("chaos+" + scheme, kMildChaos));
  }
  return urls;
}

}  // namespace byteps_like::testing
