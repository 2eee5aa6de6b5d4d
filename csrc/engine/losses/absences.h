// Which ranks that are gone are missing in what a shard has summed, as it says by CONTRIBUTORS.
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

// How many of `world` ranks have brought byte `at` of their contributions to a key, of which these are absent.
uint32_t ContributorsAt(std::span<const Absence> absences, uint32_t world, uint32_t at);
// Where that number changes, but for the beginning; ascending.
std::vector<uint32_t> CutsOf(std::span<const Absence> absences);

// Of one shard. Belongs to the I/O thread.
class Absences {
 public:
  bool empty() const { return gone_.empty(); }
  void Hear(const Header& contributors);
  // Those of a round whose result is here. No earlier round of the key will be asked about.
  std::vector<Absence> Take(uint64_t key, uint32_t round);
  void Forget(uint64_t key);
  // The same of a result that another rank gives to this one, as that rank knows it.
  void HearOfGiven(const Header& contributors);
  std::vector<Absence> TakeOfGiven(uint64_t key);

 private:
  struct Brought {
    uint32_t round = 0;
    Absence what;
  };
  std::set<uint32_t> gone_;
  std::unordered_map<uint64_t, std::vector<Absence>> given_;    // by key
  std::unordered_map<uint64_t, std::vector<Brought>> brought_;  // by key: of rounds that were open when it went
};

}  // namespace byteps_like
