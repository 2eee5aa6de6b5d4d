// A stack of its own for a function, which is entered and left at will on the thread that made it.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace byteps_like::sim {

class Fiber {
 public:
  // Takes a stack from those that earlier ones of this thread have left.
  explicit Fiber(std::function<void()> body);
  ~Fiber();  // its body has ended, or has never begun
  Fiber(const Fiber&) = delete;

  void Enter();  // until it leaves, or its body ends. Not from within a fiber.
  void Leave();  // from within it, back to where it was entered
  bool ended() const { return ended_; }

 private:
  static void Begin(unsigned int high, unsigned int low);
  void Run();

  std::function<void()> body_;
  std::byte* const stack_;
  ucontext_t own_{}, outside_{};
  bool ended_ = false;
  // For the address sanitizer, which must know each stack, and the thread sanitizer, which must know each switch.
  void* fake_stack_ = nullptr;
  void* outside_fake_stack_ = nullptr;
  const void* outside_stack_ = nullptr;
  size_t outside_bytes_ = 0;
  void* watched_ = nullptr;
  void* outside_watched_ = nullptr;
};

}  // namespace byteps_like::sim
