#include "csrc/kernels/gcm/gcm.h"

namespace byteps_like::kernels {

#if defined(__x86_64__)
bool HasGcm() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("aes") &&
                          __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("vaes") &&
                          __builtin_cpu_supports("vpclmulqdq");
  return has;
}
#else
bool HasGcm() { return false; }
void GcmExpand(const uint8_t (&)[kGcmBlock], GcmKey&) {}
void GcmBegin(const GcmKey&, GcmWork&, const void*, size_t) {}
void GcmSeal(const GcmKey&, GcmWork&, uint8_t*, const void*, size_t) {}
void GcmOpen(const GcmKey&, GcmWork&, const uint8_t*, void*, size_t) {}
void GcmEnd(const GcmKey&, GcmWork&, const uint8_t*, size_t, uint8_t (&)[kGcmBlock]) {}
#endif

}  // namespace byteps_like::kernels
