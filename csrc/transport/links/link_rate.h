// What one link carries within this host, for `byteps-like doctor` and benchmarks.
#pragma once

#include <cstddef>
#include <string>

#include "csrc/base/status.h"

namespace byteps_like {

// Bytes of payload per second on a link from one thread to another, each on a core of its own if there are two: so many
// bytes in segments of the default size, after a sixteenth as much to warm up. Blocks; fails after a minute.
Result<double> MeasureLink(const std::string& url, size_t bytes);

}  // namespace byteps_like
