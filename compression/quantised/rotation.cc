#include "compression/quantised/rotation.h"

#include <bit>
#include <cstring>

#include "compression/loops.h"
#include "compression/loops/hadamard.h"

namespace byteps_like {

BYTEPS_LIKE_DECLARE_LOOPS(HadamardLoops, kHadamard)

double Energy(std::span<const float> x) {
  double lanes[16] = {};
  Pick_kHadamard().squares(x.data(), x.size(), lanes);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

float NormalisingFactor(float norm) {
  const auto exponent = static_cast<int>(std::bit_cast<uint32_t>(norm) >> 23 & 0xFF) - 127;
  const int wanted = std::clamp(-exponent, -126, 126);
  return std::bit_cast<float>(static_cast<uint32_t>(wanted + 127) << 23);
}

void Rotate(std::span<const float> x, const RotationBlock& at, const Stream64& stream, float factor, float* block) {
  const HadamardLoops& loops = Pick_kHadamard();
  const uint32_t words[] = {stream.low, stream.high};
  loops.flip(x.data() + at.begin, at.size, words, at.begin / kLeastRotation, factor, nullptr, block);
  std::memset(block + at.size, 0, (at.padded - at.size) * sizeof(float));
  loops.transform(block, at.padded);
}

void RotateBack(float* block, const RotationBlock& at, const Stream64& stream, float factor, const float* base,
                float* out) {
  const HadamardLoops& loops = Pick_kHadamard();
  const uint32_t words[] = {stream.low, stream.high};
  loops.transform(block, at.padded);
  loops.flip(block, at.size, words, at.begin / kLeastRotation, factor, base, out);
}

}  // namespace byteps_like
