// Functions that take turns on one thread of the host, each on a stack of its own.
#pragma once

#include <cstddef>

namespace software_gpu {

class Stack {
 public:
  Stack();
  ~Stack();
  Stack(const Stack&) = delete;

  // `function` begins at the next Resume; whatever was on this stack is forgotten. It never returns: it gives way for
  // the last time.
  void Begin(void (*function)());
  // From outside: goes on with what is on this stack, until it gives way.
  void Resume();
  // From it: back to who resumed it.
  void GiveWay();

 private:
  static constexpr size_t kBytes = 64 * 1024;

  void* memory_;
  void* inside_ = nullptr;   // where to go on
  void* outside_ = nullptr;  // where to go back to
};

}  // namespace software_gpu
