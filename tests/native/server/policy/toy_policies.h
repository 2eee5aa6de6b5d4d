// Policies that no worker can ask for: they show that the seam carries other things than bulk-synchronous rounds, and
// that the shard knows nothing about any of them.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "csrc/kernels/kernels.h"
#include "server/memory.h"
#include "server/policy/bsp.h"
#include "server/rounds/dense_round.h"
#include "server/rounds/encoded_round.h"

namespace byteps_like::testing {

template <typename Kind>
std::unique_ptr<Round> MakeRound(uint64_t key, ShardMemory& memory) {
  return std::make_unique<Kind>(key, memory);
}

// The first `k` whole contributions make the result; what comes later is dropped.
class FirstOf final : public Quorum {
 public:
  explicit FirstOf(uint32_t k) : k_(k) {}
  uint32_t Least(uint32_t world) const override { return std::min(k_, world); }

 private:
  const uint32_t k_;
};

// Nobody reads before its own contribution is whole: until then a worker sends from where the result goes.
class OwnFirst final : public ReadRule {
 public:
  uint32_t Readable(const Round& round, uint32_t rank) const override { return round.Has(rank) ? round.complete() : 0; }
};

// Arrays of int32, staged: added when they are whole, if they are not too late.
class StagedSum final : public PayloadRound {
 public:
  StagedSum(uint64_t, ShardMemory& memory) : PayloadRound(memory) {}

  void Begin(const Header& first, const Terms& terms, const KeyPolicy& policy, const Seats& seats) override {
    PayloadRound::Begin(first, terms, policy, seats);
    total_ = terms.total;
    added_ = 0;
    taken_.assign(seats.ranks(), false);
  }

  Result<bool> Advance() override {
    if (sum_.size() == 0 && complete_ == 0) sum_ = memory_.Take(total_);
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank)
      if (Has(rank) && !taken_[rank]) Take(rank);
    const bool made = complete_ == 0 && added_ == least_;
    if (made)
      if (Status status = Make(); !status.ok()) return status;
    return made;
  }

 private:
  Status Grown(uint32_t) override { return {}; }

  void Take(uint32_t rank) {
    taken_[rank] = true;
    if (added_ < least_ && !ranks_[rank].absent) {
      const size_t count = total_ / sizeof(int32_t);
      kernels::Reduce(added_++ == 0 ? Op::kBroadcast : Op::kSum, DType::kInt32, sum_.data(), Come(rank).data(), count);
    }
    Drop(rank);
  }

  Status Make() {
    if (Status taken = TakeResult(total_); !taken.ok()) return taken;
    std::memcpy(const_cast<std::byte*>(result()), sum_.data(), total_);
    sum_.Release();
    complete_ = total_;
    Touch();
    return {};
  }

  uint32_t added_ = 0;
  std::vector<bool> taken_;  // added, or dropped
};

// The sum of all rounds so far, of int32.
class RunningTotal final : public Update {
 public:
  explicit RunningTotal(ShardMemory& memory) : memory_(memory) {}
  static std::unique_ptr<Update> Make(ShardMemory& memory) { return std::make_unique<RunningTotal>(memory); }

  Status Apply(const Terms&, std::span<std::byte> sum) override {
    if (value_.size() == 0) {
      value_ = memory_.Take(sum.size());
      if (value_.size() == 0) return memory_.Exhausted();
      std::memset(value_.data(), 0, sum.size());
    }
    kernels::Reduce(Op::kSum, DType::kInt32, value_.data(), sum.data(), sum.size() / sizeof(int32_t));
    std::memcpy(sum.data(), value_.data(), sum.size());
    return {};
  }

 private:
  ShardMemory& memory_;
  ShardBuffer value_;
};

inline const FirstOf kFirstTwo{2};
inline const AllRanks kEveryRank;
inline const OwnFirst kOwnFirst;
inline constexpr Combine kStagedSum{.make = MakeRound<StagedSum>, .streams = false};
inline constexpr Combine kStagedPayloads{.make = MakeRound<EncodedRound>, .streams = false};
inline constexpr Combine kStreamedSum{.make = MakeRound<DenseRound>, .streams = true};

inline bool AnyTerms(const Terms&) { return true; }

// Each is a table of its own.
inline const PolicyRow kToys[] = {
    {.name = "first_two", .opens = AnyTerms, .quorum = &kFirstTwo, .combine = &kStagedSum, .read = &kOwnFirst},
    {.name = "first_two_encoded",
     .opens = AnyTerms,
     .quorum = &kFirstTwo,
     .combine = &kStagedPayloads,
     .read = &kOwnFirst},
    {.name = "running_total",
     .opens = AnyTerms,
     .quorum = &kEveryRank,
     .combine = &kStreamedSum,
     .update = RunningTotal::Make},
};

}  // namespace byteps_like::testing
