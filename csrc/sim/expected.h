// What sums of a simulated job have to be: each rank brings a bit of its own, times something that differs by place and
// round, so a sum tells whose contributions are in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "csrc/engine/losses/absences.h"
#include "csrc/engine/tensor_table.h"
#include "csrc/sim/plan.h"

namespace byteps_like::sim {

DType TypeOf(const Plan& plan, uint32_t tensor);
Op OpOf(const Plan& plan, uint32_t tensor, uint32_t round);
uint32_t RootOf(const Plan& plan, uint32_t round);

// One round of one tensor.
struct Expected {
  const Plan& plan;
  uint32_t tensor = 0, round = 0;

  void Fill(std::span<std::byte> memory, uint32_t rank) const;  // with what the rank brings
  // The number of the first element that is not the reduction of what `absences` leaves of all contributions; as many
  // as there are if none is wrong. `parts`: of the tensor, in order.
  size_t FirstWrong(std::span<const std::byte> memory, const std::vector<PartitionSpec>& parts,
                    const std::vector<Absence>& absences) const;
};

}  // namespace byteps_like::sim
