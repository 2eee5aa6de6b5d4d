// AES-128-GCM (NIST SP 800-38D) by the instructions of processors that encrypt two blocks at once, for which many
// releases of OpenSSL have no code. Nothing here depends on time or place on secret data. Only for keys that are used
// with nonces of 96 bits.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace byteps_like::kernels {

inline constexpr size_t kGcmBlock = 16;
inline constexpr size_t kGcmAtOnce = 16;  // blocks that are authenticated by one reduction

struct GcmKey {
  alignas(32) uint8_t rounds[11][kGcmBlock];          // of AES
  alignas(32) uint8_t powers[kGcmAtOnce][kGcmBlock];  // of the hash's key, the highest first, times 1/x
};

// A message that is being sealed or opened: first its nonce and GcmBegin, then its bytes from the first on, in parts of
// any size, all either plain or encrypted, then its tag.
struct GcmWork {
  uint8_t nonce[12];
  alignas(16) uint8_t hash[kGcmBlock];
  size_t done, hashed;  // bytes
};

bool HasGcm();  // whether this processor can run what follows
void GcmExpand(const uint8_t (&key)[kGcmBlock], GcmKey& expanded);
void GcmBegin(const GcmKey& key, GcmWork& work, const void* additional, size_t bytes);  // at most 256
// The next bytes, from `plain` to their place in the encrypted message, which begins at `message`, or back.
void GcmSeal(const GcmKey& key, GcmWork& work, uint8_t* message, const void* plain, size_t bytes);
void GcmOpen(const GcmKey& key, GcmWork& work, const uint8_t* message, void* plain, size_t bytes);
void GcmEnd(const GcmKey& key, GcmWork& work, const uint8_t* message, size_t additional, uint8_t (&tag)[kGcmBlock]);

}  // namespace byteps_like::kernels
