#include "csrc/transport/rdma/cookie.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstring>
#include <span>
#include <string>

#include "csrc/base/entropy.h"

namespace byteps_like::rdma {

Result<CookieJar> CookieJar::Make() {
  CookieJar jar;
  if (Status filled = FillRandomly(std::as_writable_bytes(std::span(jar.key_))); !filled.ok()) return filled;
  return jar;
}

Cookie CookieJar::Of(std::string_view source, const uint64_t (&connection)[2]) const {
  std::string text(reinterpret_cast<const char*>(connection), sizeof(connection));
  text += source;
  unsigned char mac[EVP_MAX_MD_SIZE] = {};
  HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), mac, nullptr);
  Cookie cookie;
  std::memcpy(cookie.data(), mac, sizeof(cookie));
  cookie[0] |= 1;  // peers that have none send zero
  return cookie;
}

bool SameCookie(const Cookie& a, const Cookie& b) { return CRYPTO_memcmp(a.data(), b.data(), sizeof(a)) == 0; }

}  // namespace byteps_like::rdma
