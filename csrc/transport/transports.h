// The table of transports, as tests extend it. Its rows, and the functions behind them, are in transports.cc.
#pragma once

#include "csrc/transport/stream.h"

namespace byteps_like {

// Adds a transport that is found by its scheme but not listed, for tests of everything that links may do. Call it once,
// before any address of it is used.
void AddTransport(const Transport& transport);

}  // namespace byteps_like
