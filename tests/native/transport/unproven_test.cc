// Who has to go when too many are there that have not shown who they are.
#include "csrc/transport/entrance/unproven.h"

#include <doctest/doctest.h>

#include <deque>
#include <random>
#include <string>
#include <vector>

namespace byteps_like::testing {
namespace {

constexpr UnprovenLimits kLimits{.all = 32};

// As a listener does: each that comes may make one go.
class Door {
 public:
  void Come(const std::string& source) {
    waiting_.push_back({source, true});
    if (const auto too_many = FindTooMany(Seen(), kLimits)) {
      CHECK(too_many->goes + 1 < waiting_.size());
      waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(too_many->goes));
    }
  }
  void Speak(size_t which) { waiting_[which].silent = false; }
  size_t Count(const std::string& source) const {
    size_t count = 0;
    for (const Visitor& one : waiting_) count += one.source == source ? 1 : 0;
    return count;
  }
  size_t Silent(const std::string& source) const {
    size_t count = 0;
    for (const Visitor& one : waiting_) count += one.source == source && one.silent ? 1 : 0;
    return count;
  }
  size_t size() const { return waiting_.size(); }

 private:
  struct Visitor {
    std::string source;
    bool silent;
  };
  std::vector<Unproven> Seen() const {
    std::vector<Unproven> seen;
    for (const Visitor& one : waiting_) seen.push_back({one.source, one.silent});
    return seen;
  }
  std::deque<Visitor> waiting_;
};

}  // namespace

TEST_CASE("unproven: a stranger with one address crowds out only itself") {
  Door door;
  for (int i = 0; i < 15; ++i) door.Come("member " + std::to_string(i));
  for (int i = 0; i < 1000; ++i) door.Come("stranger");
  CHECK(door.Count("stranger") == 16);
  CHECK(door.size() == 31);
}

TEST_CASE("unproven: those who have said nothing right go before those who have, the oldest first") {
  Door door;
  door.Come("member");
  door.Speak(0);
  for (int i = 0; i < 1000; ++i) door.Come("stranger " + std::to_string(i));
  CHECK(door.size() == 32);
  CHECK(door.Count("member") == 1);
  CHECK(door.Count("stranger 968") == 0);
  CHECK(door.Count("stranger 969") == 1);
}

TEST_CASE("unproven: whoever comes, the newest stays and no limit is passed") {
  std::mt19937 random(7);
  Door door;
  for (int turn = 0; turn < 5000; ++turn) {
    const std::string source = std::to_string(random() % 6);
    door.Come(source);
    REQUIRE(door.size() <= kLimits.all);
    REQUIRE(door.Count(source) > 0);
    if (random() % 3 == 0) door.Speak(random() % door.size());
    for (int one = 0; one < 6; ++one) REQUIRE(door.Silent(std::to_string(one)) <= kLimits.silent_of_source);
  }
}

TEST_CASE("unproven: one that has not said anything may come where all before it have") {
  Door door;
  for (int i = 0; i < 32; ++i) {
    door.Come("member");
    door.Speak(door.size() - 1);
  }
  door.Come("late");
  CHECK(door.size() == 32);
  CHECK(door.Count("late") == 1);
}

}  // namespace byteps_like::testing
