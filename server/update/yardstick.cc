#include "server/update/yardstick.h"

#include "server/update/loop.h"

namespace byteps_like {

void StreamUpdate(float* value, float* state, size_t slots, const float* gradient, size_t count) {
  UpdateCall call;
  call.shape = {1, count};
  call.value = value;
  call.state = state;
  call.gradient = gradient;
  if (slots == 0) {
    return RunAll<0, float>(call, [](float& w, float g) __attribute__((always_inline)) { w += g; });
  }
  if (slots == 1) {
    return RunAll<1, float>(call, [](float& w, float& a, float g) __attribute__((always_inline)) {
      w += g;
      a += g;
    });
  }
  RunAll<2, float>(call, [](float& w, float& a, float& b, float g) __attribute__((always_inline)) {
    w += g;
    a += g;
    b += g;
  });
}

}  // namespace byteps_like
