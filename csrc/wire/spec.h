// What workers, too, must know of the text of a store key's spec (server/store/shard/spec_text.h).
#pragma once

#include <string_view>

namespace byteps_like {

// Begins a line of those whose value several servers have.
inline constexpr std::string_view kReplicasLine = "\nreplicas ";

inline bool HasReplicas(std::string_view spec) { return spec.find(kReplicasLine) != std::string_view::npos; }

}  // namespace byteps_like
