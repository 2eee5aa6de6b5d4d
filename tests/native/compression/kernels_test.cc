// The kernels under sanitizers: arrays of exactly the size used, every instruction set against the scalar one, every
// short length, odd addresses. What the values should be is checked against NumPy in tests/property/test_kernels.py.
#include "csrc/kernels/kernels.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/kernels/crc32c/crc32c.h"
#include "csrc/kernels/stream_rate.h"

namespace byteps_like::kernels {
namespace {

constexpr DType kFloats[] = {DType::kFloat32,  DType::kFloat64,      DType::kFloat16,
                             DType::kBFloat16, DType::kFloat8E4M3FN, DType::kFloat8E5M2};
constexpr size_t kMostCount = 257;
using Bytes = std::vector<uint8_t>;

std::vector<std::string> InstructionSets() {
  std::vector<std::string> names;
  const std::string best(InstructionSet());
  for (const char* name : {"avx512", "avx2", "neon"}) {
    if (SelectInstructionSet(name)) names.push_back(name);
  }
  SelectInstructionSet(best);
  return names;
}

// Floats are small whole numbers, exact in each of them: no NaN, whose bits are not specified.
Bytes MakeValues(DType dtype, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> numbers(2 * count);
  Bytes bytes(count * SizeOf(dtype));
  for (float& number : numbers) number = static_cast<float>(static_cast<int>(random() % 9) - 4);
  if (IsComplex(dtype)) {
    const DType part = dtype == DType::kComplex64 ? DType::kFloat32 : DType::kFloat64;
    Cast(DType::kFloat32, part, bytes.data(), numbers.data(), 2 * count);
  } else if (IsFloat(dtype)) {
    Cast(DType::kFloat32, dtype, bytes.data(), numbers.data(), count);
  } else {
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  }
  return bytes;
}

// Memory of its own, `shift` bytes into the allocation and ending with it: reading on is a heap overflow.
class Place {
 public:
  Place(const Bytes& content, size_t shift) : memory_(content.size() + shift), shift_(shift) {
    if (!content.empty()) std::memcpy(data(), content.data(), content.size());
  }
  uint8_t* data() { return memory_.data() + shift_; }
  Bytes content() const { return Bytes(memory_.begin() + static_cast<std::ptrdiff_t>(shift_), memory_.end()); }

 private:
  Bytes memory_;
  size_t shift_;
};

// All kernels on `count` elements, with the instruction set in use; what they wrote, one after the other.
Bytes RunAll(DType dtype, size_t count) {
  const DType wide = AccumulatorOf(dtype);
  const Bytes a = MakeValues(dtype, count, 1), b = MakeValues(dtype, count, 2), total = MakeValues(wide, count, 3);
  Bytes written;
  const auto keep = [&written](const Place& place) {
    const Bytes content = place.content();
    written.insert(written.end(), content.begin(), content.end());
  };
  for (int code = 0; code < kOpCount; ++code) {
    const Op op = static_cast<Op>(code);
    if (!Supports(op, dtype)) continue;
    Place left(a, count % 7), right(b, count % 5), accumulator(total, count % 3);
    Reduce(op, dtype, left.data(), right.data(), count);
    Accumulate(op, dtype, accumulator.data(), right.data(), count);
    keep(left), keep(accumulator);
    Finalize(dtype, left.data(), accumulator.data(), count, 3);
    Finalize(dtype, accumulator.data(), accumulator.data(), count, 4);
    keep(left), keep(accumulator);
    Place first(a, 1), second(b, 2), third(a, 3);
    void* const destinations[] = {first.data(), third.data()};
    const void* const sources[] = {first.data(), second.data(), third.data()};
    const uint32_t divisor = op == Op::kAverage ? 3 : 1;
    ReduceMany(op, dtype, destinations, std::span(sources).first(2 + count % 2), count, divisor);
    keep(first), keep(third);
  }
  Place scaled(a, 3), widened(total, 1);
  if (dtype != DType::kBool) Scale(dtype, scaled.data(), count, 0.375);
  Widen(dtype, widened.data(), scaled.data(), count);
  keep(scaled), keep(widened);
  return written;
}

TEST_CASE("kernels: every instruction set gives the scalar one's bits, and stays within its arrays") {
  const std::string best(InstructionSet());
  for (int code = 0; code < kDTypeCount; ++code) {
    const DType dtype = static_cast<DType>(code);
    for (size_t count = 0; count <= kMostCount; ++count) {
      REQUIRE(SelectInstructionSet("scalar"));
      const Bytes expected = RunAll(dtype, count);
      for (const std::string& name : InstructionSets()) {
        REQUIRE(SelectInstructionSet(name));
        const bool same = RunAll(dtype, count) == expected;
        CHECK_MESSAGE(same, name, ", dtype ", static_cast<int>(dtype), ", ", count, " elements");
      }
    }
  }
  SelectInstructionSet(best);
}

TEST_CASE("kernels: casts between all floating types, in stretches") {
  constexpr size_t kCount = 2500;
  for (const DType from : kFloats) {
    for (const DType to : kFloats) {
      Place source(MakeValues(from, kCount, 4), 3);
      Place destination(Bytes(kCount * SizeOf(to)), 1);
      Cast(from, to, destination.data(), source.data(), kCount);
      CHECK(destination.content() == MakeValues(to, kCount, 4));  // numbers this small are exact everywhere
    }
  }
}

TEST_CASE("kernels: sums in several threads at once") {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      std::vector<float> a(1000, 1.0f), b(1000, 2.0f);
      Reduce(Op::kSum, DType::kFloat32, a.data(), b.data(), a.size());
      (void)Crc32c(0, a.data(), a.size());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("kernels: CRC32C by every instruction set, of exactly the bytes given") {
  const std::string best(InstructionSet());
  Bytes data(40'000);
  std::mt19937 random(5);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  for (size_t count = 0; count <= data.size(); count += count < 300 ? 1 : count < 7000 ? 67 : 499) {
    REQUIRE(SelectInstructionSet("scalar"));
    const uint32_t expected = Crc32c(count, data.data(), count);
    for (const std::string& name : InstructionSets()) {
      REQUIRE(SelectInstructionSet(name));
      Place place(Bytes(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(count)), count % 9);
      CHECK(Crc32c(count, place.data(), count) == expected);
    }
  }
  SelectInstructionSet(best);
  CHECK(Crc32c(0, "123456789", 9) == 0xE3069283u);
}

#if defined(__x86_64__)
TEST_CASE("kernels: CRC32C by the instruction alone, where longer blocks are folded as well") {
  if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul")) return;
  Bytes data(40'000);
  std::mt19937 random(6);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  for (size_t count = 0; count <= data.size(); count += 499)
    CHECK(Crc32cX86(count, data.data(), count) == Crc32cTable(count, data.data(), count));
}
#endif

TEST_CASE("kernels: the streaming rate is a rate, and an unknown instruction set is refused") {
  const double rate = StreamRate(1 << 16, 0.001);
  CHECK(std::isfinite(rate));
  CHECK(rate > 0);
  CHECK_FALSE(SelectInstructionSet("mmx"));
}

}  // namespace
}  // namespace byteps_like::kernels
