// A listener's answer to a first connection request, which the peer must return with its next request. So only peers
// that receive answers at their address cost memory; nothing is kept for those that never come back.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "csrc/base/status.h"

namespace byteps_like::rdma {

using Cookie = std::array<uint64_t, 2>;

class CookieJar {
 public:
  static Result<CookieJar> Make();  // with a key of its own; kSystem: there are no random bytes

  // For one connection (Greeting::connection) from one source address without port; never zero.
  Cookie Of(std::string_view source, const uint64_t (&connection)[2]) const;

 private:
  std::array<unsigned char, 32> key_;
};

bool SameCookie(const Cookie& a, const Cookie& b);  // in constant time

}  // namespace byteps_like::rdma
