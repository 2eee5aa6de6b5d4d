#include "server/store/content/first_values.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "csrc/codec/random.h"

namespace byteps_like {
namespace {

constexpr uint32_t kPurpose = 0x524F5753;  // "ROWS"

Stream64 StreamOfRow(uint64_t seed, uint64_t id) { return StreamOf(seed, {.key = id}, kPurpose, true); }

// In steps of 2^-24.
double Unit(const Stream64& stream, uint32_t i) { return ToUnit(RandomWord(stream, i)); }

template <typename Value>
void Put(DType dtype, size_t width, std::byte* row, const Value& value) {
  for (size_t i = 0; i < width; ++i) {
    const double wide = value(static_cast<uint32_t>(i));
    if (dtype == DType::kFloat64) {
      std::memcpy(row + i * sizeof wide, &wide, sizeof wide);
    } else {
      const auto narrow = static_cast<float>(wide);
      std::memcpy(row + i * sizeof narrow, &narrow, sizeof narrow);
    }
  }
}

class Zeros final : public FirstValues {
 public:
  static std::unique_ptr<const FirstValues> Make(CodecSpec&) { return std::make_unique<Zeros>(); }
  bool Takes(DType) const override { return true; }
  void Make(uint64_t, DType dtype, size_t width, std::byte* row) const override {
    std::memset(row, 0, width * SizeOf(dtype));
  }
};

// In [-bound, bound).
class Uniform final : public FirstValues {
 public:
  static std::unique_ptr<const FirstValues> Make(CodecSpec& spec) {
    auto made = std::make_unique<Uniform>();
    made->bound_ = spec.Real("bound", 0, std::numeric_limits<float>::max());
    made->seed_ = spec.Seed();
    return made;
  }
  void Make(uint64_t id, DType dtype, size_t width, std::byte* row) const override {
    const Stream64 stream = StreamOfRow(seed_, id);
    Put(dtype, width, row, [&](uint32_t i) { return (2 * Unit(stream, i) - 1) * bound_; });
  }

 private:
  double bound_ = 0;
  uint64_t seed_ = 0;
};

// The sum of 12 uniform numbers, less 6: nothing but additions, which are the same on every machine. Beyond 3 standard
// deviations there is 0.22 % of it, in place of 0.27 %, and nothing beyond 6.
class Normal final : public FirstValues {
 public:
  static constexpr uint32_t kSummed = 12;

  static std::unique_ptr<const FirstValues> Make(CodecSpec& spec) {
    auto made = std::make_unique<Normal>();
    made->seed_ = spec.Seed();
    made->deviation_ = spec.Real("std", 0, std::numeric_limits<float>::max());
    return made;
  }
  void Make(uint64_t id, DType dtype, size_t width, std::byte* row) const override {
    const Stream64 stream = StreamOfRow(seed_, id);
    Put(dtype, width, row, [&](uint32_t i) {
      double sum = 0;
      for (uint32_t k = 0; k < kSummed; ++k) sum += Unit(stream, kSummed * i + k);
      return (sum - kSummed / 2.0) * deviation_;
    });
  }

 private:
  double deviation_ = 0;
  uint64_t seed_ = 0;
};

struct FirstValuesRow {
  std::string_view name;
  std::unique_ptr<const FirstValues> (*make)(CodecSpec& spec);
};

const FirstValuesRow kRows[] = {{"normal", Normal::Make}, {"uniform", Uniform::Make}, {"zeros", Zeros::Make}};

}  // namespace

Result<std::unique_ptr<const FirstValues>> MakeFirstValues(std::string_view text) {
  auto spec = CodecSpec::Parse(text, "rows");
  if (!spec.ok()) return spec.status();
  const auto row = std::ranges::find(kRows, spec->name(), &FirstValuesRow::name);
  if (row == std::end(kRows)) return Status(Code::kInvalid, "rows that begin as " + spec->name() + " are not known");
  auto made = row->make(*spec);
  if (Status done = spec->Done(); !done.ok()) return done;
  return made;
}

}  // namespace byteps_like
