#include "csrc/transport/rdma/cookie.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstring>
#include <string>

namespace byteps_like::rdma {

Result<CookieJar> CookieJar::Make() {
  CookieJar jar;
  if (RAND_bytes(jar.key_.data(), static_cast<int>(jar.key_.size())) == 1) return jar;
  return Status(Code::kSystem, "OpenSSL has no random bytes");
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
