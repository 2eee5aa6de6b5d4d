// Rounds over rdma that are cut short: a server that is killed and another one that takes its place in the next epoch,
// and a link that breaks under a contribution.
#include <poll.h>

#include <sstream>

#include "csrc/base/log.h"
#include "csrc/engine/engine.h"
#include "server/server.h"
#include "tests/native/rdma/rdma_cable_fixture.h"
#include "tests/native/rdma/rdma_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr size_t kCount = 500'000;
constexpr char kServes[] = "rdma: the other process that sums";

void Nothing(Code, const std::string&, bool) {}

Credentials Job(uint32_t epoch) { return {"job", std::string(32, 's'), epoch}; }

std::unique_ptr<Server> StartServer(const std::string& url, uint32_t epoch, uint32_t workers) {
  Server::Options options;
  options.job = Job(epoch).job;
  options.secret = Job(epoch).secret;
  options.urls = {url};
  options.on_event = [](uint32_t, Code, const std::string&, bool) {};
  auto server = Server::Start(std::move(options));
  REQUIRE_MESSAGE(server.ok(), server.status().message());
  (*server)->SetWorld({epoch, NumbersOf(workers), 20, 60, 0, ServerNumberOf(0)});
  return std::move(*server);
}

// Hears what the core logs, and waits until it has said something often enough.
class LogWatch {
 public:
  explicit LogWatch(std::string text) : text_(std::move(text)) {
    SetLogSink([this](LogLevel, std::string_view line) {
      std::lock_guard lock(mutex_);
      seen_ += line.find(text_) != line.npos;
      changed_.notify_all();
    });
  }
  ~LogWatch() { SetLogSink({}); }
  bool Wait(uint32_t times, double seconds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, In(seconds), [&] { return seen_ >= times; });
  }

 private:
  const std::string text_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t seen_ = 0;
};

// A rank's arena, which outlives the epochs, and its engine in one of them.
class ArenaRank {
 public:
  ArenaRank(uint32_t rank, size_t count)
      : rank_(rank), count_(count), arena_(*SharedBuffer::Create(count * sizeof(float))) {
    Fill();
  }
  void Fill() {
    for (size_t i = 0; i < count_; ++i) data()[i] = Value(rank_, i);
  }

  void Join(const std::string& url, uint32_t epoch, uint32_t workers) {
    EngineOptions options;
    options.credentials = Job(epoch);
    options.standing = {rank_, workers};
    options.member = NumberOf(rank_);
    options.connect_timeout = 30;
    options.credit_bytes = 4u << 20;  // a whole contribution
    options.on_event = Nothing;
    auto engine = Engine::Start(std::move(options), {{0, 0, {url}, ServerNumberOf(0)}});
    REQUIRE_MESSAGE(engine.ok(), engine.status().message());
    engine_ = std::move(*engine);
    engine_->Register(arena_);
    tensor_ = engine_->Declare(DType::kFloat32, {{1, 0, static_cast<uint32_t>(count_ * sizeof(float)), 0}});
  }
  std::shared_ptr<Operation> Start() {
    Engine::Request request;
    request.tensor = tensor_;
    request.address = arena_->data();
    request.last_part = 1;
    return *engine_->Submit(request);
  }
  void Leave() {
    engine_->Close();
    engine_.reset();
  }
  // How many elements are not the sum over ranks [first, last).
  size_t Wrong(uint32_t first, uint32_t last) {
    size_t wrong = 0;
    for (size_t i = 0; i < count_; ++i) {
      float sum = 0;
      for (uint32_t rank = first; rank < last; ++rank) sum += Value(rank, i);
      wrong += data()[i] != sum;
    }
    return wrong;
  }
  Engine& engine() { return *engine_; }

 private:
  static float Value(uint32_t rank, size_t i) { return static_cast<float>(i * 7 % 50 + rank * 3 + 1); }
  float* data() { return reinterpret_cast<float*>(arena_->data()); }

  const uint32_t rank_;
  const size_t count_;
  const std::shared_ptr<SharedBuffer> arena_;
  std::unique_ptr<Engine> engine_;
  uint32_t tensor_ = 0;
};

// A place to listen on that nobody has now: the other process can't tell us what it was given.
std::string FreePlace() {
  auto listener = Listen(FreshUrl("rdma"));
  REQUIRE_MESSAGE(listener.ok(), listener.status().message());
  return (*listener)->url();
}

}  // namespace

