// chaos: wraps any stream with faults, all drawn from a seed. "chaos+tcp://host:port?seed=7&drop=0.001".
//
// option     meaning (0 or absent: off)
// seed       of the random numbers; each connection of an address draws its own (1st, 2nd, ...)
// delay_ms   what arrives is given to the reader this much later; wrap both ends to delay both ways
// rate       bytes per second, each way
// drop       probability per KiB, each way, that the connection breaks (kPeerLost)
// corrupt    probability per KiB, each way, that one bit is flipped
// stall      probability per KiB, each way, that nothing moves for a while
// stall_ms   for how long; 50 if stall is given without it, and stall is 0.001 if this is given alone
//
// Faults are placed at positions in the byte stream, not at calls, so they don't depend on how it is cut into reads and
// writes. The first KiB of each direction is spared: handshakes get through.
#pragma once

#include <cstdint>
#include <memory>

#include "csrc/transport/stream.h"
#include "csrc/transport/url.h"

namespace byteps_like {

struct ChaosOptions {
  uint64_t seed = 1;
  double delay_ms = 0;
  double rate = 0;
  double drop = 0;
  double corrupt = 0;
  double stall = 0;
  double stall_ms = 0;
};

// kInvalid names an unknown option or a value out of range.
Result<ChaosOptions> ParseChaosOptions(const Url& url);

Result<std::unique_ptr<Stream>> WrapInChaos(std::unique_ptr<Stream> inner, const ChaosOptions& options,
                                            const std::string& url);

// Wraps the streams that the listener accepts.
std::unique_ptr<Listener> WrapListenerInChaos(std::unique_ptr<Listener> inner, const ChaosOptions& options,
                                              const std::string& query);

}  // namespace byteps_like
