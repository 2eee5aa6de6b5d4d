// Our own AES-128-GCM against OpenSSL's, over messages of all lengths, in parts of any size.
#include "csrc/kernels/gcm/gcm.h"

#include <doctest/doctest.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace byteps_like::testing {
namespace {

using Octets = std::vector<uint8_t>;

struct Case {
  uint8_t key[16], nonce[12];
  Octets additional, plain;
};

Case Draw(std::mt19937_64& random, size_t size) {
  Case drawn{{}, {}, Octets(random() % 17), Octets(size)};
  for (auto* bytes : {drawn.key, drawn.key + 8}) {
    const uint64_t word = random();
    std::memcpy(bytes, &word, sizeof(word));
  }
  for (uint8_t& byte : drawn.nonce) byte = static_cast<uint8_t>(random());
  for (uint8_t& byte : drawn.additional) byte = static_cast<uint8_t>(random());
  for (uint8_t& byte : drawn.plain) byte = static_cast<uint8_t>(random());
  return drawn;
}

// The encrypted message, and its tag behind it.
Octets Reference(const Case& one) {
  Octets sealed(one.plain.size() + 16);
  EVP_CIPHER_CTX* const context = EVP_CIPHER_CTX_new();
  int size = 0;
  EVP_EncryptInit_ex(context, EVP_aes_128_gcm(), nullptr, one.key, one.nonce);
  if (!one.additional.empty()) {
    EVP_EncryptUpdate(context, nullptr, &size, one.additional.data(), static_cast<int>(one.additional.size()));
  }
  EVP_EncryptUpdate(context, sealed.data(), &size, one.plain.data(), static_cast<int>(one.plain.size()));
  EVP_EncryptFinal_ex(context, sealed.data() + one.plain.size(), &size);
  EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, 16, sealed.data() + one.plain.size());
  EVP_CIPHER_CTX_free(context);
  return sealed;
}

template <typename Part>
void InParts(std::mt19937_64& random, size_t size, Part part) {
  const size_t most = random() % 2 == 0 ? 40 : 5000;
  for (size_t at = 0; at < size;) {
    const size_t bytes = std::min<size_t>(size - at, 1 + random() % most);
    part(at, bytes);
    at += bytes;
  }
}

}  // namespace

TEST_CASE("gcm: what is sealed in parts of any size is what OpenSSL seals, and opens again") {
  if (!kernels::HasGcm()) {
    MESSAGE("skipped: this processor has no VAES");
    return;
  }
  std::mt19937_64 random(1);
  for (size_t turn = 0; turn < 3000; ++turn) {
    const Case one = Draw(random, turn < 1100 ? turn : random() % 20'000);
    CAPTURE(one.plain.size());
    const Octets expected = Reference(one);
    kernels::GcmKey key;
    kernels::GcmExpand(one.key, key);
    kernels::GcmWork work;
    std::copy(std::begin(one.nonce), std::end(one.nonce), work.nonce);
    const size_t size = one.plain.size(), additional = one.additional.size();
    Octets sealed(size + 16), opened(size);
    uint8_t tag[16];
    kernels::GcmBegin(key, work, one.additional.data(), additional);
    InParts(random, size,
            [&](size_t at, size_t bytes) { kernels::GcmSeal(key, work, sealed.data(), one.plain.data() + at, bytes); });
    kernels::GcmEnd(key, work, sealed.data(), additional, tag);
    std::copy(std::begin(tag), std::end(tag), sealed.begin() + static_cast<ptrdiff_t>(size));
    REQUIRE(sealed == expected);
    kernels::GcmBegin(key, work, one.additional.data(), additional);
    InParts(random, size,
            [&](size_t at, size_t bytes) { kernels::GcmOpen(key, work, sealed.data(), opened.data() + at, bytes); });
    kernels::GcmEnd(key, work, sealed.data(), additional, tag);
    REQUIRE(opened == one.plain);
    REQUIRE(std::equal(std::begin(tag), std::end(tag), expected.end() - 16));
  }
}

}  // namespace byteps_like::testing
