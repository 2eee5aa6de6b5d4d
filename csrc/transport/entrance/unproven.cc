#include "csrc/transport/entrance/unproven.h"

#include <algorithm>

namespace byteps_like {

std::optional<TooMany> FindTooMany(std::span<const Unproven> waiting, const UnprovenLimits& limits) {
  const std::string_view source = waiting.back().source;
  const auto silent = [](const Unproven& one) { return one.silent; };
  const auto silent_here = [source](const Unproven& one) { return one.silent && one.source == source; };
  const auto first = [waiting](auto which) {
    return static_cast<size_t>(std::find_if(waiting.begin(), waiting.end(), which) - waiting.begin());
  };
  const auto count_here = static_cast<size_t>(std::count_if(waiting.begin(), waiting.end(), silent_here));
  if (count_here > limits.silent_of_source)
    return TooMany{first(silent_here), "too many silent connections from its address"};
  size_t costs = 0;
  for (const Unproven& one : waiting) costs += one.costs;
  if (costs <= limits.all) return std::nullopt;
  const size_t oldest_silent = first(silent);
  return TooMany{oldest_silent + 1 < waiting.size() ? oldest_silent : 0, "too many connections at a time"};
}

}  // namespace byteps_like
