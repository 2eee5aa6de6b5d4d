// Worlds of several ranks in one process, each with its own mesh and exchange, and calls that record what they get.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <optional>

#include "collectives/exchange/exchange_core.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {

// Runs a task on a loop's thread and waits for it.
inline void DoOn(EventLoop& loop, const std::function<void()>& task) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  loop.Post([&] {
    task();
    std::lock_guard lock(mutex);
    done = true;
    changed.notify_one();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done; });
}

inline MeshOptions OptionsFor(std::vector<std::string> urls, double connect_timeout = 5) {
  MeshOptions options;
  options.job = "job";
  options.secret = std::string(32, 's');
  options.urls = std::move(urls);
  options.connect_timeout = connect_timeout;
  return options;
}

inline std::string RankName(uint32_t rank) { return "rank " + std::to_string(rank) + " (host x, pid 1)"; }

// `apart`: no two ranks share a host, as far as they know.
inline MeshWorld WorldOf(uint32_t rank, const std::vector<std::vector<std::string>>& urls, uint32_t epoch = 1,
                         bool apart = false) {
  MeshWorld world;
  world.epoch = epoch;
  world.rank = rank;
  for (uint32_t peer = 0; peer < urls.size(); ++peer) {
    world.peers.push_back(
        {urls[peer], apart ? "host " + std::to_string(peer) : "host", RankName(peer), NumberOf(peer)});
  }
  return world;
}

// One rank: its mesh over one transport, and the exchange on top.
struct Rank {
  explicit Rank(const std::string& url, double connect_timeout = 5) {
    auto made = Mesh::Listen(OptionsFor({url}, connect_timeout), core);
    if (!made.ok()) throw std::runtime_error(made.status().message());
    mesh = std::move(*made);
    core.Attach(*mesh);
  }
  void Do(const std::function<void()>& task) { DoOn(mesh->loop(), task); }
  void Die() { mesh.reset(); }  // without a goodbye

  ExchangeCore core;
  std::unique_ptr<Mesh> mesh;
};

struct Ranks {
  Ranks(uint32_t size, const std::string& scheme, const std::string& query = "", double connect_timeout = 5) {
    for (uint32_t rank = 0; rank < size; ++rank) {
      all.push_back(std::make_unique<Rank>(FreshUrl(scheme, query), connect_timeout));
      urls.push_back(all.back()->mesh->urls());
    }
    for (uint32_t rank = 0; rank < size; ++rank) Join(rank);
  }
  void Join(uint32_t rank) {
    const MeshWorld world = WorldOf(rank, urls);
    all[rank]->core.Prepare(world);
    all[rank]->mesh->SetWorld(world);
  }
  Rank& operator[](uint32_t rank) { return *all[rank]; }

  std::vector<std::unique_ptr<Rank>> all;
  std::vector<std::vector<std::string>> urls;
};

// A peer that fails whatever others begin with it, and says why with a number.
struct Refuser final : MeshHandler {
  explicit Refuser(uint32_t number) : number(number) {
    auto made = Mesh::Listen(OptionsFor({FreshUrl("inproc")}), *this);
    if (!made.ok()) throw std::runtime_error(made.status().message());
    mesh = std::move(*made);
  }
  ~Refuser() override { mesh.reset(); }

  std::byte* PlaceFor(WayTo, const Header&) override { return kAnywhere; }
  void OnFrame(WayTo peer, const Header& header, std::byte*) override {
    if (header.type != FrameType::kLaunch) return;
    answer = header;
    answer->type = FrameType::kAbort;
    answer->length = answer->total = 0;
    answer->aux = number;
    mesh->Kick(peer);
  }
  bool NextFrame(WayTo, Outgoing& next) override {
    if (!answer) return false;
    next.header = *std::exchange(answer, std::nullopt);
    return true;
  }
  void OnSent(WayTo, const Header&) override {}
  void OnPeerLost(uint32_t, const Status&) override {}
  void OnRegion(uint32_t, uint32_t, std::shared_ptr<SharedBuffer>) override {}

