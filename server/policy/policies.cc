#include "server/policy/policies.h"

#include <algorithm>

#include "server/codecs.h"
#include "server/policy/bsp.h"
#include "server/policy/feedback.h"
#include "server/rounds/dense_round.h"
#include "server/rounds/encoded_round.h"
#include "server/rounds/merge_round.h"

namespace byteps_like {
namespace {

const AllRanks kAllRanks;
const RootAmongAll kRootAmongAll;

template <typename Kind>
std::unique_ptr<Round> Make(uint64_t key, ShardMemory& memory) {
  return std::make_unique<Kind>(key, memory);
}

constexpr Combine kArrays{.make = Make<DenseRound>, .streams = true};  // sum, average, min, ..., as the frames say
constexpr Combine kPayloads{.make = Make<EncodedRound>, .streams = false};
constexpr Combine kUnions{.make = Make<MergeRound>, .streams = true};

bool IsReduction(const Terms& terms) { return terms.codec == nullptr && terms.op != Op::kBroadcast; }
bool IsBroadcast(const Terms& terms) { return terms.codec == nullptr && terms.op == Op::kBroadcast; }
bool IsTwoWay(const Terms& terms) { return terms.codec != nullptr && terms.codec->two_way; }
bool IsMerged(const Terms& terms) { return terms.codec != nullptr && terms.codec->codec->trait() == Trait::kMerge; }
bool IsEncoded(const Terms& terms) { return terms.codec != nullptr; }

// The first that opens a round is taken.
const PolicyRow kRows[] = {
    {.name = "bsp", .opens = IsReduction, .quorum = &kAllRanks, .combine = &kArrays},
    {.name = "bsp_broadcast", .opens = IsBroadcast, .quorum = &kRootAmongAll, .combine = &kArrays},
    {.name = "bsp_two_way",
     .opens = IsTwoWay,
     .quorum = &kAllRanks,
     .combine = &kPayloads,
     .update = ServerFeedback::Make},
    {.name = "bsp_merged", .opens = IsMerged, .quorum = &kAllRanks, .combine = &kUnions},
    {.name = "bsp_encoded", .opens = IsEncoded, .quorum = &kAllRanks, .combine = &kPayloads},
};

}  // namespace

std::span<const PolicyRow> Policies() { return kRows; }

const PolicyRow* FindPolicy(std::span<const PolicyRow> table, const Terms& terms) {
  const auto found = std::find_if(table.begin(), table.end(), [&](const PolicyRow& row) { return row.opens(terms); });
  return found == table.end() ? nullptr : &*found;
}

}  // namespace byteps_like
