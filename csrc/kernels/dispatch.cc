#include "csrc/kernels/dispatch.h"

#include <atomic>
#include <cstring>

#include "csrc/kernels/crc32c/crc32c.h"
#include "csrc/kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace byteps_like::kernels {
namespace {

constexpr size_t kMostChoices = 4;
struct Choices {
  Choice list[kMostChoices];
  size_t count = 0;
  void Add(const Table& table, Crc32cFn crc32c) { list[count++] = Choice{&table, crc32c}; }
};

#if defined(__x86_64__)
bool HasHalfConversions() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

Choices Detect() {
  __builtin_cpu_init();
  const bool crc = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasHalfConversions();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool folds = crc && avx2 && __builtin_cpu_supports("vpclmulqdq");
  const Crc32cFn crc32c = folds ? Crc32cFold : crc ? Crc32cX86 : Crc32cTable;
  Choices choices;
  if (avx2 && avx512) choices.Add(kAvx512, crc32c);
  if (avx2) choices.Add(kAvx2, crc32c);
  choices.Add(kScalar, Crc32cTable);
  return choices;
}
#elif defined(__aarch64__)
Choices Detect() {
  Choices choices;
#if defined(__linux__)
  const bool crc = getauxval(AT_HWCAP) & HWCAP_CRC32;
#else
  const bool crc = false;
#endif
  choices.Add(kNeon, crc ? Crc32cArm : Crc32cTable);
  choices.Add(kScalar, Crc32cTable);
  return choices;
}
#else
Choices Detect() {
  Choices choices;
  choices.Add(kScalar, Crc32cTable);
  return choices;
}
#endif

const Choices& Available() {
  static const Choices choices = Detect();
  return choices;
}

std::atomic<const Choice*> active{nullptr};

}  // namespace

const Choice& Active() {
  const Choice* choice = active.load(std::memory_order_acquire);
  if (choice == nullptr) {
    choice = &Available().list[0];
    active.store(choice, std::memory_order_release);
  }
  return *choice;
}

std::string_view InstructionSet() { return Active().table->name; }

bool SelectInstructionSet(std::string_view name) {
  const Choices& choices = Available();
  for (size_t i = 0; i < choices.count; ++i) {
    if (name != choices.list[i].table->name) continue;
    active.store(&choices.list[i], std::memory_order_release);
    return true;
  }
  return false;
}

void Reduce(Op op, DType dtype, void* a, const void* b, size_t count) {
  if (op == Op::kBroadcast) {
    if (count != 0 && a != b) std::memcpy(a, b, count * SizeOf(dtype));
    return;
  }
  LoopsOf(*Active().table, op, dtype).reduce(a, b, count * UnitsOf(op, dtype));
}

void Widen(DType dtype, void* accumulator, const void* source, size_t count) {
  Active().table->widen[ColumnOf(dtype)](accumulator, source, count * PartsOf(dtype));
}

void Accumulate(Op op, DType dtype, void* accumulator, const void* source, size_t count) {
  if (op == Op::kBroadcast) return Widen(dtype, accumulator, source, count);
  LoopsOf(*Active().table, op, dtype).accumulate(accumulator, source, count * UnitsOf(op, dtype));
}

void Finalize(DType dtype, void* destination, const void* accumulator, size_t count, uint32_t divisor) {
  if (dtype == DType::kBool) divisor = 1;
  Active().table->finalize[ColumnOf(dtype)](destination, accumulator, count * PartsOf(dtype), divisor);
}

void Scale(DType dtype, void* data, size_t count, double factor) {
  Active().table->scale[ColumnOf(dtype)](data, count * PartsOf(dtype), factor);
}

// Row and column of Table::cast.
static int FloatOf(DType dtype) {
  const int column = ColumnOf(dtype);
  return column < kFirstInteger ? column : column - kFirstFloat8 + kFirstInteger;
}

void Cast(DType from, DType to, void* destination, const void* source, size_t count) {
  Active().table->cast[FloatOf(from)][FloatOf(to)](destination, source, count);
}

uint32_t Crc32c(uint32_t seed, const void* data, size_t bytes) { return Active().crc32c(seed, data, bytes); }

}  // namespace byteps_like::kernels
