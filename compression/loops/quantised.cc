#include "compression/loops/quantised.h"

#include "compression/loops/bits.h"

namespace byteps_like {
namespace BYTEPS_LIKE_ISA {
namespace {

constexpr size_t kLanes = 16;

uint32_t Magnitude(const float* x, size_t count) {
  int32_t most = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<int32_t>(BitsOf(x[i]) & 0x7FFFFFFFu);
    most = magnitude > most ? magnitude : most;
  }
  return static_cast<uint32_t>(most);
}

void Squares(const float* x, size_t count, double* lanes) {
  double sums[kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] = lanes[lane];
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] += static_cast<double>(x[i + lane]) * static_cast<double>(x[i + lane]);
  for (; i < count; ++i) sums[i % kLanes] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = sums[lane];
}

BYTEPS_LIKE_LOOP uint32_t Within(int32_t level, int32_t most) {
  level = level < 0 ? 0 : level;
  return static_cast<uint32_t>(level > most ? most : level);
}

// From an element and its place to the number as it is stored.
struct Zero {
  uint32_t levels;
  BYTEPS_LIKE_LOOP uint32_t operator()(float, uint32_t) const { return levels; }
};

struct Nearest {
  float inverse;
  int32_t levels;
  BYTEPS_LIKE_LOOP uint32_t operator()(float x, uint32_t) const {
    // Adding 1.5 * 2^23 leaves the nearest whole number (ties to even) in the low bits.
    // No element is beyond the range, and none is rounded to more than `levels`.
    return BitsOf(x * inverse + 0x1.8p23f) - 0x4B400000u + static_cast<uint32_t>(levels);
  }
};

struct Stochastic {
  float inverse, offset;
  int32_t most;
  uint32_t low, high;
  BYTEPS_LIKE_LOOP uint32_t operator()(float x, uint32_t place) const {
    return Within(static_cast<int32_t>((x * inverse + offset) + UnitAt(low, high, place)), most);
  }
};

// Powers of two: the fraction of a float is how far it is between two of them, so adding 23 random bits to it carries
// into the exponent with that probability. Below the least power, as Stochastic.
struct Natural {
  float inverse, least;  // least = 2^(levels - 1): the least power is its inverse
  int32_t levels;
  uint32_t low, high;
  BYTEPS_LIKE_LOOP uint32_t operator()(float x, uint32_t place) const {
    const uint32_t word = WordAt(low, high, place);
    const uint32_t bits = BitsOf(x * inverse);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    const int32_t above = static_cast<int32_t>((magnitude + (word >> 9)) >> 23) - 127 + levels;
    // By mask: a choice would keep the compiler from computing both, and from making vectors.
    const int32_t is_below = (static_cast<int32_t>(magnitude >> 23) - 128 + levels) >> 31;
    const float low_part = FloatOf(magnitude & static_cast<uint32_t>(is_below));
    const auto below = static_cast<int32_t>(low_part * least + Unit(word));
    const int32_t level = (above & ~is_below) | (below & is_below);
    const int32_t held = level > levels ? levels : level;
    return static_cast<uint32_t>(levels + (bits >> 31 ? -held : held));
  }
};

template <uint32_t kBits, typename Level>
void PackWith(const float* __restrict x, Stretch stretch, const Level level, uint8_t* __restrict bytes) {
  constexpr uint32_t kPlanes = 8 / kBits, kGroup = 32 * kPlanes;
  const uint32_t whole = stretch.count / kGroup * kGroup;
  for (uint32_t begin = 0; begin < whole; begin += kGroup, bytes += 32) {
    FetchAhead(x + begin, kGroup);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      uint32_t byte = 0;
      for (uint32_t plane = 0; plane < kPlanes; ++plane) {
        const uint32_t i = begin + 32 * plane + lane;
        byte |= level(x[i], stretch.first + i) << (kBits * plane);
      }
      bytes[lane] = static_cast<uint8_t>(byte);
    }
  }
  for (uint32_t i = whole; i < stretch.count; ++i) {
    const uint32_t lane = (i - whole) % 32, plane = (i - whole) / 32;
    const uint32_t stored = level(x[i], stretch.first + i) << (kBits * plane);
    bytes[lane] = static_cast<uint8_t>(plane == 0 ? stored : bytes[lane] | stored);
  }
}

template <typename Level>
void PackBits(const float* x, Stretch stretch, uint32_t bits, const Level level, uint8_t* bytes) {
  if (bits == 8) return PackWith<8>(x, stretch, level, bytes);
  if (bits == 4) return PackWith<4>(x, stretch, level, bytes);
  PackWith<2>(x, stretch, level, bytes);
}

void Pack(const float* x, Stretch stretch, Grid grid, float inverse, uint32_t low, uint32_t high, uint8_t* bytes) {
  const auto levels = static_cast<int32_t>(grid.levels);
  switch (grid.rounding) {
    case Rounding::kZero:
      return PackBits(x, stretch, grid.bits, Zero{grid.levels}, bytes);
    case Rounding::kNearest:
      return PackBits(x, stretch, grid.bits, Nearest{inverse, levels}, bytes);
    case Rounding::kStochastic:
      return PackBits(x, stretch, grid.bits, Stochastic{inverse, static_cast<float>(levels), 2 * levels, low, high},
                      bytes);
    case Rounding::kNatural:
      return PackBits(x, stretch, grid.bits, Natural{inverse, FloatOf((126u + grid.levels) << 23), levels, low, high},
                      bytes);
  }
}

