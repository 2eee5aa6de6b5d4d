#include "compression/loops/sparse.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace byteps_like {
namespace BYTEPS_LIKE_ISA {
namespace {

constexpr uint32_t kMagnitude = kMagnitudeMask;
constexpr size_t kLanes = 16;

uint32_t MagnitudeOf(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits & kMagnitude;
}

uint32_t LowBits(uint32_t count) { return count >= 32 ? ~0u : (1u << count) - 1; }

// The mask of 32 elements.
#if defined(__AVX512F__)
uint32_t NonzeroWord(const float* x) {
  const __m512i magnitude = _mm512_set1_epi32(static_cast<int>(kMagnitude));
  const uint32_t low = _mm512_test_epi32_mask(_mm512_loadu_si512(x), magnitude);
  const uint32_t high = _mm512_test_epi32_mask(_mm512_loadu_si512(x + 16), magnitude);
  return low | high << 16;
}
#elif defined(__AVX2__)
uint32_t NonzeroWord(const float* x) {
  uint32_t word = 0;
  for (int part = 0; part < 4; ++part) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 8 * part));
    const __m256i zero = _mm256_cmpeq_epi32(_mm256_slli_epi32(bits, 1), _mm256_setzero_si256());
    word |= static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(zero))) << 8 * part;
  }
  return ~word;
}
#else
uint32_t NonzeroWord(const float* x) {
  uint32_t word = 0;
  for (uint32_t bit = 0; bit < 32; ++bit) word |= static_cast<uint32_t>(MagnitudeOf(x[bit]) != 0) << bit;
  return word;
}
#endif

// Where nothing is written beside them, reads wait for memory. What helps depends on the core. Zen 4 (AVX-512) reads
// fastest in one stream that is fetched a page ahead, into the second cache. Zen 3 (AVX2) loses a fifth by that, and
// has most lines under way when it reads in four streams.
#if defined(__AVX512F__)
constexpr size_t kStreams = 1;
#else
constexpr size_t kStreams = 4;
#endif

inline __attribute__((always_inline)) void FetchLineAhead(const float* x) {
  constexpr size_t kAhead = 1024;
  constexpr int kRead = 0, kSecondCache = 2;
  if (kStreams == 1) __builtin_prefetch(x + kAhead, kRead, kSecondCache);
}

void Nonzero(const float* __restrict x, size_t count, uint32_t* __restrict words) {
  const size_t whole = count / 32, apart = whole / kStreams;
  for (size_t first = 0; first < apart; ++first) {
    for (size_t word = first; word < kStreams * apart; word += apart) {
      FetchLineAhead(x + 32 * word);
      FetchLineAhead(x + 32 * word + kLanes);
      words[word] = NonzeroWord(x + 32 * word);
    }
  }
  for (size_t word = kStreams * apart; word < whole; ++word) words[word] = NonzeroWord(x + 32 * word);
  if (count % 32 == 0) return;
  uint32_t word = 0;
  for (size_t i = 32 * whole; i < count; ++i) word |= static_cast<uint32_t>(MagnitudeOf(x[i]) != 0) << (i % 32);
  words[whole] = word;
}

using Words16 = uint32_t __attribute__((vector_size(64)));
using Floats8 = float __attribute__((vector_size(32)));
using Doubles8 = double __attribute__((vector_size(64)));

template <typename Vector, typename Element>
Vector Load(const Element* x) {
  Vector vector;
  __builtin_memcpy(&vector, x, sizeof(vector));
  return vector;
}

// As wide as a register: GCC keeps wider ones in memory.
#if defined(__AVX512F__)
using Native = Words16;
#elif defined(__AVX2__)
using Native = uint32_t __attribute__((vector_size(32)));
#else
using Native = uint32_t __attribute__((vector_size(16)));
#endif
constexpr size_t kNative = sizeof(Native) / sizeof(uint32_t);

// A line of 16 elements or'ed to one, by halves: lane by lane GCC takes forty instructions.
uint32_t Joined(const Native* line) {
  using Words4 = uint32_t __attribute__((vector_size(16)));
  Words4 quarters[4];
  __builtin_memcpy(quarters, line, sizeof(quarters));
  const Words4 lanes = (quarters[0] | quarters[1]) | (quarters[2] | quarters[3]);
  return (lanes[0] | lanes[1]) | (lanes[2] | lanes[3]);
}

bool Any(const float* x, size_t count) {
  Native some[kLanes / kNative] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    FetchLineAhead(x + i);
    for (size_t part = 0; part < kLanes / kNative; ++part) some[part] |= Load<Native>(x + i + part * kNative);
  }
  uint32_t bits = Joined(some);
  for (; i < count; ++i) bits |= MagnitudeOf(x[i]);
  return (bits & kMagnitude) != 0;
}

