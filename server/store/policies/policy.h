// A store key's policy decides what becomes of each contribution, when the next version is made, and who may read it.
// Policies are pure: they decide by what the key's ledger shows them, and keep nothing. Twins of those in
// byteps_like/store/policies, whose docstrings name the papers.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>

#include "compression/spec.h"
#include "server/update/store_push.h"

namespace byteps_like {

class Ledger;

inline constexpr double kNow = -std::numeric_limits<double>::infinity();  // when a version is made that need not wait
inline constexpr double kAnyLead = std::numeric_limits<double>::infinity();

enum class PushVerdict {
  kCount,  // it is part of the next version
  kLate,   // it is never applied, and its source is told so
  kHold,   // it is asked about again when the next version has been made
};

class StorePolicy {
 public:
  virtual ~StorePolicy() = default;
  // Asked when it has come, and again after each version if it is held. Of a source whose last block is in the open
  // version, or that has another one held, it is held unasked.
  virtual PushVerdict OnPush(const Ledger& key, const StorePush& push) const = 0;
  // From when on, in the seconds of the ledger's calls, the next version may be made of what is open; nullopt: not
  // before something more comes. Asked when anything has changed.
  virtual std::optional<double> ReadyAt(const Ledger& key) const = 0;
  // Whether a live source may read the version in force. Once true it stays so until the source pushes again.
  virtual bool MayRead(const Ledger& key, uint32_t reader) const = 0;
  // By how many clocks `source`, which has just pushed, may be ahead of the slowest when it reads. The ledger keeps it.
  virtual double Lead(const Ledger& key, uint32_t source) const;
  virtual bool HasRounds() const { return true; }  // versions are made of several contributions
  // Whether it looks back on the ledger's rounds and estimates, which take memory, and a pass over contributions.
  virtual bool Observes() const { return false; }
  // When ranks stop, contributions may be left of which no version is made: that they wait isn't worth a word.
  virtual bool LeavesSome() const { return false; }
};

struct StorePolicyRow {
  std::string_view name;
  std::unique_ptr<StorePolicy> (*make)(CodecSpec& spec);
};

// The policy of a text as byteps_like.store.policies.registry.text_of writes it: all keys, in the order of the
// alphabet. kInvalid. To add one, write a file in this folder and its twin in Python, and add a row to policies.cc.
Result<std::unique_ptr<StorePolicy>> MakeStorePolicy(std::string_view text);

}  // namespace byteps_like
