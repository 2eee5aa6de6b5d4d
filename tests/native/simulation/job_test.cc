// Whole jobs in simulated worlds: a few hundred seeds each time, and each planted defect is found. `byteps-like chaos
// --sim` runs more.
#include "csrc/sim/job.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "tests/native/slow.h"

namespace byteps_like::sim {
namespace {

using testing::kSlow;

constexpr uint64_t kSeeds = 200;
constexpr uint64_t kMostUntilFound = 1000;

// The first seed that breaks a rule; the number of all if none does.
uint64_t FirstBad(uint64_t seeds, const std::string& defect) {
  for (uint64_t seed = 0; seed < seeds; ++seed)
    if (!Job(DrawPlan(seed), {.defect = defect}).Run().complaints.empty()) return seed;
  return seeds;
}

}  // namespace

TEST_CASE("simulation: 200 jobs keep the rules, whatever happens to their links and processes") {
  uint64_t killed = 0, failed = 0, finished = 0;
  for (uint64_t seed = 0; seed < kSeeds / kSlow; ++seed) {
    const Outcome outcome = Job(DrawPlan(seed), {}).Run();
    for (const std::string& complaint : outcome.complaints) FAIL_CHECK("seed " << seed << ": " << complaint);
    killed += outcome.killed;
    failed += outcome.failed;
    finished += outcome.finished;
  }
  CHECK(finished > failed);
  CHECK(failed > 0);  // else this proves little
  if (kSlow == 1) CHECK(killed > 0);
}

// A shard asked its store keys for something to send to an aggregator, which has no place there.
TEST_CASE("simulation: racks and stores share servers") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Plan plan = DrawPlan(seed);
    plan.faults.clear();
    plan.racks = {{.ranks = {0}}, {.ranks = {1}}};
    plan.stores = {{.policy = "asp", .elements = 100, .pushes = 3}};
    const Outcome outcome = Job(plan, {}).Run();
    for (const std::string& complaint : outcome.complaints) FAIL_CHECK("seed " << seed << ": " << complaint);
    CHECK(outcome.finished == plan.workers);
  }
}

TEST_CASE("simulation: a seed has one history") {
  for (const uint64_t seed : {3, 14, 185}) {
    const Outcome one = Job(DrawPlan(seed), {}).Run(), other = Job(DrawPlan(seed), {.keeps_lines = true}).Run();
    CHECK(one.history == other.history);
    CHECK(one.events == other.events);
    CHECK(one.turns == other.turns);
  }
  CHECK(Job(DrawPlan(3), {}).Run().history != Job(DrawPlan(4), {}).Run().history);
}

TEST_CASE("simulation: each planted defect is found within 1,000 seeds") {
  for (const std::string& defect : DefectNames()) {
    INFO(defect);
    CHECK(FirstBad(kMostUntilFound, defect) < kMostUntilFound);
  }
}

TEST_CASE("simulation: a plan that breaks a rule is made smaller, and still breaks one") {
  const Job::Options options{.defect = "never-resumes"};
  const Plan plan = DrawPlan(FirstBad(kMostUntilFound, options.defect));
  const Plan small = Shrink(plan, options);
  CHECK(!Job(small, options).Run().complaints.empty());
  CHECK(small.faults.size() < plan.faults.size());
  CHECK(small.tensors.size() + small.stores.size() == 1);
  for (const Plan& smaller : Smaller(small)) CHECK(Job(smaller, options).Run().complaints.empty());
}

}  // namespace byteps_like::sim