constexpr size_t kWord = 32;  // blocks

uint32_t NonzeroBlocksOfWord(const float* x, size_t count, size_t block) {
  uint32_t word = 0;
  for (uint32_t bit = 0; count != 0; ++bit) {
    const size_t length = count < block ? count : block;
    word |= static_cast<uint32_t>(Any(x, length)) << bit;
    x += length;
    count -= length;
  }
  return word;
}

// kStreams words of whole blocks, which are whole lines.
void NonzeroBlocksAside(const float* x, size_t block, uint32_t* words) {
  const size_t apart = kWord * block;
  for (size_t stream = 0; stream < kStreams; ++stream) words[stream] = 0;
  for (uint32_t bit = 0; bit < kWord; ++bit) {
    Native some[kStreams][kLanes / kNative] = {};
    for (const float* const end = x + block; x != end; x += kLanes) {
      for (size_t stream = 0; stream < kStreams; ++stream) {
        const float* const line = x + stream * apart;
        for (size_t part = 0; part < kLanes / kNative; ++part)
          some[stream][part] |= Load<Native>(line + part * kNative);
      }
    }
    for (size_t stream = 0; stream < kStreams; ++stream) {
      words[stream] |= static_cast<uint32_t>((Joined(some[stream]) & kMagnitude) != 0) << bit;
    }
  }
}

void NonzeroBlocks(const float* x, size_t count, size_t block, uint32_t* words) {
  const size_t whole = kWord * block;
  if (kStreams > 1 && block % kLanes == 0) {
    for (; count >= kStreams * whole; count -= kStreams * whole, x += kStreams * whole, words += kStreams) {
      NonzeroBlocksAside(x, block, words);
    }
  }
  for (; count > whole; count -= whole, x += whole) *words++ = NonzeroBlocksOfWord(x, whole, block);
  if (count != 0) *words = NonzeroBlocksOfWord(x, count, block);
}

uint32_t Largest(const float* x, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t one = MagnitudeOf(x[i]);
    largest = one > largest ? one : largest;
  }
  return largest;
}

// Without a branch that depends on the elements: writes go one past what is kept, never past `count`.
template <bool kValues>
size_t AtLeastFrom(const float* x, size_t begin, size_t count, uint32_t least, uint32_t* indices, uint32_t* values,
                   size_t found) {
  for (size_t i = begin; i < count; ++i) {
    indices[found] = static_cast<uint32_t>(i);
    if (kValues) __builtin_memcpy(values + found, x + i, sizeof(float));
    found += MagnitudeOf(x[i]) >= least;
  }
  return found;
}

#if defined(__AVX512F__)
template <bool kValues>
size_t AtLeastInto(const float* x, size_t count, uint32_t least, uint32_t* indices, uint32_t* values) {
  const __m512i magnitude = _mm512_set1_epi32(static_cast<int>(kMagnitude));
  const __m512i bound = _mm512_set1_epi32(static_cast<int>(least));
  const __m512i step = _mm512_set1_epi32(16);
  __m512i index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  size_t found = 0, i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m512i bits = _mm512_loadu_si512(x + i);
    const __mmask16 chosen = _mm512_cmpge_epu32_mask(_mm512_and_si512(bits, magnitude), bound);
    const auto number = static_cast<uint32_t>(__builtin_popcount(chosen));
    const auto room = static_cast<__mmask16>(LowBits(number));
    _mm512_mask_storeu_epi32(indices + found, room, _mm512_maskz_compress_epi32(chosen, index));
    if (kValues) _mm512_mask_storeu_epi32(values + found, room, _mm512_maskz_compress_epi32(chosen, bits));
    found += number;
    index = _mm512_add_epi32(index, step);
  }
  return AtLeastFrom<kValues>(x, i, count, least, indices, values, found);
}
#elif defined(__AVX2__)
template <bool kValues>
size_t AtLeastInto(const float* x, size_t count, uint32_t least, uint32_t* indices, uint32_t* values) {
  const __m256i magnitude = _mm256_set1_epi32(static_cast<int>(kMagnitude));
  const __m256i below = _mm256_set1_epi32(static_cast<int>(least) - 1);  // magnitudes are positive as signed numbers
  size_t found = 0, i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    const __m256i chosen = _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude), below);
    auto left = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(chosen)));
    for (; left != 0; left &= left - 1) {
      const size_t at = i + static_cast<uint32_t>(__builtin_ctz(left));
      indices[found] = static_cast<uint32_t>(at);
      if (kValues) __builtin_memcpy(values + found, x + at, sizeof(float));
      ++found;
    }
  }
  return AtLeastFrom<kValues>(x, i, count, least, indices, values, found);
}
#else
template <bool kValues>
size_t AtLeastInto(const float* x, size_t count, uint32_t least, uint32_t* indices, uint32_t* values) {
  return AtLeastFrom<kValues>(x, 0, count, least, indices, values, 0);
}
#endif

