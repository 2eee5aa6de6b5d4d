// What became of operations on kept keys, by their number.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "csrc/engine/keeping/keep_operation.h"

namespace byteps_like::testing {

inline constexpr size_t kPiece = 16;  // bytes of a segment

struct Told : KeepSink {
  void Settled(const KeepTicket& ticket, const Status& status, KeepOutcome outcome) override {
    CHECK(!found.contains(ticket.index));
    found[ticket.index] = {status.code(), outcome};
  }
  void CutOff(uint64_t key, bool is_so) override { cut_off[key].push_back(is_so); }
  std::map<size_t, std::pair<Code, KeepOutcome>> found;
  std::map<uint64_t, std::vector<bool>> cut_off;  // by key, what was said of it
};

}  // namespace byteps_like::testing
