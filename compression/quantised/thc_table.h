// Which of a grid of equally spaced points the codes of THC stand for.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "compression/loops/thc.h"
#include "csrc/base/status.h"

namespace byteps_like {

struct ThcPoints {
  int bits = 0;                         // of a code
  double limit = 0;                     // coordinates are cut off there, in units of the norm
  std::array<uint8_t, 16> points = {};  // strictly increasing, the first 0
  uint32_t granularity = 0;             // the last point: grid points less one

  // `name`: "auto" for the best one for `world` contributions, "uniform" for 0 to 2^bits - 1, or the points themselves
  // as in "0.4.7.11". kInvalid says why there is none.
  static Result<ThcPoints> Find(int bits, int clamp, const std::string& name, uint32_t world);

  bool wide(uint32_t world) const { return granularity * uint64_t{world} > UINT8_MAX; }  // sums of 16 bits

  // Ramps (compression/loops/thc.h) of coordinates that have been multiplied by `factor` and belong to a block of
  // `norm`; returns how many.
  size_t Ramps(float norm, float factor, ThcRamp* ramps) const;
};

}  // namespace byteps_like
