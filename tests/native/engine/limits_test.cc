// A process that has no descriptors left: that is said, by name, and is over when there are some again. And how members
// of large jobs go easy on one another.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "csrc/base/log.h"
#include "csrc/transport/entrance/admission.h"
#include "tests/native/collectives/mesh_fixture.h"
#include "tests/native/server/cluster_fixture.h"
#include "tests/native/transport/server_handshake.h"

namespace byteps_like::testing {
namespace {

// While it lives this process can open `left` more descriptors.
class FewDescriptors {
 public:
  explicit FewDescriptors(uint32_t left = 0) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    std::vector<Fd> fill;
    for (uint32_t i = 0; i < left; ++i) fill.emplace_back(::dup(1));
    const Fd next(::dup(1));
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(next.get());
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~FewDescriptors() { Lift(); }
  void Lift() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

class Heard {  // of the log
 public:
  Heard() {
    SetLogSink([this](LogLevel, std::string_view text) {
      std::lock_guard lock(mutex_);
      lines_.emplace_back(text);
    });
  }
  ~Heard() { SetLogSink({}); }
  size_t Count(const std::string& text) {
    std::lock_guard lock(mutex_);
    return static_cast<size_t>(
        std::count_if(lines_.begin(), lines_.end(), [&](const auto& line) { return line.find(text) != line.npos; }));
  }
  bool Await(const std::string& text) {
    const auto limit = In(5);
    while (Count(text) == 0 && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return Count(text) > 0;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

class Listening final : public MeshHandler {  // who is lost, and how many frames came
 public:
  explicit Listening(const std::string& url, double connect_timeout) {
    auto made = Mesh::Listen(OptionsFor({url}, connect_timeout), *this);
    REQUIRE(made.ok());
    mesh = std::move(*made);
  }
  ~Listening() override { mesh.reset(); }
  std::byte* PlaceFor(WayTo, const Header&) override { return nullptr; }
  void OnFrame(WayTo, const Header&, std::byte*) override { ++frames; }
  bool NextFrame(WayTo, Outgoing& next) override {
    next.header.type = FrameType::kClear;
    return !said_.exchange(true);
  }
  void OnSent(WayTo, const Header&) override {}
  void OnPeerLost(uint32_t, const Status& why) override {
    std::lock_guard lock(mutex);
    lost.push_back(why);
  }
  void OnRegion(uint32_t, uint32_t, std::shared_ptr<SharedBuffer>) override {}
  std::vector<Status> Lost() {
    std::lock_guard lock(mutex);
    return lost;
  }
  bool Await(const std::function<bool()>& condition, double seconds) {
    const auto limit = In(seconds);
    for (;;) {
      {
        std::lock_guard lock(mutex);
        if (condition()) return true;
      }
      if (Clock::now() > limit) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  std::mutex mutex;
  std::atomic<int> frames{0};
  std::vector<Status> lost;
  std::unique_ptr<Mesh> mesh;

 private:
  std::atomic<bool> said_{false};
};

// For how many milliseconds each connected TCP socket of this process may wait for an answer; 0: as the kernel likes.
std::vector<int> SilenceLimits() {
  std::vector<int> limits;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_in peer{};
    socklen_t size = sizeof(peer);
    const bool connected = ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0;
    if (!connected || peer.sin_family != AF_INET) continue;
    size = sizeof(int);
    ::getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limits.emplace_back(), &size);
  }
  return limits;
}

// Shards that let nobody in: they hold the first few who come until all of these are there, then refuse everybody.
class ClosedShards {
 public:
  ClosedShards(uint32_t count, uint32_t first) : first_(first) {
    for (uint32_t shard = 0; shard < count; ++shard) listeners_.push_back(std::move(*Listen(FreshUrl("inproc"))));
    for (uint32_t shard = 0; shard < count; ++shard) threads_.emplace_back([this, shard] { Refuse(shard); });
  }
  ~ClosedShards() {
    for (auto& listener : listeners_) listener->Close();
    for (auto& thread : threads_) thread.join();
  }
  std::vector<ShardAddress> addresses() const {
    std::vector<ShardAddress> addresses;
    for (const auto& listener : listeners_)
      addresses.push_back({0, static_cast<uint32_t>(addresses.size()), {listener->url()}, ServerNumberOf(0)});
    return addresses;
  }
  const std::set<uint32_t>& first() const { return came_; }  // at which shards they were, once all have been refused

 private:
  void Refuse(uint32_t shard) {
    for (;;) {
      auto stream = listeners_[shard]->Accept(In(60));
      if (!stream.ok()) return;
      std::unique_lock lock(mutex_);
      if (came_.size() < first_) came_.insert(shard);
      changed_.notify_all();
      changed_.wait_until(lock, In(20), [this] { return came_.size() == first_; });
      lock.unlock();
      CHECK_FALSE(ServerHandshake(**stream, {"another job", std::string(32, 's'), 1}, In(5)).ok());
    }
  }

  const size_t first_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<uint32_t> came_;
  std::vector<std::thread> threads_;
};

}  // namespace

TEST_CASE("limits: a transport that has no descriptors left to run with says so, and runs when there are some again") {
  FewDescriptors none;
  for (const Status& status : {Connect("shm://nobody", In(1)).status(), Listen("shm://limits-test").status()}) {
    CHECK(status.code() == Code::kCapacity);
    CHECK(status.message().find("shm can't run here") != std::string::npos);
    CHECK(status.message().find("ulimit -n") != std::string::npos);
  }
  none.Lift();
  CHECK(Listen("shm://limits-test").ok());
}

TEST_CASE("limits: without descriptors a worker goes on trying to reach another, and does when there are some") {
  for (const std::string scheme : {"tcp", "shm"}) {
    CAPTURE(scheme);
    Listening one(FreshUrl(scheme), 10), other(FreshUrl(scheme), 10);
    const std::vector<std::vector<std::string>> urls{one.mesh->urls(), other.mesh->urls()};
    one.mesh->SetWorld(WorldOf(0, urls, 1));
    other.mesh->SetWorld(WorldOf(1, urls, 1));
    FewDescriptors none;
    one.mesh->loop().Post([&] { one.mesh->Kick(1); });
    CHECK_FALSE(one.Await([&] { return !one.lost.empty(); }, 0.6));  // "nobody there" would take 0.2 s
    none.Lift();
    CHECK(other.Await([&] { return other.frames == 1; }, 5));
    CHECK(one.Lost().empty());
  }
}

TEST_CASE("limits: a worker that never gets a descriptor says so, not that the other has died") {
  Listening one(FreshUrl("tcp"), 0.5), other(FreshUrl("tcp"), 0.5);
  const std::vector<std::vector<std::string>> urls{one.mesh->urls(), other.mesh->urls()};
  one.mesh->SetWorld(WorldOf(0, urls, 1));
  other.mesh->SetWorld(WorldOf(1, urls, 1));
  FewDescriptors none;
  one.mesh->loop().Post([&] { one.mesh->Kick(1); });
  REQUIRE(one.Await([&] { return !one.lost.empty(); }, 5));
  const Status why = one.Lost().front();
  CHECK(why.code() == Code::kCapacity);
  CHECK(why.message().find("ulimit -n") != std::string::npos);
  CHECK(why.message().find("is gone") == std::string::npos);
}

TEST_CASE("limits: an engine, a server and a mesh that find no descriptor say which limit was met") {
  Cluster cluster({.workers = 1, .scheme = "tcp"});
  FewDescriptors none;
  EngineOptions engine;
  engine.credentials = {"job", std::string(32, 's'), 1};
  const Status no_engine = Engine::Start(std::move(engine), {{0, 0, cluster.server(0).urls()}}).status();
  CHECK(no_engine.code() == Code::kCapacity);
  CHECK(no_engine.message().find("ulimit -n") != std::string::npos);
  Server::Options server;
  server.job = "job";
  server.secret = std::string(32, 's');
  server.urls = {"tcp://127.0.0.1:0"};
  CHECK(Server::Start(std::move(server)).status().code() == Code::kCapacity);
}

TEST_CASE("limits: a listener without descriptors complains once and lets in who waits when there are some") {
  Heard heard;
  std::atomic<int> admitted{0};
  Admission::Options options;
  options.job = "job";
  options.secret = std::string(32, 's');
  options.admit = [&](std::unique_ptr<Stream>, const Admitted&) { ++admitted; };
  auto admission = Admission::Open({FreshUrl("tcp")}, std::move(options));
  REQUIRE(admission.ok());
  (*admission)->SetWorld({{}, 1, {Role::kServer, ServerNumberOf(0)}, 0, NumbersOf(1)});
  FewDescriptors one(1);
  auto stream = Connect((*admission)->urls().front(), In(5));
  REQUIRE(stream.ok());
  CHECK(heard.Await("can't accept connections on tcp://"));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(heard.Count("can't accept connections on tcp://") == 1);
  one.Lift();
  const Introduction who{{Role::kWorker, NumberOf(0)}, {Role::kServer, ServerNumberOf(0)}, 0};
  CHECK(Meet(**stream, {"job", std::string(32, 's'), 1}, who, In(5)).status.ok());
  const auto limit = In(5);
  while (admitted == 0 && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  CHECK(admitted == 1);
}

TEST_CASE("limits: many shards are dialled side by side") {
  const auto seconds = [](uint32_t shards) {
    const auto begin = Clock::now();
    Cluster cluster({.workers = 1, .shards = shards, .scheme = "tcp", .chaos = "delay_ms=20"});
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const double one = seconds(1);
  double many = seconds(48);
  for (int again = 0; many >= 24 * one && again < 3; ++again) many = seconds(48);  // others may have had the processor
  CHECK(many < 24 * one);
}

TEST_CASE("limits: a connection counts as broken only after its peer would have counted as stalled") {
  CHECK(SilenceLimit(5, 120) == 155);
  StreamPair streams = MakeStreams(FreshUrl("tcp"));
  streams.client->LimitSilence(SilenceLimit(5, 3600));
  int milliseconds = 0;
  socklen_t size = sizeof(milliseconds);
  ::getsockopt(streams.client->fds().front(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, &size);
  CHECK(milliseconds == 4'505'000);
}

TEST_CASE("limits: both ends of every link between workers and servers have that limit, by the job's settings") {
  Cluster cluster({.workers = 2, .servers = 2, .scheme = "tcp", .stall_warning = 3, .stall_timeout = 40});
  cluster.Everybody([&](uint32_t rank) {
    Tensor<float> tensor(cluster, rank, 10'000, DType::kFloat32, 1);
    CHECK(tensor.Run(Op::kSum).ok());
  });
  CHECK(SilenceLimits() == std::vector<int>(8, 53'000));
}

TEST_CASE("limits: both ends of a link between workers have that limit") {
  Listening one(FreshUrl("tcp"), 5), other(FreshUrl("tcp"), 5);
  const std::vector<std::vector<std::string>> urls{one.mesh->urls(), other.mesh->urls()};
  one.mesh->SetWorld(WorldOf(0, urls, 1));
  other.mesh->SetWorld(WorldOf(1, urls, 1));
  one.mesh->loop().Post([&] { one.mesh->Kick(1); });
  REQUIRE(other.Await([&] { return other.frames == 1; }, 5));
  CHECK(SilenceLimits() == std::vector<int>(2, 155'000));
}

TEST_CASE("limits: each of a thousand workers begins to dial at a shard of its own turn") {
  constexpr uint32_t kShards = 32, kAtOnce = 16;
  for (const uint32_t rank : {0u, 250u, 500u, 999u}) {
    CAPTURE(rank);
    const uint32_t turn = kShards * rank / 1000;
    std::set<uint32_t> expected;
    for (uint32_t i = 0; i < kAtOnce; ++i) expected.insert((turn + i) % kShards);
    ClosedShards shards(kShards, kAtOnce);
    EngineOptions options;
    options.credentials = {"job", std::string(32, 's'), 1};
    options.standing = {rank, 1000};
    CHECK(Engine::Start(std::move(options), shards.addresses()).status().code() == Code::kRefused);
    CHECK(shards.first() == expected);
  }
}

}  // namespace byteps_like::testing
