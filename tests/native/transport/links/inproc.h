// The transport within a process, on which transports for tests are built.
#pragma once

#include <algorithm>

#include "csrc/transport/transports.h"

namespace byteps_like::testing {

inline const Transport& Inproc() { return *std::ranges::find(Transports(), "inproc", &Transport::scheme); }

}  // namespace byteps_like::testing
