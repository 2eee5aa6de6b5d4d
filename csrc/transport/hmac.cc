#include "csrc/transport/hmac.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <vector>

namespace byteps_like {

Result<Mac> HmacSha256(std::span<const std::byte> key, std::string_view label,
                       std::initializer_list<std::span<const std::byte>> parts) {
  std::vector<unsigned char> text(label.begin(), label.end());
  for (const auto part : parts) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(part.data());
    text.insert(text.end(), bytes, bytes + part.size());
  }
  Mac mac;
  unsigned int size = 0;
  const auto* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), text.data(), text.size(),
                          reinterpret_cast<unsigned char*>(mac.data()), &size);
  if (made == nullptr || size != mac.size()) return Status(Code::kSystem, "OpenSSL can't compute HMAC-SHA256");
  return mac;
}

}  // namespace byteps_like
