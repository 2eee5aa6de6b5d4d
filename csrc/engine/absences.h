// Which ranks that are gone lack in what a shard has summed without them, as it says by CONTRIBUTORS.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "csrc/wire/frame.h"

namespace byteps_like {

// A rank whose contribution is not, or not whole, in a result.
struct Absence {
  uint32_t rank = 0;
  uint64_t key = 0;
  uint32_t bytes = 0;  // of its contribution, from its beginning, that are
  uint32_t total = 0;  // of all of it; 0: it had not begun
  bool operator==(const Absence&) const = default;
};

// How many of `world` ranks have brought byte `at` of a contribution to the key.
uint32_t ContributorsAt(std::span<const Absence> absences, uint64_t key, uint32_t world, uint32_t at);
// Where that number changes, but for the beginning; ascending.
std::vector<uint32_t> CutsOf(std::span<const Absence> absences, uint64_t key);

// Of one shard. Belongs to the I/O thread.
class Absences {
 public:
  bool empty() const { return gone_.empty(); }
  void Hear(const Header& contributors);
  // Of a round whose result is here: adds who lacks in it. No earlier round of the key will be asked about.
  void Collect(uint64_t key, uint32_t round, std::vector<Absence>& to);
  void Forget(uint64_t key) { brought_.erase(key); }

 private:
  struct Brought {
    uint32_t round = 0;
    Absence what;
  };
  std::set<uint32_t> gone_;
  std::unordered_map<uint64_t, std::vector<Brought>> brought_;  // by key: of rounds that were open when it went
};

}  // namespace byteps_like
