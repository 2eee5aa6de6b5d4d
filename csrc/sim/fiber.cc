#include "csrc/sim/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>
#include <vector>

// Each compiler says in its own way which sanitizer it serves.
#if defined(__SANITIZE_ADDRESS__)
#define BYTEPS_LIKE_ADDRESSES 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BYTEPS_LIKE_ADDRESSES 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define BYTEPS_LIKE_RACES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define BYTEPS_LIKE_RACES 1
#endif
#endif
#if defined(BYTEPS_LIKE_ADDRESSES)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(BYTEPS_LIKE_RACES)
#include <sanitizer/tsan_interface.h>
#endif

namespace byteps_like::sim {
namespace {

constexpr size_t kStackBytes = 256u << 10;  // taken from the system as far as it is used
constexpr size_t kGuardBytes = 4096;

// Stacks that nobody runs on, of this thread.
class Stacks {
 public:
  ~Stacks() {
    for (std::byte* const stack : free_) ::munmap(stack, kStackBytes);
  }
  std::byte* Take() {
    if (free_.empty()) return Make();
    std::byte* const stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void Give(std::byte* stack) { free_.push_back(stack); }

 private:
  static std::byte* Make() {
    void* const stack = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) throw std::bad_alloc();
    ::mprotect(stack, kGuardBytes, PROT_NONE);
    return static_cast<std::byte*>(stack);
  }
  std::vector<std::byte*> free_;
};

thread_local Stacks stacks;

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(stacks.Take()) {
  ::getcontext(&own_);
  own_.uc_stack.ss_sp = stack_;
  own_.uc_stack.ss_size = kStackBytes;
  own_.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  ::makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::Begin), 2, static_cast<unsigned int>(self >> 32),
                static_cast<unsigned int>(self));
#if defined(BYTEPS_LIKE_RACES)
  watched_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(BYTEPS_LIKE_RACES)
  __tsan_destroy_fiber(watched_);
#endif
  stacks.Give(stack_);
}

void Fiber::Begin(unsigned int high, unsigned int low) {
  reinterpret_cast<Fiber*>((uintptr_t{high} << 32) | low)->Run();
}

void Fiber::Run() {
#if defined(BYTEPS_LIKE_ADDRESSES)
  __sanitizer_finish_switch_fiber(fake_stack_, &outside_stack_, &outside_bytes_);
#endif
  body_();
  body_ = nullptr;
  ended_ = true;
#if defined(BYTEPS_LIKE_ADDRESSES)
  __sanitizer_start_switch_fiber(nullptr, outside_stack_, outside_bytes_);
#endif
#if defined(BYTEPS_LIKE_RACES)
  __tsan_switch_to_fiber(outside_watched_, 0);
#endif
  ::setcontext(&outside_);
}

void Fiber::Enter() {
#if defined(BYTEPS_LIKE_ADDRESSES)
  __sanitizer_start_switch_fiber(&outside_fake_stack_, stack_, kStackBytes);
#endif
#if defined(BYTEPS_LIKE_RACES)
  outside_watched_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(watched_, 0);
#endif
  ::swapcontext(&outside_, &own_);
#if defined(BYTEPS_LIKE_ADDRESSES)
  __sanitizer_finish_switch_fiber(outside_fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::Leave() {
#if defined(BYTEPS_LIKE_ADDRESSES)
  __sanitizer_start_switch_fiber(&fake_stack_, outside_stack_, outside_bytes_);
#endif
#if defined(BYTEPS_LIKE_RACES)
  __tsan_switch_to_fiber(outside_watched_, 0);
#endif
  ::swapcontext(&own_, &outside_);
#if defined(BYTEPS_LIKE_ADDRESSES)
  __sanitizer_finish_switch_fiber(fake_stack_, &outside_stack_, &outside_bytes_);
#endif
}

}  // namespace byteps_like::sim
