// Store keys that several servers have: jobs on bad links whose servers die, and copies that are the same to the last
// bit.
#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/log.h"
#include "server/store/chain/copied_key.h"
#include "server/store/chain/copies.h"
#include "server/store/chain/snapshot.h"
#include "server/store/chain/successor.h"
#include "server/update/function.h"
#include "tests/native/server/cluster_fixture.h"
#include "tests/native/slow.h"

namespace byteps_like::testing {
namespace {

// Jobs ----------------------------------------------------------------------------------------------------------------

constexpr uint64_t kJobs = 120;
constexpr size_t kElements = 5003;
constexpr uint32_t kPushes = 10;

struct Plan {
  ClusterOptions cluster;
  std::string policy;
  uint32_t replicas = 2;
  std::vector<uint32_t> dies;  // one after the other; without replicas, each hands over what it has before
};

Plan PlanOf(uint64_t seed, bool has_copies) {
  constexpr const char* kPolicies[] = {"asp", "ssp:s=2", "bsp", "dssp:lo=1,hi=3",
                                       "k_of_n:grace=0,k=1,late=next,max_age=inf"};
  constexpr const char* kChaos[] = {"drop=0.003", "delay_ms=0.5", "drop=0.002&corrupt=0.002", ""};
  constexpr const char* kSchemes[] = {"tcp", "inproc", "shm"};
  std::mt19937_64 draw(seed);
  Plan plan;
  plan.policy = kPolicies[seed % std::size(kPolicies)];
  plan.replicas = has_copies ? 2 + static_cast<uint32_t>(draw() % 2) : 1;
  plan.cluster.workers = 2 + static_cast<uint32_t>(draw() % 2);
  plan.cluster.servers = 2 + static_cast<uint32_t>(draw() % 3);
  plan.cluster.shards = 1 + static_cast<uint32_t>(draw() % 2);
  plan.cluster.scheme = kSchemes[draw() % 3];
  plan.cluster.chaos = kChaos[draw() % 4];
  plan.cluster.seed = seed;
  plan.cluster.elastic = true;
  plan.cluster.partition_bytes = 4096;
  if (seed % 4 == 0) plan.cluster.credit_bytes = 10'000;
  for (uint32_t server = 0; server + 1 < plan.cluster.servers && server < 2; ++server)
    plan.dies.push_back(static_cast<uint32_t>(draw() % plan.cluster.servers));
  if (plan.dies.size() == 2 && plan.dies[0] == plan.dies[1]) plan.dies.pop_back();
  return plan;
}

int64_t Pushed(uint32_t rank, uint32_t step) { return int64_t{1} << (12 * rank + step); }  // a bit each

class Member {
 public:
  Member(Cluster& cluster, uint64_t seed, uint32_t rank)
      : engine_(cluster.engine(rank)), draw_(seed * 10 + rank), parts_(cluster.Cut(kElements * 8, 50)) {
    tensor_ = engine_.Declare(DType::kInt64, parts_);
    for (uint32_t step = 0; step < kPushes; ++step) sent_.emplace_back(kElements, Pushed(rank, step));
  }

  Status Open(const Plan& plan) {
    return Over(engine_.Keep({.tensor = tensor_,
                              .text = "policy " + plan.policy + "\ncombine sum:age=none,damp=none\nupdate add" +
                                      (plan.replicas > 1 ? "\nreplicas " + std::to_string(plan.replicas) : ""),
                              .initial = {}}));
  }

  // Contributes all steps, and reads at times in between: what it reads has all that it was told was counted.
  Status Train() {
    std::vector<std::shared_ptr<KeepOperation>> pushes;
    for (uint32_t step = 0; step < kPushes; ++step) {
      auto push = engine_.Contribute(Whole(sent_[step]), {});
      if (!push.ok()) return push.status();
      pushes.push_back(*push);
      if (draw_() % 3 == 0)
        if (const Status status = Read(); !status.ok()) return status;
      std::this_thread::sleep_for(std::chrono::microseconds(draw_() % 4000));
    }
    for (const auto& push : pushes) {
      if (const Status status = Wait(*push); !status.ok()) return status;
      for (const KeepOutcome& one : push->outcomes) wrong += one.applied != Applied::kCounted || one.version == 0;
    }
    return {};
  }