// From a stored number to what it stands for.
struct Whole {
  int32_t levels;
  BYTEPS_LIKE_LOOP float operator()(uint32_t stored) const {
    return static_cast<float>(static_cast<int32_t>(stored) - levels);
  }
};

struct PowerOfTwo {
  int32_t levels;
  BYTEPS_LIKE_LOOP float operator()(uint32_t stored) const {
    const int32_t level = static_cast<int32_t>(stored) - levels;
    const int32_t magnitude = level < 0 ? -level : level;
    const uint32_t power = magnitude == 0 ? 0 : static_cast<uint32_t>(magnitude + 127 - levels) << 23;
    return FloatOf(power | (static_cast<uint32_t>(level) & 0x80000000u));
  }
};

// to(i, stored number i) for all i.
template <uint32_t kBits, typename To>
BYTEPS_LIKE_LOOP void Each(const uint8_t* __restrict bytes, size_t count, const To to) {
  constexpr uint32_t kPlanes = 8 / kBits, kGroup = 32 * kPlanes, kMask = (1u << kBits) - 1;
  const size_t whole = count / kGroup * kGroup;
  for (size_t begin = 0; begin < whole; begin += kGroup, bytes += 32)
    for (uint32_t plane = 0; plane < kPlanes; ++plane)
      for (uint32_t lane = 0; lane < 32; ++lane)
        to(begin + 32 * plane + lane, (static_cast<uint32_t>(bytes[lane]) >> (kBits * plane)) & kMask);
  for (size_t i = whole; i < count; ++i)
    to(i, (static_cast<uint32_t>(bytes[(i - whole) % 32]) >> (kBits * ((i - whole) / 32))) & kMask);
}

template <uint32_t kBits, bool kAdd, typename Value>
void UnpackWith(const uint8_t* __restrict bytes, size_t count, const Value value, float step, float* __restrict sum) {
  Each<kBits>(bytes, count, [=](size_t i, uint32_t stored) __attribute__((always_inline)) {
    sum[i] = (kAdd ? sum[i] : 0.0f) + step * value(stored);
  });
}

template <bool kAdd, typename Value>
void UnpackBits(const uint8_t* bytes, size_t count, uint32_t bits, const Value value, float step, float* sum) {
  if (bits == 8) return UnpackWith<8, kAdd>(bytes, count, value, step, sum);
  if (bits == 4) return UnpackWith<4, kAdd>(bytes, count, value, step, sum);
  UnpackWith<2, kAdd>(bytes, count, value, step, sum);
}

void Unpack(const uint8_t* bytes, size_t count, Grid grid, float step, bool add, float* sum) {
  const auto levels = static_cast<int32_t>(grid.levels);
  if (grid.rounding == Rounding::kNatural)
    return (add ? UnpackBits<true, PowerOfTwo> : UnpackBits<false, PowerOfTwo>)(bytes, count, grid.bits, {levels}, step,
                                                                                sum);
  (add ? UnpackBits<true, Whole> : UnpackBits<false, Whole>)(bytes, count, grid.bits, {levels}, step, sum);
}

template <uint32_t kBits, typename T>
void AddWith(const uint8_t* __restrict bytes, size_t count, T* __restrict sums) {
  Each<kBits>(bytes, count, [=](size_t i, uint32_t stored) __attribute__((always_inline)) {
    sums[i] = static_cast<T>(sums[i] + static_cast<T>(stored));
  });
}

template <typename T>
void AddBits(const uint8_t* bytes, size_t count, uint32_t bits, void* sums) {
  auto* const to = static_cast<T*>(sums);
  if (bits == 8) return AddWith<8>(bytes, count, to);
  if (bits == 4) return AddWith<4>(bytes, count, to);
  AddWith<2>(bytes, count, to);
}

void Add(const uint8_t* bytes, size_t count, uint32_t bits, uint32_t width, void* sums) {
  if (width == 1) return AddBits<uint8_t>(bytes, count, bits, sums);
  if (width == 2) return AddBits<uint16_t>(bytes, count, bits, sums);
  AddBits<uint32_t>(bytes, count, bits, sums);
}

template <typename T>
void SpreadFrom(const void* from, size_t count, uint32_t offset, float step, float* __restrict out) {
  const auto* const sums = static_cast<const uint8_t*>(from);
  for (size_t i = 0; i < count; ++i) {
    T sum;
    __builtin_memcpy(&sum, sums + i * sizeof(T), sizeof(T));
    out[i] = step * static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(sum) - offset));
  }
}

void Spread(const void* sums, size_t count, uint32_t width, uint32_t offset, float step, float* out) {
  if (width == 1) return SpreadFrom<uint8_t>(sums, count, offset, step, out);
  if (width == 2) return SpreadFrom<uint16_t>(sums, count, offset, step, out);
  SpreadFrom<uint32_t>(sums, count, offset, step, out);
}

}  // namespace

extern const QuantisedLoops kQuantised;
const QuantisedLoops kQuantised = {Magnitude, Squares, Pack, Unpack, Add, Spread};

}  // namespace BYTEPS_LIKE_ISA
}  // namespace byteps_like
