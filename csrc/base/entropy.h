// The one place where random bytes of the protocol come from: OpenSSL, or the simulation in which the caller runs.
#pragma once

#include <cstddef>
#include <span>

#include "csrc/base/status.h"

namespace byteps_like {

// kSystem if OpenSSL has none.
Status FillRandomly(std::span<std::byte> bytes);

}  // namespace byteps_like
