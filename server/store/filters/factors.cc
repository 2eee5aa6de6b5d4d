// A part of a matrix as the product of two factors, which servers form. After Chilimbi et al., "Project Adam", OSDI
// 2014, section 3.2.
//
// The rows of such a key are rows of the matrix, M of N columns. A payload: K (8 bytes, little-endian), then K rows of
// M and K rows of N elements; the matrix is the sum of their K outer products, added from the first to the last. With K
// = 0 the matrix itself, where that is less. Twin of byteps_like/store/filters/factors.py, to the last bit.
#include <algorithm>
#include <cstring>
#include <string>

#include "csrc/wire/bytes.h"
#include "server/store/filters/filters.h"
#include "server/update/loop.h"

namespace byteps_like {
namespace {

constexpr size_t kCount = sizeof(uint64_t);
constexpr int64_t kMostColumns = int64_t{1} << 32;

// row[i] += left[0] * right[i], then the same of three more, `stride` elements further in `left` and `next` in `right`.
template <typename T>
BYTEPS_LIKE_STEP void AddFour(T* __restrict row, const T* left, size_t stride, const T* __restrict right, size_t next,
                              size_t count) {
  const T first = left[0], second = left[stride], third = left[2 * stride], fourth = left[3 * stride];
  for (size_t i = 0; i < count; ++i) {
    T sum = row[i] + first * right[i];
    sum = sum + second * right[next + i];
    sum = sum + third * right[2 * next + i];
    row[i] = sum + fourth * right[3 * next + i];
  }
}

template <typename T>
BYTEPS_LIKE_STEP void AddOne(T* __restrict row, T left, const T* __restrict right, size_t count) {
  for (size_t i = 0; i < count; ++i) row[i] = row[i] + left * right[i];
}

// out (rows x columns) = the transpose of `left` (products x rows) times `right` (products x columns).
template <typename T>
void Multiply(const T* left, const T* right, size_t products, size_t rows, size_t columns, T* out) {
  constexpr size_t kStretch = 512;  // of columns, so that those of `right` stay in a cache
  InBestSet([=]() __attribute__((always_inline)) {
    for (size_t begin = 0; begin < columns; begin += kStretch) {
      const size_t count = std::min(kStretch, columns - begin);
      for (size_t row = 0; row < rows; ++row) {
        T* const place = out + row * columns + begin;
        std::fill_n(place, count, T{0});
        size_t k = 0;
        for (; k + 4 <= products; k += 4)
          AddFour(place, left + k * rows + row, rows, right + k * columns + begin, columns, count);
        for (; k < products; ++k) AddOne(place, left[k * rows + row], right + k * columns + begin, count);
      }
    }
  });
}

class Factors final : public PayloadFilter {
 public:
  explicit Factors(CodecSpec& spec) : columns_(static_cast<size_t>(spec.Integer("columns", 1, kMostColumns))) {}

  Status Check(DType dtype) const override {
    if (dtype == DType::kFloat32 || dtype == DType::kFloat64) return {};
    return Status(Code::kInvalid, std::string("factors are of float32 and float64, not ") + NameOf(dtype));
  }
  bool TakesRows() const override { return true; }
  bool OfValues() const override { return false; }  // which are no products
  size_t Most(DType, size_t bytes) const override { return kCount + bytes; }

  // Who has no factors.
  Result<size_t> Encode(DType, const Draw&, std::span<const std::byte> in, std::span<std::byte> out) const override {
    PutLittle(out.data(), uint64_t{0});
    std::ranges::copy(in, out.data() + kCount);
    return kCount + in.size();
  }

  Result<size_t> Decode(DType dtype, std::span<const std::byte> in, std::span<std::byte> out) const override {
    const uint64_t products = in.size() < kCount ? 0 : GetLittle<uint64_t>(in.data());
    const size_t size = SizeOf(dtype), rows = out.size() / size / columns_;
    const size_t elements =
        products == 0 ? out.size() / size : (rows + columns_) * std::min<size_t>(products, in.size());
    if (rows * columns_ * size != out.size() || in.size() != kCount + elements * size)
      return Status(Code::kCorrupt, "a payload of factors has " + std::to_string(in.size()) + " bytes, which are not " +
                                        std::to_string(products) + " products of " + std::to_string(rows) + " and " +
                                        std::to_string(columns_) + " elements");
    const std::byte* const given = in.data() + kCount;
    if (products == 0) {
      std::memcpy(out.data(), given, out.size());
    } else if (dtype == DType::kFloat32) {
      Form<float>(given, products, rows, out);
    } else {
      Form<double>(given, products, rows, out);
    }
    return out.size();
  }

 private:
  // Buffers of a ShardMemory are aligned.
  template <typename T>
  void Form(const std::byte* given, size_t products, size_t rows, std::span<std::byte> out) const {
    const T* const left = reinterpret_cast<const T*>(given);
    Multiply(left, left + products * rows, products, rows, columns_, reinterpret_cast<T*>(out.data()));
  }

  const size_t columns_;
};

}  // namespace

Result<FilterPointer> MakeFactors(CodecSpec& spec) { return MadeFilter<Factors>(spec); }

}  // namespace byteps_like