  const uint32_t number;
  std::optional<Header> answer;
  std::unique_ptr<Mesh> mesh;
};

// A call with any number of messages. Made and begun on the loop; its state is looked at by Wait.
class TestCall : public Call {
 public:
  TestCall(Rank& rank, CallId call_id, std::vector<uint32_t> group, std::string what) : rank_(rank) {
    id = call_id;
    ranks = std::move(group);
    description = std::move(what);
  }
  ~TestCall() override {
    if (rank_.mesh)
      rank_.Do([&] {
        if (begun_ && !ended_) rank_.core.End(*this);
      });
  }

  void Send(uint32_t peer, uint32_t tag, Bytes bytes, TrafficClass traffic = TrafficClass::kGradient) {
    sends_.emplace_back();
    sends_.back().bytes = std::move(bytes);
    SendMessage& message = sends_.back().message;
    message.peer = peer;
    message.tag = tag;
    message.data = sends_.back().bytes.data();
    message.length = message.ready = sends_.back().bytes.size();
    message.traffic = traffic;
  }
  void Receive(uint32_t peer, uint32_t tag, size_t length) {
    receives_.emplace_back();
    receives_.back().bytes.resize(length);
    receives_.back().message.peer = peer;
    receives_.back().message.tag = tag;
    receives_.back().message.length = length;
  }
  // Begins and posts everything added so far.
  void Begin() {
    rank_.Do([&] { BeginOnLoop(); });
  }
  void BeginOnLoop() {
    const Status begun = rank_.core.Begin(*this);
    std::lock_guard lock(mutex_);
    begun_ = begun.ok();
    if (!begun.ok()) {
      status_ = begun;
      done_ = ended_ = true;
      changed_.notify_all();
      return;
    }
    left_ = sends_.size() + receives_.size();
    for (auto& receive : receives_) rank_.core.Post(*this, receive.message);
    for (auto& send : sends_) rank_.core.Post(*this, send.message);
    if (left_ == 0) EndLocked();
  }
  bool Wait(double seconds = 10) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, In(seconds), [&] { return done_; });
  }
  bool done() {
    std::lock_guard lock(mutex_);
    return done_;
  }
  const Status& status() const { return status_; }
  const Bytes& received(size_t which) const { return receives_[which].bytes; }
  SendMessage& send(size_t which) { return sends_[which].message; }
  ReceiveMessage& receive(size_t which) { return receives_[which].message; }
  std::atomic<bool> refuse{false};  // PlaceFor says "not now"

  void OnSent(SendMessage& message) override {
    if (message.sent == message.length) One();
  }
  std::byte* PlaceFor(ReceiveMessage& message, uint64_t offset, uint32_t) override {
    if (refuse) return nullptr;
    return BytesOf(message).data() + offset;
  }
  void OnBytes(ReceiveMessage& message, uint64_t offset, const std::byte* bytes, uint32_t length) override {
    if (length > 0 && bytes != BytesOf(message).data() + offset) std::abort();
    if (message.received == message.length) One();
  }
  void OnFailed(const Status& why) override {
    std::lock_guard lock(mutex_);
    status_ = why;
    done_ = ended_ = true;
    changed_.notify_all();
  }

 private:
  template <typename Message>
  struct With {
    Message message;
    Bytes bytes;
  };
  Bytes& BytesOf(ReceiveMessage& message) {
    for (auto& receive : receives_) {
      if (&receive.message == &message) return receive.bytes;
    }
    std::abort();
  }
  void One() {
    std::lock_guard lock(mutex_);
    if (--left_ == 0) EndLocked();
  }
  void EndLocked() {
    rank_.core.End(*this);
    done_ = ended_ = true;
    changed_.notify_all();
  }

  Rank& rank_;
  std::deque<With<SendMessage>> sends_;
  std::deque<With<ReceiveMessage>> receives_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t left_ = 0;
  bool begun_ = false, ended_ = false, done_ = false;
  Status status_;
};

}  // namespace byteps_like::testing
