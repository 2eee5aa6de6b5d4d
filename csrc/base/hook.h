// A function that a language above the core brings for the core to call.
#pragma once

#include <mutex>
#include <utility>

namespace byteps_like {

// Thread-safe.
template <typename Function>
class Hook {
 public:
  // For whatever is asked from here on.
  void Set(Function function) {
    const std::lock_guard lock(mutex_);
    function_ = std::move(function);
  }
  // Empty before there is one.
  Function Get() const {
    const std::lock_guard lock(mutex_);
    return function_;
  }

 private:
  mutable std::mutex mutex_;
  Function function_;
};

// The one of this type. It lives as long as the process: threads may still ask while that ends.
template <typename Function>
Hook<Function>& TheHook() {
  static auto* const hook = new Hook<Function>;
  return *hook;
}

}  // namespace byteps_like
