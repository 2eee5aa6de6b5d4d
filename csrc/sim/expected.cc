#include "csrc/sim/expected.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace byteps_like::sim {
namespace {

int64_t Pattern(uint32_t tensor, uint32_t round, size_t i) {
  return static_cast<int64_t>((tensor * 7 + round * 13 + i) % 11) + 1;
}

// A byte holds eight ranks' bits, but not the largest of them in order.
bool Fits(const Plan& plan, DType dtype) { return dtype != DType::kUInt8 || plan.workers <= 4; }

// The ranks of which an element has something for sure, and others of which it may: a bit each.
struct Contributors {
  uint32_t must = 0, may = 0;
};

// A payload that has come in part may be in the sum of some elements; which those are, its codec knows.
Contributors Of(const Plan& plan, bool coded, uint64_t key, uint64_t byte, const std::vector<Absence>& absences) {
  Contributors found{.must = (1u << plan.workers) - 1};
  for (const Absence& one : absences) {
    if (one.key != key || (!coded && byte < one.bytes)) continue;
    found.must &= ~(1u << one.rank);
    if (coded && one.bytes > 0) found.may |= 1u << one.rank;
  }
  return found;
}

bool IsRight(Op op, uint32_t root, int64_t units, const Contributors& ranks) {
  if (op == Op::kBroadcast) return units == int64_t{1} << root;
  if (op == Op::kMax) return units == std::bit_floor(ranks.must);
  const auto bits = static_cast<uint32_t>(units);
  return units == bits && (bits & ~ranks.may) == ranks.must;
}

template <typename Use>
auto WithType(DType dtype, Use use) {
  switch (dtype) {
    case DType::kInt32:
      return use(int32_t{});
    case DType::kFloat32:
      return use(float{});
    case DType::kUInt8:
      return use(uint8_t{});
    case DType::kInt16:
      return use(int16_t{});
    case DType::kFloat64:
      return use(double{});
    default:
      return use(int64_t{});
  }
}

// How many bits' worth the element is, if it is a whole number of them; in the type's own arithmetic, which may wrap.
template <typename T>
bool IsRightAs(T value, int64_t pattern, Op op, uint32_t root, const Contributors& ranks, uint32_t workers) {
  for (uint32_t units = 1; units < 1u << workers; ++units)
    if (value == static_cast<T>(units * pattern) && IsRight(op, root, units, ranks)) return true;
  return false;
}

}  // namespace

DType TypeOf(const Plan& plan, uint32_t tensor) {
  const DType dtype = plan.tensors[tensor].dtype;
  return Fits(plan, dtype) ? dtype : DType::kInt32;
}

// A broadcast of a rank that dies ends even an elastic job.
Op OpOf(const Plan& plan, uint32_t tensor, uint32_t round) {
  constexpr Op kOps[] = {Op::kSum, Op::kSum, Op::kMax, Op::kSum, Op::kBroadcast, Op::kSum};
  const Op op = kOps[(tensor + round) % std::size(kOps)];
  const bool possible = op == Op::kMax ? plan.tensors[tensor].codec.empty() : op != Op::kBroadcast || !plan.elastic;
  return possible ? op : Op::kSum;
}

uint32_t RootOf(const Plan& plan, uint32_t round) { return round % plan.workers; }

void Expected::Fill(std::span<std::byte> memory, uint32_t rank) const {
  WithType(TypeOf(plan, tensor), [&](auto zero) {
    using T = decltype(zero);
    auto* const values = reinterpret_cast<T*>(memory.data());
    for (size_t i = 0; i < memory.size() / sizeof(T); ++i)
      values[i] = static_cast<T>((int64_t{1} << rank) * Pattern(tensor, round, i));
  });
}

size_t Expected::FirstWrong(std::span<const std::byte> memory, const std::vector<PartitionSpec>& parts,
                            const std::vector<Absence>& absences) const {
  const Op op = OpOf(plan, tensor, round);
  if (plan.tensors[tensor].codec == kVotes) return memory.size() / SizeOf(TypeOf(plan, tensor));
  const bool coded = !plan.tensors[tensor].codec.empty();
  const uint32_t all = (1u << plan.workers) - 1;
  return WithType(TypeOf(plan, tensor), [&](auto zero) {
    using T = decltype(zero);
    const auto* const values = reinterpret_cast<const T*>(memory.data());
    for (const PartitionSpec& part : parts)
      for (size_t i = part.offset / sizeof(T); i < (part.offset + part.bytes) / sizeof(T); ++i) {
        const int64_t pattern = Pattern(tensor, round, i);
        if (absences.empty() && op == Op::kSum && values[i] == static_cast<T>(all * pattern)) continue;
        const Contributors ranks = Of(plan, coded, part.key, i * sizeof(T) - part.offset, absences);
        if (!IsRightAs(values[i], pattern, op, RootOf(plan, round), ranks, plan.workers)) return i;
      }
    return memory.size() / sizeof(T);
  });
}

}  // namespace byteps_like::sim
