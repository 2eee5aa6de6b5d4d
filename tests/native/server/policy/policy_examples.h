// For each policy rounds as an example, with what they should give by a reference of their own: plain loops, or direct
// calls of a codec. Every row of the table needs one; the conformance suite goes through them.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/policy/policies.h"
#include "tests/native/server/merge_fixture.h"
#include "tests/native/server/policy/toy_policies.h"
#include "tests/native/server/raw_coder.h"

namespace byteps_like::testing {

// What of a round's result a rank may have.
enum class Reads {
  kStreamed,   // once all ranks have begun, as far as all have contributed
  kBegun,      // nothing before all ranks have begun; what then is the codec's
  kWhole,      // nothing before all contributions are whole
  kFirstOwn2,  // nothing before two contributions, and its own, are whole
};

using Ranks = std::vector<uint32_t>;  // in the order in which their contributions became whole

// Rounds of one key, of kWorld ranks.
struct PolicyExample {
  static constexpr uint32_t kWorld = 4, kRounds = 4;

  std::string name;  // of the row
  Reads reads;
  Op op = Op::kSum;
  std::string codec = "";         // as announced; "": none
  bool may_be_absent = false;     // a rank
  bool may_be_shared = false;     // contributions, in memory that the server maps
  bool without_the_last = false;  // whether rounds end although a rank never comes
  // What a rank brings. The same whenever it is called; empty if it only subscribes.
  std::function<Payload(uint32_t rank, uint32_t round)> contribution{};
  // What is read of a round, if these contributions came in this order: called once for each round, in order.
  std::function<Payload(const Ranks& order, uint32_t round)> result{};