  Status Read() {
    std::vector<int64_t> value(kElements);
    const Status status = Over(engine_.Read(Whole(value), 0));
    sums.clear();
    for (const PartitionSpec& part : parts_) {
      sums.push_back(value[part.offset / 8]);
      for (uint64_t at = part.offset / 8; at < (part.offset + part.bytes) / 8; ++at) wrong += value[at] != sums.back();
    }
    return status;
  }
  size_t parts() const { return parts_.size(); }

  size_t wrong = 0;
  std::vector<int64_t> sums;  // as read last, by partition

 private:
  Engine::KeepRequest Whole(std::vector<int64_t>& memory) const {
    Engine::KeepRequest request{.tensor = tensor_, .address = reinterpret_cast<std::byte*>(memory.data()), .parts = {}};
    for (uint32_t part = 0; part < parts_.size(); ++part) request.parts.push_back(part);
    return request;
  }
  Status Wait(KeepOperation& operation) { return engine_.Wait(operation, Clock::now() + std::chrono::seconds(30)); }
  Status Over(Result<std::shared_ptr<KeepOperation>> operation) {
    return operation.ok() ? Wait(**operation) : operation.status();
  }

  Engine& engine_;
  std::mt19937_64 draw_;
  const std::vector<PartitionSpec> parts_;
  uint32_t tensor_ = 0;
  std::vector<std::vector<int64_t>> sent_;
};

// At all servers that live: keys of which another one has a copy.
uint64_t ReplicatedIn(Cluster& cluster, const std::vector<bool>& dead) {
  uint64_t keys = 0;
  for (uint32_t server = 0; server < dead.size(); ++server)
    if (!dead[server])
      for (const auto& shard : cluster.server(server).shards()) keys += shard->stats().replicated;
  return keys;
}

// Within 20 s.
bool AreReplicated(Cluster& cluster, const std::vector<bool>& dead, uint64_t keys) {
  const Deadline end = Clock::now() + std::chrono::seconds(20);
  while (ReplicatedIn(cluster, dead) < keys && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return ReplicatedIn(cluster, dead) >= keys;
}

// Within 20 s a server is ready to leave: it has nothing that others lack, and gets nothing any more.
bool HandsOver(Server& server) {
  const Deadline end = Clock::now() + std::chrono::seconds(20);
  bool sealed = false;
  for (server.HandOver(1, sealed); Clock::now() < end; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    const auto left = server.to_hand_over();
    if (!left) continue;
    if (*left == 0 && sealed) return true;
    sealed = *left == 0;
    server.HandOver(1, sealed);
  }
  return false;
}

// Kills one server after the other, each once there are copies of all that it has. Whether there were.
bool KillAll(Cluster& cluster, const Plan& plan, size_t parts, uint64_t seed) {
  std::mt19937_64 draw(seed + 77);
  std::vector<bool> dead(plan.cluster.servers);
  for (const uint32_t server : plan.dies) {
    if (plan.replicas > 1 ? !AreReplicated(cluster, dead, parts) : !HandsOver(cluster.server(server))) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(draw() % 15000));
    cluster.KillServer(server);
    dead[server] = true;
  }
  return true;
}

// Wrong elements and outcomes, or failures with a message of each.
size_t KeepOn(uint64_t seed, bool has_copies) {
  const Plan plan = PlanOf(seed, has_copies);
  Cluster cluster(plan.cluster);
  std::barrier together(plan.cluster.workers);
  std::barrier opened(plan.cluster.workers + 1);
  std::atomic<size_t> wrong{0}, parts{0};
  int64_t all = 0;
  for (uint32_t rank = 0; rank < plan.cluster.workers; ++rank)
    for (uint32_t step = 0; step < kPushes; ++step) all += Pushed(rank, step);
  std::thread killer([&] {
    opened.arrive_and_wait();
    if (KillAll(cluster, plan, parts, seed)) return;
    ++wrong;
    MESSAGE("seed " << seed << ": there were no copies in time");
  });
  cluster.Everybody([&](uint32_t rank) {
    Member self(cluster, seed, rank);
    parts = self.parts();
    Status status = self.Open(plan);
    opened.arrive_and_wait();
    if (status.ok()) status = self.Train();
    together.arrive_and_wait();
    if (rank == 0) killer.join();
    together.arrive_and_wait();
    if (status.ok()) status = self.Read();
    wrong += self.wrong;
    for (const int64_t sum : self.sums) wrong += sum != all;
    if (!status.ok()) {
      ++wrong;
      MESSAGE("seed " << seed << ", " << plan.policy << ", " << plan.cluster.chaos << ", " << plan.cluster.scheme
                      << ", " << plan.cluster.servers << " servers: " << status.message());
    }
    together.arrive_and_wait();
    cluster.engine(rank).Close();
  });
  return wrong;
}

// Copies --------------------------------------------------------------------------------------------------------------

constexpr uint32_t kRanks = 3;
constexpr size_t kRows = 40, kWidth = 8;

// A key and its copy, with frames from the one to the other.
class Pair {
 public:
  Pair(const std::string& spec, bool rows) : text_(spec) {
    auto terms = ParseSpec(spec);
    REQUIRE_MESSAGE(terms.ok(), terms.status().message());
    if (rows) {
      key_ = Made(StoreKey::Make(terms->rules, StoreRows{DType::kFloat32, kWidth}, kRanks, 0, memory_));
    } else {
      ShardBuffer zeros = memory_.Take(kRows * kWidth * 4);
      std::memset(zeros.data(), 0, kRows * kWidth * 4);
      key_ =
          Made(StoreKey::Make(terms->rules, {DType::kFloat32, {kRows, kWidth}, std::move(zeros)}, kRanks, 0, memory_));
    }
    key_->Record(&made_);
  }

