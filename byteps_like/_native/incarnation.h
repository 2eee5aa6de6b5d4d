// How an incarnation crosses the binding: as 16 bytes.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>

#include "csrc/transport/entrance/handshake.h"

namespace byteps_like {

// Raises ValueError for any other number of bytes.
inline Incarnation IncarnationOf(const nanobind::bytes& bytes) {
  Incarnation incarnation;
  if (bytes.size() != incarnation.size()) throw nanobind::value_error("an incarnation has 16 bytes");
  std::copy_n(static_cast<const std::byte*>(bytes.data()), incarnation.size(), incarnation.begin());
  return incarnation;
}

}  // namespace byteps_like