  uint32_t root() const { return op == Op::kBroadcast ? 2 : 0; }
  bool Brings(uint32_t rank) const { return op != Op::kBroadcast || rank == root(); }
  // Of the first frame of a rank, with all that it brings.
  Header Push(uint32_t rank, uint64_t key, uint32_t round) const {
    const auto own = static_cast<uint32_t>(contribution(rank, round).size());
    const auto total = Brings(rank) ? own : static_cast<uint32_t>(contribution(root(), round).size());
    Header header = codec.empty() ? PushHeader(rank, key, round, total) : EncodedHeader(rank, key, round, total);
    header.rank = rank;
    header.op = op;
    header.root = root();
    header.length = own;
    return header;
  }
};

namespace examples {

constexpr uint32_t kCount = 3001;

inline int32_t Value(uint32_t rank, uint32_t round, size_t i) {
  return static_cast<int32_t>((rank + 1) * 100003 + round * 7919 + i * 31);
}

inline Payload Array(const std::function<int32_t(size_t)>& value) {
  Payload bytes(kCount * sizeof(int32_t));
  for (size_t i = 0; i < kCount; ++i) {
    const int32_t one = value(i);
    std::memcpy(bytes.data() + i * sizeof(one), &one, sizeof(one));
  }
  return bytes;
}

inline Payload Own(uint32_t rank, uint32_t round) {
  static std::map<std::pair<uint32_t, uint32_t>, Payload> made;
  Payload& own = made[{rank, round}];
  if (own.empty()) own = Array([&](size_t i) { return Value(rank, round, i); });
  return own;
}

inline Payload SumOf(const Ranks& ranks, uint32_t round) {
  return Array([&](size_t i) {
    int32_t sum = 0;
    for (const uint32_t rank : ranks) sum += Value(rank, round, i);
    return sum;
  });
}

inline Ranks First(const Ranks& order, size_t count) {
  return {order.begin(), order.begin() + static_cast<ptrdiff_t>(std::min(count, order.size()))};
}

// Whole numbers of which most blocks are zeros: any order of their sum gives the same bits.
inline std::vector<Floats> Gradients(uint32_t round) {
  return SparseRanks(30 * kBlock + 13, {0.3, 0.2, 0.4, 0.1}, 7 + round);
}

inline Payload PayloadOf(const Codec& codec, uint32_t rank, uint32_t round) {
  static std::map<std::pair<std::string, uint32_t>, std::vector<Payload>> made;
  std::vector<Payload>& all = made[{codec.spec(), round}];
  if (all.empty()) all = Encoded(codec, Gradients(round), kKey, round);
  return all[rank];
}

inline Payload SumOfPayloads(const Codec& codec, const Ranks& order, uint32_t round, Floats* feedback = nullptr) {
  std::vector<Payload> payloads;
  for (const uint32_t rank : order) payloads.push_back(PayloadOf(codec, rank, round));
  return Summed(codec, static_cast<uint32_t>(Gradients(round)[0].size()), payloads, kKey, round, feedback);
}

inline PolicyExample OfCodec(const std::string& row, Reads reads, const std::string& spec, bool two_way = false) {
  const CodecPointer codec = CodecFor(spec, PolicyExample::kWorld);
  const auto feedback = std::make_shared<Floats>(two_way ? Gradients(0)[0].size() : 0);
  PolicyExample example{.name = row, .reads = reads, .codec = two_way ? "twoway " + spec : spec};
  example.contribution = [codec](uint32_t rank, uint32_t round) { return PayloadOf(*codec, rank, round); };
  example.result = [codec, feedback, two_way](const Ranks& order, uint32_t round) {
    return SumOfPayloads(*codec, order, round, two_way ? feedback.get() : nullptr);
  };
  return example;
}

inline PolicyExample Reduction() {
  return {.name = "bsp",
          .reads = Reads::kStreamed,
          .may_be_absent = true,
          .may_be_shared = true,
          .contribution = Own,
          .result = SumOf};
}

inline PolicyExample Broadcast() {
  return {.name = "bsp_broadcast",
          .reads = Reads::kStreamed,
          .op = Op::kBroadcast,
          .may_be_shared = true,
          .contribution = [](uint32_t rank, uint32_t round) { return rank == 2 ? Own(2, round) : Payload(); },
          .result = [](const Ranks&, uint32_t round) { return Own(2, round); }};
}

inline PolicyExample Merged() {
  PolicyExample example = OfCodec("bsp_merged", Reads::kBegun, "blocksparse:block=256,dense=0.8");
  example.result = [summed = example.result](const Ranks& order, uint32_t round) {
    const auto xs = Gradients(round);
    const auto codec = CodecFor("blocksparse:block=256,dense=0.8", PolicyExample::kWorld);
    const Payload result = summed(order, round);
    CHECK(Decoded(*codec, result, static_cast<uint32_t>(xs[0].size())) == DenseSum(xs));
    return result;
  };
  return example;
}

inline PolicyExample FirstTwo() {
  return {.name = "first_two",
          .reads = Reads::kFirstOwn2,
          .may_be_absent = true,
          .without_the_last = true,
          .contribution = Own,
          .result = [](const Ranks& order, uint32_t round) { return SumOf(First(order, 2), round); }};
}

inline PolicyExample FirstTwoEncoded() {
  PolicyExample example = OfCodec("first_two_encoded", Reads::kFirstOwn2, "onebit:block=64");
  example.without_the_last = true;
  example.result = [summed = example.result](const Ranks& order, uint32_t round) {
    return summed(First(order, 2), round);
  };
  return example;
}

inline PolicyExample RunningTotals() {
  const auto total = std::make_shared<std::vector<int32_t>>(kCount);
  return {.name = "running_total",
          .reads = Reads::kWhole,
          .may_be_absent = true,
          .may_be_shared = true,
          .contribution = Own,
          .result = [total](const Ranks& ranks, uint32_t round) {
            for (const uint32_t rank : ranks)
              for (size_t i = 0; i < kCount; ++i) (*total)[i] += Value(rank, round, i);
            return Array([&](size_t i) { return (*total)[i]; });
          }};
}

}  // namespace examples

// Fresh ones: those with an update begin at its beginning.
inline std::vector<PolicyExample> PolicyExamples() {
  using namespace examples;  // NOLINT
  return {Reduction(),
          Broadcast(),
          OfCodec("bsp_encoded", Reads::kWhole, "onebit:block=1024"),
          OfCodec("bsp_two_way", Reads::kWhole, "onebit:block=64", true),
          Merged(),
          FirstTwo(),
          FirstTwoEncoded(),
          RunningTotals()};
}

}  // namespace byteps_like::testing