  StoreKey& key() { return *key_; }
  StoreKey& copy() { return copy_->key(); }
  bool copy_is_set_aside() const { return copy_->is_set_aside(); }
  void SetAside() {
    successor_.SetAside();
    Carry();
  }
  bool of_rows() const { return key_->of_rows(); }
  ShardMemory& memory() { return memory_; }

  void Begin() {
    WholeCopy about;
    about.terms = {.spec = text_, .former = "", .dtype = DType::kFloat32, .total = Total(), .width = kWidth};
    about.sources.resize(kRanks);
    about.copies = 2;
    auto record = SnapshotOf(*key_, std::move(about), memory_);
    REQUIRE(record.ok());
    successor_.Begin(1, std::move(*record));
    Carry();
  }

  void Push(WholePush whole) {
    std::vector<PushAnswer> answers;
    const Status status = key_->Push(std::move(whole), 0, &answers);
    REQUIRE_MESSAGE(status.ok(), status.message());
    std::erase_if(answers, [](const PushAnswer& one) { return one.applied == Applied::kHeld; });
    std::vector<int64_t> heard;
    for (const PushAnswer& one : answers) heard.push_back(key_->FirstUnheard(one.push.source));
    successor_.Update(RecordOf(key_->ledger().version(), answers, heard, std::exchange(made_, {}), Total()));
    Carry();
  }

 private:
  static std::unique_ptr<StoreKey> Made(Result<std::unique_ptr<StoreKey>> key) {
    REQUIRE_MESSAGE(key.ok(), key.status().message());
    return std::move(*key);
  }
  uint32_t Total() const { return static_cast<uint32_t>((of_rows() ? 1 : kRows) * kWidth * 4); }

  void Carry() {
    while (successor_.has_next()) {
      Outgoing next;
      const auto keep = successor_.Next(next);
      const std::span<const std::byte> payload(next.payload, next.header.length);
      if (next.header.aux == kCopyBegins) {
        auto begun = CopiedKey::Make(next.header, payload, kRanks, 0, memory_);
        REQUIRE_MESSAGE(begun.ok(), begun.status().message());
        copy_ = std::move(*begun);
      } else {
        REQUIRE(copy_->IsNext(next.header));
        const Status status = copy_->OnFrame(next.header, payload);
        REQUIRE_MESSAGE(status.ok(), status.message());
      }
    }
    CHECK(copy_->is_settled());
    CHECK(successor_.Confirm(copy_->last()));
    if (successor_.has_next()) Carry();  // it counts, now that it is whole
  }

