#include "csrc/sim/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "csrc/sim/random.h"

namespace byteps_like::sim {
namespace {

constexpr double kHorizon = 0.3;     // seconds in which faults begin
constexpr double kSurvivable = 0.8;  // seconds that one fault may last without ending the job,
constexpr double kMostTogether = 3;  // and all of them: less than a link is tried again for
constexpr double kShortly = 0.05;    // seconds in which a server dies after a connection to it has begun to stall
constexpr double kInTime = 0.5;      // of the horizon, in which servers die that others are to do without, while there
constexpr uint32_t kEnoughRounds = 4;  // are rounds
constexpr double kLongest = 20;        // of lethal ones
constexpr uint64_t kLethalOneIn = 3;   // plans
constexpr uint64_t kElasticOneIn = 3;
constexpr const char* kPolicies[] = {"asp", "ssp:s=2", "bsp", "dssp:lo=1,hi=3",
                                     "k_of_n:grace=0,k=1,late=next,max_age=inf"};
constexpr DType kTypes[] = {DType::kInt64, DType::kInt32, DType::kFloat32,
                            DType::kUInt8, DType::kInt16, DType::kFloat64};
constexpr FaultKind kSurvived[] = {FaultKind::kReset, FaultKind::kStall, FaultKind::kCut, FaultKind::kPause};
constexpr FaultKind kLethal[] = {FaultKind::kKill, FaultKind::kPowerOff, FaultKind::kSwallow, FaultKind::kCut,
                                 FaultKind::kPause};

// They lose nothing, or nothing of numbers as small as members bring.
constexpr const char* kCodecs[] = {"fp16", "coo", "bitmap", "blocksparse:block=32,dense=1"};
constexpr uint32_t kMostRanksOfCodecs = 4;

template <typename T, size_t N>
const T& OneOf(Random& random, const T (&values)[N]) {
  return values[random.Below(N)];
}

double Fraction(Random& random) { return static_cast<double>(random.Below(1 << 20)) / (1 << 20); }

// Small ones as often as large ones.
uint32_t Size(Random& random, uint32_t most) {
  return static_cast<uint32_t>(std::exp(Fraction(random) * std::log(most)));
}

Clock::duration Microseconds(uint64_t count) { return std::chrono::microseconds(count); }

void DrawWork(Random& random, Plan& plan) {
  plan.workers = static_cast<uint32_t>(random.Between(2, random.OneIn(4) ? 8 : 4));
  plan.servers = static_cast<uint32_t>(random.Between(1, random.OneIn(4) ? 4 : 2));
  plan.shards = static_cast<uint32_t>(random.Between(1, 2));
  plan.rounds = static_cast<uint32_t>(random.Between(1, 5));
  plan.partition_bytes = static_cast<uint32_t>(4096 << random.Below(4));
  plan.segment_bytes = 1024 << random.Below(5);
  plan.credit_bytes = 4096 << random.Below(9);
  plan.announces = !random.OneIn(3);
  for (uint64_t i = random.Between(1, 4); i > 0; --i) {
    plan.tensors.push_back({OneOf(random, kTypes), Size(random, 20'000)});
    if (random.OneIn(4) && plan.workers <= kMostRanksOfCodecs)
      plan.tensors.back() = {DType::kFloat32, plan.tensors.back().elements, OneOf(random, kCodecs)};
  }
  for (uint64_t i = random.Below(3); i > 0; --i)
    plan.stores.push_back({OneOf(random, kPolicies), Size(random, 5'000), static_cast<uint32_t>(random.Between(1, 5))});
}

void DrawRacks(Random& random, Plan& plan) {
  if (!random.OneIn(4)) return;
  plan.racks.resize(random.Between(1, 2));
  for (uint32_t rank = 0; rank < plan.workers; ++rank) {
    const uint64_t rack = random.Below(plan.racks.size() + 1);
    if (rack < plan.racks.size()) plan.racks[rack].ranks.push_back(rank);
  }
  std::erase_if(plan.racks, [](const RackPlan& rack) { return rack.ranks.empty(); });
}

void DrawNetwork(Random& random, Plan& plan) {
  plan.network.delay = Microseconds(10 + Size(random, 2'000));
  plan.network.jitter = Microseconds(random.OneIn(3) ? 0 : Size(random, 2'000));
  plan.network.window = 4096 << random.Below(7);
  plan.network.cuts_short = random.Between(2, 20);
  plan.slow_one_in = random.OneIn(3) ? random.Between(2, 10) : 0;
  plan.slowest = Fraction(random) * kSurvivable;
}

Fault DrawFault(Random& random, const Plan& plan, FaultKind kind, double longest) {
  Fault fault{.kind = kind, .at = Fraction(random) * kHorizon};
  const auto worker = plan.ProcessOfWorker(static_cast<uint32_t>(random.Below(plan.workers)));
  const auto server = plan.ProcessOfServer(static_cast<uint32_t>(random.Below(plan.all_servers())));
  const bool between_servers = !plan.racks.empty() && random.OneIn(3);
  const auto other = between_servers ? plan.ProcessOfServer(static_cast<uint32_t>(random.Below(plan.servers))) : worker;
  const bool turned = random.OneIn(2);
  fault.process = turned ? server : other;
  fault.other = turned ? other : server;
  fault.seconds = Fraction(random) * longest;
  return fault;
}

void DrawFaults(Random& random, Plan& plan) {
  double left = kMostTogether - plan.slowest;
  for (uint64_t i = random.Below(7); i > 0; --i) {
    plan.faults.push_back(DrawFault(random, plan, OneOf(random, kSurvived), std::min(kSurvivable, left)));
    if (plan.faults.back().kind != FaultKind::kReset) left -= plan.faults.back().seconds;
  }
  if (random.OneIn(kLethalOneIn)) plan.faults.push_back(DrawFault(random, plan, OneOf(random, kLethal), kLongest));
  std::ranges::sort(plan.faults, {}, &Fault::at);
}

Fault DrawDeath(Random& random, const Plan& plan, uint32_t process, uint32_t other) {
  Fault death = DrawFault(random, plan, random.OneIn(3) ? FaultKind::kPowerOff : FaultKind::kKill, 0);
  death.process = process;
  death.other = other;
  return death;
}

// So that results come in pieces, and take the place of what was to be summed if nothing prevents that.
void CutFinely(Plan& plan) {
  plan.segment_bytes = kFineSegment;
  plan.partition_bytes = 32768;
  for (TensorPlan& tensor : plan.tensors) {
    tensor.elements = std::max(tensor.elements, uint32_t{20'000});
    if (plan.workers <= kMostRanksOfCodecs) tensor = {DType::kFloat32, tensor.elements, kVotes};
  }
}

// Of some plans, drawn apart once more. Copies on other servers are to be there before one dies, so no death waits for
// half a result.
void DrawCopies(uint64_t seed, Plan& plan) {
  Random random(seed ^ 0x636F70696573);
  if (plan.servers < 2 || random.OneIn(2)) return plan.stores.clear();
  for (StorePlan& store : plan.stores) store.replicas = static_cast<uint32_t>(random.Between(2, 3));
}

// Drawn apart, so that other plans stay what they were. All workers but one may die, and all servers but one.
void DrawDeaths(uint64_t seed, Plan& plan) {
  Random random(~seed);
  plan.elastic = plan.racks.empty() && random.OneIn(kElasticOneIn);
  if (!plan.elastic) return;
  DrawCopies(seed, plan);
  const uint64_t survivor = random.Below(plan.workers);
  for (uint32_t rank = 0; rank < plan.workers; ++rank) {
    if (rank == survivor || random.OneIn(2)) continue;
    const auto server = static_cast<uint32_t>(random.Below(plan.servers));
    plan.faults.push_back(DrawDeath(random, plan, plan.ProcessOfWorker(rank), plan.ProcessOfServer(server)));
  }
  const uint64_t last = random.Below(plan.servers);
  for (uint32_t server = 0; server < plan.servers; ++server) {
    if (server == last || random.OneIn(2)) continue;
    const auto worker = static_cast<uint32_t>(random.Below(plan.workers));
    Fault death = DrawDeath(random, plan, plan.ProcessOfServer(server), plan.ProcessOfWorker(worker));
    death.at *= kInTime;
    plan.rounds = std::max(plan.rounds, kEnoughRounds);
    if (!random.OneIn(3)) death.kind = FaultKind::kHalfway;
    if (death.kind == FaultKind::kHalfway && !plan.stores.empty()) death.kind = FaultKind::kPowerOff;
    if (death.kind == FaultKind::kHalfway && random.OneIn(2)) CutFinely(plan);
    plan.faults.push_back(death);
  }
  std::ranges::sort(plan.faults, {}, &Fault::at);
}

// What spoke of it is left out; those behind it move up.
void LeaveOut(Plan& plan, uint32_t gone) {
  std::erase_if(plan.faults, [&](const Fault& one) { return one.process == gone || one.other == gone; });
  for (Fault& fault : plan.faults) {
    fault.process -= fault.process > gone;
    fault.other -= fault.other > gone;
  }
}

Plan WithoutRack(Plan plan) {
  LeaveOut(plan, plan.processes());
  plan.racks.pop_back();
  return plan;
}

// Without the last worker; or, if that is alone in its rack, without the racks from there on.
Plan WithoutWorker(Plan plan) {
  const uint32_t rank = plan.workers - 1;
  if (const auto rack = plan.RackOf(rank)) plan.racks[*rack].ranks.pop_back();
  while (std::ranges::any_of(plan.racks, [](const RackPlan& one) { return one.ranks.empty(); }))
    plan = WithoutRack(plan);
  LeaveOut(plan, plan.ProcessOfWorker(rank));
  --plan.workers;
  return plan;
}

Plan WithoutServer(Plan plan) {
  LeaveOut(plan, plan.ProcessOfServer(plan.servers - 1));
  --plan.servers;
  return plan;
}

template <typename Change>
void Offer(std::vector<Plan>& smaller, const Plan& plan, bool possible, Change change) {
  if (!possible) return;
  smaller.push_back(plan);
  change(smaller.back());
}

}  // namespace

const char* NameOf(FaultKind kind) {
  constexpr const char* kNames[] = {"reset", "stall", "swallow",   "cut",
                                    "pause", "kill",  "power off", "power off halfway"};
  return kNames[static_cast<size_t>(kind)];
}

bool Fault::lethal() const {
  return kind >= FaultKind::kKill || kind == FaultKind::kSwallow ||
         (kind != FaultKind::kReset && seconds > kSurvivable);
}

std::optional<uint32_t> Plan::RackOf(uint32_t rank) const {
  for (uint32_t rack = 0; rack < racks.size(); ++rack)
    if (std::ranges::find(racks[rack].ranks, rank) != racks[rack].ranks.end()) return rack;
  return std::nullopt;
}

std::string Plan::NameOf(uint32_t process) const {
  if (process <= workers) return "w" + std::to_string(process - 1);
  const uint32_t server = process - workers - 1;
  return server < servers ? "s" + std::to_string(server) : "a" + std::to_string(server - servers);
}

bool Plan::Kills(const Fault& fault, uint32_t process) const {
  return fault.process == process && fault.kind >= FaultKind::kKill;
}

bool Plan::IsLethal(const Fault& fault) const {
  const auto survives = [this](uint32_t server) {
    return std::ranges::none_of(faults, [&](const Fault& one) { return Kills(one, ProcessOfServer(server)); });
  };
  bool goes_on = fault.process <= workers;
  for (uint32_t server = 0; server < servers; ++server) goes_on |= survives(server);
  return fault.lethal() && !(elastic && goes_on && Kills(fault, fault.process));
}

bool Plan::lethal() const {
  return std::ranges::any_of(faults, [this](const Fault& fault) { return IsLethal(fault); });
}

double Plan::last_fault() const {
  double last = 0;
  for (const Fault& fault : faults) last = std::max(last, fault.at + fault.seconds);
  return last;
}

std::string Plan::Describe() const {
  char text[320];
  std::snprintf(
      text, sizeof text,
      "seed %llu: %u workers, %u servers of %u shards, %u rounds of %zu tensors, partitions of %u, segments of "
      "%zu, credit %zu, window %zu%s",
      static_cast<unsigned long long>(seed), workers, servers, shards, rounds, tensors.size(), partition_bytes,
      segment_bytes, credit_bytes, network.window,
      (std::string(elastic ? ", elastic" : "") + (announces ? "" : ", no announcements")).c_str());
  std::string all = text;
  for (const TensorPlan& tensor : tensors)
    all += "\n  tensor of " + std::to_string(tensor.elements) + " " + byteps_like::NameOf(tensor.dtype) +
           (tensor.codec.empty() ? "" : ", " + tensor.codec);
  for (const StorePlan& store : stores)
    all += "\n  store of " + std::to_string(store.elements) + ", " + std::to_string(store.pushes) + " pushes, " +
           store.policy + (store.replicas < 2 ? "" : ", on " + std::to_string(store.replicas) + " servers");
  for (const RackPlan& rack : racks) {
    all += "\n  a rack of";
    for (const uint32_t rank : rack.ranks) all += " w" + std::to_string(rank);
  }
  for (const Fault& fault : faults) {
    std::snprintf(text, sizeof text, "\n  at %.6f %s of %s, with %s, %.6f s", fault.at, sim::NameOf(fault.kind),
                  NameOf(fault.process).c_str(), NameOf(fault.other).c_str(), fault.seconds);
    all += text;
  }
  return all;
}

Plan DrawPlan(uint64_t seed) {
  Random random(seed);
  Plan plan;
  plan.seed = seed;
  DrawWork(random, plan);
  DrawRacks(random, plan);
  DrawNetwork(random, plan);
  DrawFaults(random, plan);
  DrawDeaths(seed, plan);
  return plan;
}

std::vector<Plan> Smaller(const Plan& plan) {
  std::vector<Plan> smaller;
  for (const Fault& fault : plan.faults)
    Offer(smaller, plan, plan.faults.size() > 1, [&fault](Plan& one) { one.faults = {fault}; });
  Offer(smaller, plan, plan.rounds > 1, [](Plan& one) { one.rounds = 1; });
  Offer(smaller, plan, !plan.stores.empty() && !plan.tensors.empty(), [](Plan& one) { one.stores.clear(); });
  Offer(smaller, plan, !plan.stores.empty() && !plan.tensors.empty(), [](Plan& one) { one.tensors.clear(); });
  Offer(smaller, plan, !plan.racks.empty(), [](Plan& one) { one = WithoutRack(one); });
  Offer(smaller, plan, plan.workers > 2, [](Plan& one) { one = WithoutWorker(one); });
  Offer(smaller, plan, plan.servers > 1, [](Plan& one) { one = WithoutServer(one); });
  Offer(smaller, plan, plan.shards > 1, [](Plan& one) { one.shards = 1; });
  for (size_t i = 0; i < plan.faults.size(); ++i)
    Offer(smaller, plan, true, [i](Plan& one) { one.faults.erase(one.faults.begin() + static_cast<ptrdiff_t>(i)); });
  for (size_t i = 0; i < plan.tensors.size(); ++i)
    Offer(smaller, plan, plan.tensors.size() + plan.stores.size() > 1,
          [i](Plan& one) { one.tensors.erase(one.tensors.begin() + static_cast<ptrdiff_t>(i)); });
  for (size_t i = 0; i < plan.stores.size(); ++i)
    Offer(smaller, plan, plan.tensors.size() + plan.stores.size() > 1,
          [i](Plan& one) { one.stores.erase(one.stores.begin() + static_cast<ptrdiff_t>(i)); });
  Offer(smaller, plan, plan.slow_one_in != 0, [](Plan& one) { one.slow_one_in = 0; });
  Offer(smaller, plan, plan.network.jitter.count() != 0, [](Plan& one) { one.network.jitter = {}; });
  Offer(smaller, plan, plan.rounds > 1, [](Plan& one) { --one.rounds; });
  for (size_t i = 0; i < plan.tensors.size(); ++i)
    Offer(smaller, plan, plan.tensors[i].elements > 1, [i](Plan& one) { one.tensors[i].elements /= 2; });
  for (size_t i = 0; i < plan.stores.size(); ++i) {
    Offer(smaller, plan, plan.stores[i].elements > 1, [i](Plan& one) { one.stores[i].elements /= 2; });
    Offer(smaller, plan, plan.stores[i].pushes > 1, [i](Plan& one) { --one.stores[i].pushes; });
  }
  return smaller;
}

}  // namespace byteps_like::sim
