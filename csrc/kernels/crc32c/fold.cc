// Compiled with -mavx2 -msse4.2 -mpclmul -mvpclmulqdq; runs only where the CPU has them. Multiplication and the crc32
// instruction have units of their own in the CPU, so the two run side by side: a little more than half of a block is
// folded by multiplication, and the rest goes through the instruction, in three lanes as in x86.cc.
#if defined(__AVX2__) && defined(__SSE4_2__) && defined(__PCLMUL__) && defined(__VPCLMULQDQ__)
#include "csrc/kernels/crc32c/x86.h"

namespace byteps_like::kernels {
namespace {

constexpr size_t kFolds = 4;                   // registers, each of which has two folds of 16 bytes
constexpr size_t kFoldedAtOnce = 32 * kFolds;  // bytes of each step,
constexpr size_t kWords = 4;                   // and words of each lane

// Moves each 16 bytes, a polynomial, on by kBits, unreduced: times x^kBits. The powers in a low half are higher by 64
// than those in a high one. Each product, as it lies in the register, is x^33 more than that of its factors.
template <size_t kBits>
inline __m256i Fold(__m256i bytes) {
  constexpr uint32_t kLow = PowerOfX(kBits + 64 - 33), kHigh = PowerOfX(kBits - 33);
  const __m256i by = _mm256_set_epi64x(kHigh, kLow, kHigh, kLow);
  return _mm256_xor_si256(_mm256_clmulepi64_epi128(bytes, by, 0x00), _mm256_clmulepi64_epi128(bytes, by, 0x11));
}

inline __m256i Load256(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// The checksum of what was folded into the registers.
inline uint32_t ChecksumOf(const __m256i (&folds)[kFolds]) {
  __m256i all = folds[0];
  for (size_t i = 1; i < kFolds; ++i) all = _mm256_xor_si256(Fold<256>(all), folds[i]);
  const __m128i high = _mm256_extracti128_si256(all, 1);
  const __m128i sum = _mm_xor_si128(_mm256_castsi256_si128(Fold<128>(all)), high);
  const uint64_t first = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(sum)));
  return static_cast<uint32_t>(_mm_crc32_u64(first, static_cast<uint64_t>(_mm_extract_epi64(sum, 1))));
}

template <size_t kLane>
inline void Step(uint64_t (&lanes)[3], const uint8_t* at) {
  for (size_t i = 0; i < 8 * kWords; i += 8)
    for (size_t lane = 0; lane < 3; ++lane) lanes[lane] = _mm_crc32_u64(lanes[lane], Load64(at + lane * kLane + i));
}

// Of kSteps steps: what is folded, then the lanes.
template <size_t kSteps>
inline uint32_t Block(uint32_t crc, const uint8_t* at) {
  constexpr size_t kFolded = kSteps * kFoldedAtOnce, kLane = kSteps * 8 * kWords;
  __m256i folds[kFolds];
  for (size_t i = 0; i < kFolds; ++i) folds[i] = Load256(at + 32 * i);
  folds[0] = _mm256_xor_si256(folds[0], _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, static_cast<int>(crc)));
  uint64_t lanes[3] = {0, 0, 0};
  Step<kLane>(lanes, at + kFolded);
  for (size_t step = 1; step < kSteps; ++step) {
    const uint8_t* const next = at + step * kFoldedAtOnce;
    for (size_t i = 0; i < kFolds; ++i)
      folds[i] = _mm256_xor_si256(Fold<8 * kFoldedAtOnce>(folds[i]), Load256(next + 32 * i));
    Step<kLane>(lanes, at + kFolded + step * 8 * kWords);
  }
  constexpr uint32_t kThreeOn = PowerOfX(8 * 3 * kLane - 33), kTwoOn = PowerOfX(8 * 2 * kLane - 33);
  constexpr uint32_t kOneOn = PowerOfX(8 * kLane - 33);
  const uint64_t joined = Multiply(ChecksumOf(folds), kThreeOn) ^ Multiply(static_cast<uint32_t>(lanes[0]), kTwoOn) ^
                          Multiply(static_cast<uint32_t>(lanes[1]), kOneOn);
  return static_cast<uint32_t>(_mm_crc32_u64(0, joined) ^ lanes[2]);
}

template <size_t kSteps>
inline void Blocks(uint32_t& crc, const uint8_t*& at, size_t& bytes) {
  constexpr size_t kBytes = kSteps * (kFoldedAtOnce + 3 * 8 * kWords);
  for (; bytes >= kBytes; bytes -= kBytes, at += kBytes) crc = Block<kSteps>(crc, at);
}

}  // namespace

uint32_t Crc32cFold(uint32_t seed, const void* data, size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  uint32_t crc = ~seed;
  Blocks<64>(crc, at, bytes);
  Blocks<8>(crc, at, bytes);
  return Crc32cX86(~crc, at, bytes);
}

}  // namespace byteps_like::kernels
#endif