TEST_CASE("rdma: the other process that sums" * doctest::skip()) {
  const char* const words = std::getenv(kOtherProcess);
  if (words == nullptr) return;
  uint32_t epoch = 0;
  std::string url;
  std::istringstream(words) >> epoch >> url;
  const auto server = StartServer(url, epoch, 2);
  ::poll(nullptr, 0, 120'000);  // until it is killed
}

TEST_CASE("rdma: a server that is killed is noticed by all, and the next epoch's takes its place") {
  if (NoRdma()) return;
  ArenaRank ranks[] = {{0, kCount}, {1, kCount}};
  LogWatch lost("link lost");
  {
    const std::string url = FreePlace();
    OtherProcess server("1 " + url, kServes);
    for (ArenaRank& rank : ranks) rank.Join(url, 1, 2);
    const auto half = ranks[0].Start();  // what rank 1 never adds to
    CHECK(ranks[0].engine().Wait(*half, In(0.5)).code() == Code::kTimeout);
    server.Kill();
    CHECK(lost.Wait(2, 10));  // of each rank, whether it had anything under way or not
    for (ArenaRank& rank : ranks) rank.engine().Fail(Code::kPeerLost, "server 0 died");  // as the scheduler does
    CHECK(ranks[0].engine().Wait(*half, In(10)).code() == Code::kPeerLost);
    for (ArenaRank& rank : ranks) rank.Leave();
  }
  CHECK(ranks[0].Wrong(0, 1) == 0);  // nothing has landed
  const std::string url = FreePlace();
  OtherProcess server("2 " + url, kServes);
  for (ArenaRank& rank : ranks) rank.Join(url, 2, 2);
  const std::shared_ptr<Operation> sums[] = {ranks[0].Start(), ranks[1].Start()};
  for (uint32_t rank : {0u, 1u}) {
    const Status status = ranks[rank].engine().Wait(*sums[rank], In(30));
    CHECK_MESSAGE(status.ok(), status.message());
    CHECK(ranks[rank].Wrong(0, 2) == 0);
    ranks[rank].Leave();
  }
}

TEST_CASE("rdma: servers write results straight into arenas, who comes first writes into the accumulator") {
  if (NoRdma()) return;
  constexpr uint32_t kRounds = 5;
  constexpr uint64_t kBytes = kCount * sizeof(float);
  const auto server = StartServer(FreshUrl("rdma"), 1, 2);
  ArenaRank ranks[] = {{0, kCount}, {1, kCount}};
  const ShardStats& stats = server->shards()[0]->stats();
  for (ArenaRank& rank : ranks) rank.Join(server->urls().front(), 1, 2);
  for (uint32_t round = 0; round < kRounds; ++round) {
    const auto first = ranks[0].Start();
    const Deadline limit = In(30);
    while (stats.payload_received < (2 * round + 1) * kBytes && Clock::now() < limit) ::poll(nullptr, 0, 1);
    const std::shared_ptr<Operation> sums[] = {first, ranks[1].Start()};
    for (uint32_t rank : {0u, 1u}) {
      const Status status = ranks[rank].engine().Wait(*sums[rank], In(30));
      CHECK_MESSAGE(status.ok(), status.message());
      CHECK(ranks[rank].Wrong(0, 2) == 0);
      ranks[rank].Fill();
    }
  }
  CHECK(stats.payload_received == 2 * kRounds * kBytes);
  CHECK(stats.payload_placed == (kRounds - 2) * kBytes);  // of rank 0, once both accumulators were offered
  for (ArenaRank& rank : ranks) {
    const LinkCounters counters = rank.engine().counters();
    CHECK(counters.payload_received == kRounds * kBytes);
    CHECK(counters.payload_placed == counters.payload_received);
    rank.Leave();
  }
}

TEST_CASE("rdma: a link whose cable is cut under a contribution is made anew, and the round goes on") {
  if (NoRdma() || !HasCables()) return;
  // One worker, and a cable that is cut before it begins: so it has something under way, and notices.
  const auto server = StartServer(FreshUrl("rdma") + "?ack_timeout=12", 1, 1);
  ArenaRank worker(0, kCount);
  LogWatch lost("link lost");
  worker.Join(server->urls().front(), 1, 1);
  for (const bool breaks : {false, true, false}) {
    auto cut = breaks ? std::make_unique<CableFault>("loss 100%") : nullptr;
    const auto sum = worker.Start();
    if (breaks) CHECK(lost.Wait(1, 20));
    cut.reset();
    const Status status = worker.engine().Wait(*sum, In(60));
    CHECK_MESSAGE(status.ok(), status.message());
    CHECK(worker.Wrong(0, 1) == 0);
  }
  const LinkCounters counters = worker.engine().counters();
  CHECK(counters.payload_placed == counters.payload_received);  // over the new link as well
  worker.Leave();
}

}  // namespace byteps_like::testing