size_t AtLeast(const float* x, size_t count, uint32_t least, uint32_t* indices, uint32_t* values) {
  return (values == nullptr ? AtLeastInto<false> : AtLeastInto<true>)(x, count, least, indices, values);
}

size_t PickWord(const float* x, uint32_t word, float* values) {
  size_t found = 0;
  for (; word != 0; word &= word - 1) values[found++] = x[__builtin_ctz(word)];
  return found;
}

#if defined(__AVX512F__)
size_t PickWhole(const float* x, uint32_t word, float* values) {
  size_t found = 0;
  for (int half = 0; half < 2; ++half, x += 16, word >>= 16) {
    const auto chosen = static_cast<__mmask16>(word);
    const auto number = static_cast<uint32_t>(__builtin_popcount(chosen));
    const __m512 picked = _mm512_maskz_compress_ps(chosen, _mm512_loadu_ps(x));
    _mm512_mask_storeu_ps(values + found, static_cast<__mmask16>(LowBits(number)), picked);
    found += number;
  }
  return found;
}
#else
size_t PickWhole(const float* x, uint32_t word, float* values) { return PickWord(x, word, values); }
#endif

size_t Pick(const float* x, const uint32_t* words, size_t count, float* values) {
  size_t found = 0;
  for (size_t i = 0; i < count; i += 32) {
    const uint32_t word = words[i / 32];
    if (word == 0) continue;
    found += i + 32 <= count ? PickWhole(x + i, word, values + found)
                             : PickWord(x + i, word & LowBits(count - i), values + found);
  }
  return found;
}

size_t SpreadWord(uint32_t word, size_t count, const float* values, float factor, float* out) {
  size_t taken = 0;
  for (size_t i = 0; i < count; ++i) out[i] = 0.0f;
  for (; word != 0; word &= word - 1) out[__builtin_ctz(word)] = 0.0f + factor * values[taken++];
  return taken;
}

#if defined(__AVX512F__)
size_t SpreadWhole(uint32_t word, const float* values, float factor, float* out) {
  size_t taken = 0;
  for (int half = 0; half < 2; ++half, out += 16, word >>= 16) {
    const auto chosen = static_cast<__mmask16>(word);
    const auto number = static_cast<uint32_t>(__builtin_popcount(chosen));
    const __m512 next = _mm512_maskz_loadu_ps(static_cast<__mmask16>(LowBits(number)), values + taken);
    const __m512 scaled = _mm512_mul_ps(_mm512_maskz_expand_ps(chosen, next), _mm512_set1_ps(factor));
    _mm512_storeu_ps(out, _mm512_maskz_add_ps(chosen, _mm512_setzero_ps(), scaled));
    taken += number;
  }
  return taken;
}
#else
size_t SpreadWhole(uint32_t word, const float* values, float factor, float* out) {
  return SpreadWord(word, 32, values, factor, out);
}
#endif

size_t Spread(const uint32_t* words, size_t count, const float* values, float factor, float* out) {
  size_t taken = 0;
  for (size_t i = 0; i < count; i += 32) {
    const uint32_t word = words[i / 32];
    taken += i + 32 <= count ? SpreadWhole(word, values + taken, factor, out + i)
                             : SpreadWord(word & LowBits(count - i), count - i, values + taken, factor, out + i);
  }
  return taken;
}

template <bool kAdd>
void ScaledInto(const float* __restrict values, size_t count, float factor, float* __restrict out) {
  for (size_t i = 0; i < count; ++i) out[i] = (kAdd ? out[i] : 0.0f) + factor * values[i];
}

void Scaled(const float* values, size_t count, float factor, bool add, float* out) {
  (add ? ScaledInto<true> : ScaledInto<false>)(values, count, factor, out);
}

void Squares(const float* x, size_t count, double* lanes) {
  Doubles8 low = Load<Doubles8>(lanes), high = Load<Doubles8>(lanes + 8);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Doubles8 a = __builtin_convertvector(Load<Floats8>(x + i), Doubles8);
    const Doubles8 b = __builtin_convertvector(Load<Floats8>(x + i + 8), Doubles8);
    low += a * a;
    high += b * b;
  }
  __builtin_memcpy(lanes, &low, sizeof(low));
  __builtin_memcpy(lanes + 8, &high, sizeof(high));
  for (; i < count; ++i) lanes[i % kLanes] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
}

}  // namespace

extern const SparseLoops kSparse;
const SparseLoops kSparse = {Nonzero, NonzeroBlocks, Largest, AtLeast, Pick, Spread, Scaled, Squares};

}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like
