// Decides which connection to drop when too many peers have not proven their identity. It is only the rule and holds no
// connections, so listeners of all transports share it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace byteps_like {

struct Unproven {           // a peer that has not yet proven that it holds the job's secret
  std::string_view source;  // where it is, which it can't choose at will (Stream::source)
  bool silent = true;       // nor has it said anything right
  size_t costs = 1;         // descriptors
};

struct UnprovenLimits {
  size_t all;                    // what they cost together
  size_t silent_of_source = 16;  // so that a stranger with one address crowds out only itself
};

struct TooMany {
  size_t goes;  // index of the one that has to go, never the last
  const char* why;
};

// `waiting`: at least one, in the order of their coming; the last one has just come, and is silent. Nothing: there is
// room for all of them. To be called for each that comes, and until there is room.
std::optional<TooMany> FindTooMany(std::span<const Unproven> waiting, const UnprovenLimits& limits);

}  // namespace byteps_like
