#include "csrc/base/entropy.h"

#include <openssl/rand.h>

#include "csrc/base/simulation.h"

namespace byteps_like {

Status FillRandomly(std::span<std::byte> bytes) {
  if (Simulation* const simulation = TheSimulation()) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(simulation->Draw(256));
    return {};
  }
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) == 1) return {};
  return Status(Code::kSystem, "OpenSSL has no random bytes");
}

}  // namespace byteps_like
