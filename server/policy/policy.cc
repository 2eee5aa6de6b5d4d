#include "server/policy/policy.h"

namespace byteps_like {

uint32_t Quorum::Source(const Terms&) const { return kNobody; }
void Update::Encoded(const Terms&, const Draw&, std::byte*, std::span<const std::byte>) {}

}  // namespace byteps_like
