#include "tests/software_gpu/stack.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#include "tests/sanitizers.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define __asan_unpoison_memory_region(memory, bytes)
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace software_gpu {

#if defined(__x86_64__)
// Saves what a function must keep, leaves the place in *here and goes to `there`: some nanoseconds, where swapcontext
// calls the system.
extern "C" __attribute__((visibility("hidden"))) void software_gpu_switch(void** here, void* there);
asm(R"(
.text
.hidden software_gpu_switch
.globl software_gpu_switch
.type software_gpu_switch, @function
software_gpu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size software_gpu_switch, .-software_gpu_switch
)");

namespace {
constexpr size_t kSavedWords = 6;
void Switch(void** here, void* there) { software_gpu_switch(here, there); }
}  // namespace
#else
namespace {
void Switch(void** here, void* there) {
  ucontext_t place;
  *here = &place;
  swapcontext(&place, static_cast<ucontext_t*>(there));
}
}  // namespace
#endif

Stack::Stack() : memory_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
  if (memory_ == MAP_FAILED) std::abort();
}

// Its functions never return, so what the address sanitizer has marked in their frames would stay, for whatever is
// mapped here next.
Stack::~Stack() {
  __asan_unpoison_memory_region(memory_, kBytes);
  munmap(memory_, kBytes);
}

void Stack::Begin(void (*function)()) {
  __asan_unpoison_memory_region(memory_, kBytes);
#if defined(__x86_64__)
  auto* const end = reinterpret_cast<uintptr_t*>(static_cast<char*>(memory_) + kBytes);
  end[-1] = 0;  // where a caller would be
  end[-2] = reinterpret_cast<uintptr_t>(function);
  inside_ = end - 2 - kSavedWords;
#else
  auto* const place = static_cast<ucontext_t*>(memory_);
  getcontext(place);
  place->uc_stack = {
      .ss_sp = static_cast<char*>(memory_) + sizeof(*place), .ss_flags = 0, .ss_size = kBytes - sizeof(*place)};
  place->uc_link = nullptr;
  makecontext(place, function, 0);
  inside_ = place;
#endif
}

void Stack::Resume() { Switch(&outside_, inside_); }
void Stack::GiveWay() { Switch(&inside_, outside_); }

}  // namespace software_gpu