  const std::string text_;
  std::atomic<uint64_t> held_{0};
  ShardMemory memory_{"shard 0", 0, held_};
  std::vector<MadeVersion> made_;
  std::unique_ptr<StoreKey> key_;
  Successor successor_{7};
  std::unique_ptr<CopiedKey> copy_;
};

// Of all rows, or of some.
WholePush Drawn(Pair& pair, uint32_t source, std::mt19937_64& draw) {
  const Ledger& ledger = pair.key().ledger();
  WholePush whole{.push = {.source = source, .clock = ledger.Clock(source), .base = ledger.version(), .weight = 1},
                  .gradient = {},
                  .lr = {},
                  .rows = {}};
  size_t rows = kRows;
  if (pair.of_rows()) {
    auto list = std::make_shared<IdList>();
    std::vector<uint64_t> ids;
    for (uint64_t id = 0; id < kRows; ++id)
      if (draw() % 2 == 0) ids.push_back(id * 1'000'003);
    list->bytes = pair.memory().Take(ids.size() * 8 + 8);
    std::memcpy(list->bytes.data(), ids.data(), ids.size() * 8);
    list->count = rows = ids.size();
    whole.rows.list = std::move(list);
  }
  whole.gradient = pair.memory().Take(rows * kWidth * 4 + 4);
  std::uniform_real_distribution<float> values(-1, 1);
  for (size_t i = 0; i < rows * kWidth; ++i) {
    const float value = values(draw);
    std::memcpy(whole.gradient.data() + i * 4, &value, 4);
  }
  return whole;
}

void CheckAlike(Pair& pair) {
  const StoreKey &key = pair.key(), &copy = pair.copy();
  CHECK(key.ledger().version() == copy.ledger().version());
  for (uint32_t source = 0; source < kRanks; ++source)
    CHECK(key.ledger().source(source).clock == copy.ledger().source(source).clock);
  CHECK(key.Unheard().size() == copy.Unheard().size());
  if (pair.of_rows()) {
    std::string one, other;
    key.rows().Save(0, 1 << 20, &one);
    copy.rows().Save(0, 1 << 20, &other);
    CHECK(one.size() == other.size());
    for (uint64_t id = 0; id < kRows; ++id) {
      const auto mine = key.rows().Find(id * 1'000'003), theirs = copy.rows().Find(id * 1'000'003);
      REQUIRE(mine.has_value() == theirs.has_value());
      if (!mine) continue;
      CHECK(mine->version == theirs->version);
      CHECK(mine->updates == theirs->updates);
      CHECK(std::memcmp(mine->value, theirs->value, kWidth * 4 + key.rows().state_bytes()) == 0);
    }
    return;
  }
  CHECK(std::memcmp(key.value().value->data(), copy.value().value->data(), key.size()) == 0);
  REQUIRE(key.state().size() == copy.state().size());
  CHECK((key.state().empty() || std::memcmp(key.state().data(), copy.state().data(), key.state().size()) == 0));
}

std::string SpecOf(const std::string& policy, const std::string& combine, const std::string& update, bool rows) {
  return "policy " + policy + "\ncombine " + combine + ":age=none,damp=none\nupdate " + update + "\nreplicas 2" +
         (rows ? "\nrows zeros" : "");
}

}  // namespace

TEST_CASE("chains: 120 seeded jobs on bad links keep exactly what was contributed, whichever servers die") {
  size_t wrong = 0;
  for (uint64_t seed = 0; seed < kJobs / kSlow; ++seed) wrong += KeepOn(seed, true);
  CHECK(wrong == 0);
}

TEST_CASE("chains: so do 60 whose values have no copies, whichever servers leave once others have what they kept") {
  size_t wrong = 0;
  for (uint64_t seed = 0; seed < kJobs / 2 / kSlow; ++seed) wrong += KeepOn(seed, false);
  CHECK(wrong == 0);
}

TEST_CASE("chains: a copy has the value, the state and the ledger of the key to the last bit, whenever it began") {
  constexpr const char* kUpdates[] = {
      "add", "sgd:lr=0.1,weight_decay=0.01", "momentum:lr=0.1,momentum=0.9,weight_decay=0",
      "adam:beta1=0.9,beta2=0.999,eps=1e-08,lr=0.01,weight_decay=0.0", "row_adagrad:eps=1e-08,lr=0.02"};
  for (const char* policy : {"bsp", "asp", "k_of_n:grace=0,k=2,late=next,max_age=inf"})
    for (const char* update : kUpdates)
      for (const bool rows : {false, true}) {
        CAPTURE(policy);
        CAPTURE(update);
        CAPTURE(rows);
        if (!ParseSpec(SpecOf(policy, "mean", update, rows)).ok()) {
          FAIL("no such spec: " << ParseSpec(SpecOf(policy, "mean", update, rows)).status().message());
        }
        Pair pair(SpecOf(policy, "mean", update, rows), rows);
        std::mt19937_64 draw(5);
        for (int push = 0; push < 24; ++push) {
          if (push == 0 || push == 11) pair.Begin();
          pair.Push(Drawn(pair, static_cast<uint32_t>(draw() % kRanks), draw));
          CheckAlike(pair);
        }
      }
}

// Assigns the gradient.
class Takes final : public ServerFunction {
 public:
  size_t StateCount(const ValueShape&) const override { return 0; }
  Status Run(const UpdateCall& call) const override {
    std::memcpy(call.value, call.gradient, call.shape.count() * SizeOf(call.dtype));
    return {};
  }
};

TEST_CASE("chains: a copy does with contributions what they ask for instead of the update") {
  SetFunctionFinder([](const std::string&) { return std::make_unique<const Takes>(); });
  for (const char* policy : {"bsp", "asp"}) {
    CAPTURE(policy);
    std::string spec = SpecOf(policy, "mean", "momentum:lr=0.1,momentum=0.9,weight_decay=0", true);
    spec.insert(spec.rfind('\n'), "\nfunctions takes");
    Pair pair(spec, true);
    std::mt19937_64 draw(5);
    pair.Begin();
    for (uint32_t push = 0; push < 24; ++push) {
      WholePush whole = Drawn(pair, push % kRanks, draw);
      whole.push.function = whole.push.base % 2;
      pair.Push(std::move(whole));
      CheckAlike(pair);
    }
  }
  SetFunctionFinder(nullptr);
}

TEST_CASE("chains: what nobody could make sense of is no copy") {
  std::atomic<uint64_t> held{0};
  ShardMemory memory("shard 0", 0, held);
  WholeCopy whole;
  whole.terms = {
      .spec = SpecOf("asp", "sum", "add", false), .former = "", .dtype = DType::kFloat32, .total = 64, .width = 1};
  whole.sources.resize(2);
  const std::string text = TextOf(whole);
  const auto bytes = std::as_bytes(std::span(text));
  Header header{.type = FrameType::kCopy, .round = 1, .offset = 64, .aux = kCopyBegins};
  CHECK(CopiedKey::Make(header, bytes, 2, 0, memory).ok());
  for (size_t length = 0; length < text.size(); ++length)
    CHECK(CopiedKey::Make(header, bytes.first(length), 2, 0, memory).status().code() == Code::kCorrupt);
  CHECK(CopiedKey::Make(header, bytes, 3, 0, memory).status().code() == Code::kCorrupt);
  header.offset = 65;
  CHECK(CopiedKey::Make(header, bytes, 2, 0, memory).status().code() == Code::kCorrupt);
}

TEST_CASE("chains: nothing is said before it is in the copy, and all at once where there is none") {
  Successor successor(7);
  int said = 0;
  const auto say = [&] { ++said; };
  successor.After(0, 0, say);
  CHECK(said == 1);
  successor.Begin(3, {"all", {}});
  successor.After(0, 0, say);
  CHECK(said == 1);  // there may be an older copy
  CHECK(successor.Confirm(1));
  CHECK(said == 2);
  CHECK(!successor.is_held());
  CHECK(successor.Confirm(2));
  CHECK(successor.is_held());
  successor.Update({"more", {}});
  successor.After(1, 5, say);
  CHECK(said == 2);
  CHECK(successor.LongestWait()->since == 5);
  successor.Update({"and more", {}});
  successor.After(1, 6, say);
  CHECK(successor.Confirm(3));
  CHECK(said == 3);
  CHECK(!successor.Confirm(9));
  CHECK(successor.is_held());
  SUBCASE("it is confirmed") { CHECK(successor.Confirm(4)); }
  SUBCASE("it is gone") { successor.End(); }
  SUBCASE("another one begins") {
    successor.Begin(4, {"all", {}});
    CHECK(said == 3);
    CHECK(!successor.is_held());
    CHECK(successor.Confirm(5));
  }
  CHECK(said == 4);
}

TEST_CASE("chains: nobody relies on a copy that is being made") {
  Successor successor(7);
  int said = 0;
  auto bytes = std::make_shared<const std::string>("value");
  successor.Begin(3, {"all", {{reinterpret_cast<const std::byte*>(bytes->data()), bytes->size(), bytes}}});
  CHECK(successor.Confirm(1));
  successor.After(0, 0, [&] { ++said; });
  CHECK(said == 1);
  successor.Discard();
  successor.After(0, 0, [&] { ++said; });
  CHECK(said == 1);
  CHECK(successor.Confirm(3));
  CHECK(said == 2);
  CHECK(!successor.is_held());
}

TEST_CASE("chains: a copy is set aside with its key, also one that is made later, until something changes") {
  for (const bool rows : {false, true}) {
    CAPTURE(rows);
    Pair pair(SpecOf("asp", "sum", "momentum:lr=0.1,momentum=0.9,weight_decay=0.0", rows), rows);
    std::mt19937_64 draw(5);
    pair.Begin();
    pair.Push(Drawn(pair, 0, draw));
    CHECK_FALSE(pair.copy_is_set_aside());
    pair.SetAside();
    pair.SetAside();
    CHECK(pair.copy_is_set_aside());
    CheckAlike(pair);
    pair.Begin();  // its server is gone: at the next one
    CHECK(pair.copy_is_set_aside());
    pair.Push(Drawn(pair, 1, draw));
    CHECK_FALSE(pair.copy_is_set_aside());
    CheckAlike(pair);
    pair.SetAside();
    CHECK(pair.copy_is_set_aside());
  }
}

TEST_CASE("chains: an answer about all keys waits for those whose copies are made anew") {
  class Host final : public CopyHost {
   public:
    void KickCopies(uint32_t) override {}
    void ConfirmCopy(uint32_t, Header) override {}
    void FailCopy(uint64_t, const Status& why) override { FAIL(why.message()); }
    double CopyTime() const override { return 0; }
  } host;
  std::atomic<uint64_t> held{0};
  ShardMemory memory("shard 0", 0, held);
  Copies copies(host, memory);
  copies.Reset(2, {0, 1}, 0);
  const auto whole = [](const std::vector<uint32_t>&) { return Result<CopyRecord>(CopyRecord{"all", {}}); };
  const auto confirm = [&](uint32_t number) {
    copies.OnCopied(1, {.type = FrameType::kCopied, .key = 7, .round = number});
  };
  copies.Begin(7, 0, whole);
  confirm(1);
  confirm(2);
  CHECK(copies.replicated() == 1);
  CHECK(copies.are_settled());
  copies.Begin(7, 0, whole);  // a function has changed it
  CHECK(copies.replicated() == 0);
  CHECK(!copies.are_settled());
  int said = 0;
  copies.AfterAll(0, [&] { ++said; });
  CHECK(said == 0);
  confirm(3);
  CHECK(said == 1);
  CHECK(copies.Lose(1) == std::vector<uint64_t>{7});
  copies.Begin(7, 0, whole);
  CHECK(copies.are_settled());
  CHECK(!copies.Has(7));
}

TEST_CASE("chains: a version costs one gradient on its way to the copy, of however many contributions it is made") {
  constexpr uint32_t kRounds = 20;
  Cluster cluster({.workers = 2, .servers = 2, .partition_bytes = 1 << 20, .elastic = true});
  std::atomic<uint64_t> begun{0}, pushed{0};
  std::barrier together(2);
  const auto copied = [&] {
    uint64_t bytes = 0;
    for (uint32_t server = 0; server < 2; ++server) bytes += cluster.server(server).shards()[0]->stats().copied;
    return bytes;
  };
  cluster.Everybody([&](uint32_t rank) {
    Engine& engine = cluster.engine(rank);
    std::vector<int64_t> values(100'000, 1);
    const auto parts = cluster.Cut(values.size() * 8, 50);
    Engine::KeepRequest request{.tensor = engine.Declare(DType::kInt64, parts),
                                .address = reinterpret_cast<std::byte*>(values.data()),
                                .parts = {0}};
    const auto done = [&](Result<std::shared_ptr<KeepOperation>> operation) {
      CHECK((operation.ok() && engine.Wait(**operation, Clock::now() + std::chrono::seconds(30)).ok()));
    };
    done(engine.Keep({.tensor = request.tensor, .text = SpecOf("bsp", "sum", "add", false), .initial = {}}));
    if (rank == 0) {
      CHECK(AreReplicated(cluster, {false, false}, 1));
      begun = copied();
    }
    together.arrive_and_wait();
    for (uint32_t round = 0; round < kRounds; ++round) {
      done(engine.Contribute(request, {}));
      pushed += values.size() * 8;
    }
    together.arrive_and_wait();
    engine.Close();
  });
  const uint64_t gradients = pushed / 2;
  CHECK(copied() - begun >= gradients);
  CHECK(copied() - begun <= gradients + gradients / 50);
}

}  // namespace byteps_like::testing
