// Compiled with -mavx2 -maes -mpclmul -mvaes -mvpclmulqdq; runs only where the CPU has them. The hash's arithmetic is
// that of S. Gueron and M. Kounavis, "Intel Carry-Less Multiplication Instruction and its Usage for Computing the GCM
// Mode" (2014), on bytes in reverse, with the key divided by x, which makes up for the reversed bits; a product of 256
// bits is reduced by two multiplications with the polynomial's upper half, as in S. Gueron, "AES-GCM for Efficient
// Authenticated Encryption" (RWC 2013).
#if defined(__AVX2__) && defined(__AES__) && defined(__PCLMUL__) && defined(__VAES__) && defined(__VPCLMULQDQ__)
#include <immintrin.h>
#include <string.h>

#include "csrc/kernels/gcm/gcm.h"

namespace byteps_like::kernels {
namespace {

constexpr size_t kRounds = 10;
constexpr size_t kLanes = 8;  // registers of two blocks each, in flight at once
constexpr size_t kStride = kLanes * 2 * kGcmBlock;
static_assert(kStride == kGcmAtOnce * kGcmBlock);

inline __m128i Load(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
inline __m256i LoadTwo(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void Store(void* to, __m128i block) { _mm_storeu_si128(static_cast<__m128i*>(to), block); }
inline void StoreTwo(void* to, __m256i blocks) { _mm256_storeu_si256(static_cast<__m256i*>(to), blocks); }
inline __m256i Twice(__m128i block) { return _mm256_broadcastsi128_si256(block); }

// Counters ------------------------------------------------------------------------------------------------------------

// A block of nonce and counter, whose counter is still in the order of this machine's bytes.
inline __m128i Counter(const uint8_t (&nonce)[12], uint32_t count) {
  uint8_t block[kGcmBlock];
  memcpy(block, nonce, sizeof(nonce));
  memcpy(block + sizeof(nonce), &count, sizeof(count));
  return Load(block);
}
inline __m128i BigEndian() { return _mm_set_epi8(12, 13, 14, 15, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }

inline __m128i Encrypt(const GcmKey& key, __m128i block) {
  block = _mm_xor_si128(block, Load(key.rounds[0]));
  for (size_t round = 1; round < kRounds; ++round) block = _mm_aesenc_si128(block, Load(key.rounds[round]));
  return _mm_aesenclast_si128(block, Load(key.rounds[kRounds]));
}

inline __m128i Mask(const GcmKey& key, const uint8_t (&nonce)[12], uint32_t count) {
  return Encrypt(key, _mm_shuffle_epi8(Counter(nonce, count), BigEndian()));
}

// kStride bytes.
inline void XorStride(const GcmKey& key, __m256i counter, const uint8_t* in, uint8_t* out) {
  const __m256i two = _mm256_set_epi32(2, 0, 0, 0, 2, 0, 0, 0);
  const __m256i order = Twice(BigEndian());
  __m256i lanes[kLanes];
  const __m256i first = Twice(Load(key.rounds[0]));
  for (__m256i& lane : lanes) {
    lane = _mm256_xor_si256(_mm256_shuffle_epi8(counter, order), first);
    counter = _mm256_add_epi32(counter, two);
  }
  for (size_t round = 1; round < kRounds; ++round) {
    const __m256i with = Twice(Load(key.rounds[round]));
    for (__m256i& lane : lanes) lane = _mm256_aesenc_epi128(lane, with);
  }
  const __m256i last = Twice(Load(key.rounds[kRounds]));
  for (size_t i = 0; i < kLanes; ++i) {
    const __m256i mask = _mm256_aesenclast_epi128(lanes[i], last);
    StoreTwo(out + 32 * i, _mm256_xor_si256(LoadTwo(in + 32 * i), mask));
  }
}

// The hash ------------------------------------------------------------------------------------------------------------

inline __m128i Reversed(__m128i block) {
  return _mm_shuffle_epi8(block, _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}
inline __m256i Reversed(__m256i blocks) {
  return _mm256_shuffle_epi8(blocks, Twice(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
}

struct Product {  // of 256 bits: parts whose middle one overlaps half of both others
  __m128i low, middle, high;
};

inline Product Multiply(__m128i a, __m128i b) {
  return {_mm_clmulepi64_si128(a, b, 0x00),
          _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x01), _mm_clmulepi64_si128(a, b, 0x10)),
          _mm_clmulepi64_si128(a, b, 0x11)};
}

inline __m128i Reduce(const Product& product) {
  const __m128i polynomial = _mm_set_epi64x(static_cast<long long>(0xc200000000000000u), 1);
  const auto fold = [&](__m128i from, __m128i into) {
    const __m128i by = _mm_clmulepi64_si128(polynomial, from, 0x01);
    return _mm_xor_si128(into, _mm_xor_si128(by, _mm_shuffle_epi32(from, 0x4e)));
  };
  return fold(fold(product.low, product.middle), product.high);
}

inline void Add(Product& sum, const Product& more) {
  sum = {_mm_xor_si128(sum.low, more.low), _mm_xor_si128(sum.middle, more.middle), _mm_xor_si128(sum.high, more.high)};
}

inline __m128i Sum(__m256i two) { return _mm_xor_si128(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1)); }

// kStride bytes, all at one reduction: the first block by the highest power of the key.
inline __m128i HashStride(const GcmKey& key, __m128i hash, const uint8_t* at) {
  __m256i low{}, middle{}, high{};
  for (size_t i = 0; i < kLanes; ++i) {
    __m256i blocks = Reversed(LoadTwo(at + 32 * i));
    if (i == 0) blocks = _mm256_xor_si256(blocks, _mm256_zextsi128_si256(hash));
    const __m256i by = LoadTwo(key.powers[2 * i]);
    low = _mm256_xor_si256(low, _mm256_clmulepi64_epi128(blocks, by, 0x00));
    middle = _mm256_xor_si256(middle, _mm256_clmulepi64_epi128(blocks, by, 0x01));
    middle = _mm256_xor_si256(middle, _mm256_clmulepi64_epi128(blocks, by, 0x10));
    high = _mm256_xor_si256(high, _mm256_clmulepi64_epi128(blocks, by, 0x11));
  }
  return Reduce({Sum(low), Sum(middle), Sum(high)});
}

// Up to kGcmAtOnce blocks, the last of which may be short.
inline __m128i HashRest(const GcmKey& key, __m128i hash, const uint8_t* at, size_t bytes) {
  if (bytes == 0) return hash;
  const size_t blocks = (bytes + kGcmBlock - 1) / kGcmBlock;
  Product sum{};
  for (size_t i = 0; i < blocks; ++i, at += kGcmBlock, bytes -= kGcmBlock) {
    uint8_t padded[kGcmBlock] = {};
    const bool whole = bytes >= kGcmBlock;
    if (!whole) memcpy(padded, at, bytes);
    const __m128i block = Reversed(Load(whole ? at : padded));
    Add(sum, Multiply(i == 0 ? _mm_xor_si128(block, hash) : block, Load(key.powers[kGcmAtOnce - blocks + i])));
    if (!whole) break;
  }
  return Reduce(sum);
}

// Hashing is behind encryption by a stride, and beside decryption: neither waits for the other, so the CPU does both at
// once.
template <bool kSeals>
inline void Crypt(const GcmKey& key, GcmWork& work, const uint8_t* message, uint8_t* to, const uint8_t* from,
                  size_t bytes) {
  const size_t end = work.done + bytes;
  auto count = static_cast<uint32_t>(work.done / kGcmBlock + 2);  // the first one masks the tag
  const auto part = [&](size_t begin, size_t length) {
    uint8_t mask[kGcmBlock];
    Store(mask, Mask(key, work.nonce, count++));
    for (size_t i = 0; i < length; ++i) to[i] = from[i] ^ mask[begin + i];
    from += length, to += length, bytes -= length;
  };
  if (const size_t begin = work.done % kGcmBlock; begin > 0 && bytes > 0) {
    part(begin, bytes < kGcmBlock - begin ? bytes : kGcmBlock - begin);
  }
  __m128i hash = Load(work.hash);
  for (; bytes >= kStride; bytes -= kStride, from += kStride, to += kStride, count += kGcmAtOnce) {
    if ((kSeals ? end - bytes : end) - work.hashed >= kStride) {
      hash = HashStride(key, hash, message + work.hashed);
      work.hashed += kStride;
    }
    const __m256i counter = _mm256_set_m128i(Counter(work.nonce, count + 1), Counter(work.nonce, count));
    XorStride(key, counter, from, to);
  }
  Store(work.hash, hash);
  for (; bytes >= kGcmBlock; bytes -= kGcmBlock, from += kGcmBlock, to += kGcmBlock) {
    Store(to, _mm_xor_si128(Load(from), Mask(key, work.nonce, count++)));
  }
  if (bytes > 0) part(0, bytes);
  work.done = end;
}

template <int kConstant>
inline __m128i NextRound(__m128i key) {
  const __m128i word = _mm_shuffle_epi32(_mm_aeskeygenassist_si128(key, kConstant), 0xff);
  key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
  key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
  return _mm_xor_si128(key, word);
}

}  // namespace

void GcmExpand(const uint8_t (&key)[kGcmBlock], GcmKey& expanded) {
  __m128i rounds[kRounds + 1];
  rounds[0] = Load(key);
  rounds[1] = NextRound<0x01>(rounds[0]);
  rounds[2] = NextRound<0x02>(rounds[1]);
  rounds[3] = NextRound<0x04>(rounds[2]);
  rounds[4] = NextRound<0x08>(rounds[3]);
  rounds[5] = NextRound<0x10>(rounds[4]);
  rounds[6] = NextRound<0x20>(rounds[5]);
  rounds[7] = NextRound<0x40>(rounds[6]);
  rounds[8] = NextRound<0x80>(rounds[7]);
  rounds[9] = NextRound<0x1b>(rounds[8]);
  rounds[10] = NextRound<0x36>(rounds[9]);
  for (size_t round = 0; round <= kRounds; ++round) Store(expanded.rounds[round], rounds[round]);

  __m128i power = Reversed(Encrypt(expanded, _mm_setzero_si128()));
  const __m128i carry = _mm_srai_epi32(_mm_shuffle_epi32(power, 0xd3), 31);
  const __m128i polynomial = _mm_set_epi64x(static_cast<long long>(0xc200000000000001u), 1);
  power = _mm_xor_si128(_mm_add_epi64(power, power), _mm_and_si128(carry, polynomial));
  const __m128i first = power;
  for (size_t i = kGcmAtOnce; i-- > 0; power = Reduce(Multiply(power, first))) Store(expanded.powers[i], power);
}

void GcmBegin(const GcmKey& key, GcmWork& work, const void* additional, size_t bytes) {
  work.done = work.hashed = 0;
  Store(work.hash, HashRest(key, _mm_setzero_si128(), static_cast<const uint8_t*>(additional), bytes));
}

void GcmSeal(const GcmKey& key, GcmWork& work, uint8_t* message, const void* plain, size_t bytes) {
  Crypt<true>(key, work, message, message + work.done, static_cast<const uint8_t*>(plain), bytes);
}

void GcmOpen(const GcmKey& key, GcmWork& work, const uint8_t* message, void* plain, size_t bytes) {
  Crypt<false>(key, work, message, static_cast<uint8_t*>(plain), message + work.done, bytes);
}

void GcmEnd(const GcmKey& key, GcmWork& work, const uint8_t* message, size_t additional, uint8_t (&tag)[kGcmBlock]) {
  __m128i hash = Load(work.hash);
  for (; work.done - work.hashed >= kStride; work.hashed += kStride) {
    hash = HashStride(key, hash, message + work.hashed);
  }
  hash = HashRest(key, hash, message + work.hashed, work.done - work.hashed);
  const __m128i lengths = _mm_set_epi64x(static_cast<long long>(8 * additional), static_cast<long long>(8 * work.done));
  hash = Reduce(Multiply(_mm_xor_si128(hash, lengths), Load(key.powers[kGcmAtOnce - 1])));
  Store(tag, _mm_xor_si128(Reversed(hash), Mask(key, work.nonce, 1)));
}

}  // namespace byteps_like::kernels
#endif
