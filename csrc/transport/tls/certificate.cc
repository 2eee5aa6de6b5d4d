#include "csrc/transport/tls/certificate.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/obj_mac.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <memory>
#include <span>

#include "csrc/base/entropy.h"
#include "csrc/transport/hmac.h"

namespace byteps_like::tls {
namespace {

template <auto kFree>
struct Free {
  void operator()(auto* object) const { kFree(object); }
};
template <typename T, auto kFree>
using Owned = std::unique_ptr<T, Free<kFree>>;
using Key = Owned<EVP_PKEY, EVP_PKEY_free>;
using Paper = Owned<X509, X509_free>;
using Number = Owned<BIGNUM, BN_clear_free>;

constexpr char kAuthorityName[] = "byteps_like authority";
constexpr char kSince[] = "20000101000000Z", kUntil[] = "99991231235959Z";  // the job ends sooner, clocks may be wrong
constexpr int kSerialBytes = 16;

Status Failed(const char* what) { return Status(Code::kSystem, std::string("OpenSSL can't make ") + what); }

// A number from 1 to order - 1; the chance that the first try is none is 2^-32.
Number ScalarOf(const std::string& secret, const EC_GROUP& group) {
  for (unsigned char attempt = 0; attempt < 16; ++attempt) {
    const std::byte count{attempt};
    auto bytes = HmacSha256(std::as_bytes(std::span(secret)), "byteps_like v2 tls authority", {{&count, 1}});
    if (!bytes.ok()) return nullptr;
    Number scalar(
        BN_bin2bn(reinterpret_cast<const unsigned char*>(bytes->data()), static_cast<int>(bytes->size()), nullptr));
    OPENSSL_cleanse(bytes->data(), bytes->size());
    if (scalar == nullptr) return nullptr;
    if (!BN_is_zero(scalar.get()) && BN_cmp(scalar.get(), EC_GROUP_get0_order(&group)) < 0) return scalar;
  }
  return nullptr;
}

Key KeyOf(const std::string& secret) {
  const Owned<EC_GROUP, EC_GROUP_free> group(EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1));
  const Number scalar = group ? ScalarOf(secret, *group) : nullptr;
  const Owned<EC_POINT, EC_POINT_free> point(group ? EC_POINT_new(group.get()) : nullptr);
  if (!scalar || !point || EC_POINT_mul(group.get(), point.get(), scalar.get(), nullptr, nullptr, nullptr) != 1) {
    return nullptr;
  }
  std::array<unsigned char, 65> shown;
  const size_t size =
      EC_POINT_point2oct(group.get(), point.get(), POINT_CONVERSION_UNCOMPRESSED, shown.data(), shown.size(), nullptr);
  const Owned<OSSL_PARAM_BLD, OSSL_PARAM_BLD_free> builder(OSSL_PARAM_BLD_new());
  const Owned<EVP_PKEY_CTX, EVP_PKEY_CTX_free> context(EVP_PKEY_CTX_new_from_name(nullptr, "EC", nullptr));
  if (size != shown.size() || !builder || !context ||
      OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0) != 1 ||
      OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, shown.data(), size) != 1 ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_PRIV_KEY, scalar.get()) != 1) {
    return nullptr;
  }
  const Owned<OSSL_PARAM, OSSL_PARAM_free> parameters(OSSL_PARAM_BLD_to_param(builder.get()));
  EVP_PKEY* key = nullptr;
  if (!parameters || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_KEYPAIR, parameters.get()) != 1) {
    return nullptr;
  }
  return Key(key);
}

bool Name(X509_NAME* name, const char* text) {
  return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(text), -1, -1,
                                    0) == 1;
}

bool Extend(X509* paper, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, paper, paper, nullptr, nullptr, 0);
  const Owned<X509_EXTENSION, X509_EXTENSION_free> extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value));
  return extension && X509_add_ext(paper, extension.get(), -1) == 1;
}

bool Number16(X509* paper) {
  unsigned char serial[kSerialBytes];
  if (!FillRandomly(std::as_writable_bytes(std::span(serial))).ok()) return false;
  serial[0] &= 0x7F;
  const Number number(BN_bin2bn(serial, kSerialBytes, nullptr));
  return number && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(paper)) != nullptr;
}

Paper Sign(const char* name, EVP_PKEY* of, EVP_PKEY* by, bool is_authority) {
  Paper paper(X509_new());
  X509* const raw = paper.get();
  const bool good =
      raw != nullptr && X509_set_version(raw, X509_VERSION_3) == 1 && Number16(raw) &&
      ASN1_TIME_set_string_X509(X509_getm_notBefore(raw), kSince) == 1 &&
      ASN1_TIME_set_string_X509(X509_getm_notAfter(raw), kUntil) == 1 && X509_set_pubkey(raw, of) == 1 &&
      Name(X509_get_subject_name(raw), name) && Name(X509_get_issuer_name(raw), kAuthorityName) &&
      Extend(raw, NID_basic_constraints, is_authority ? "critical,CA:TRUE" : "critical,CA:FALSE") &&
      Extend(raw, NID_key_usage, is_authority ? "critical,keyCertSign" : "critical,digitalSignature") &&
      (is_authority || Extend(raw, NID_subject_alt_name, (std::string("DNS:") + kCertificateName).c_str())) &&
      X509_sign(raw, by, EVP_sha256()) > 0;
  return good ? std::move(paper) : nullptr;
}

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

std::string Pem(X509* paper) {
  const Owned<BIO, BIO_free> bio(BIO_new(BIO_s_mem()));
  return bio && PEM_write_bio_X509(bio.get(), paper) == 1 ? Text(bio.get()) : "";
}

std::string Pem(EVP_PKEY* key) {
  const Owned<BIO, BIO_free> bio(BIO_new(BIO_s_mem()));
  const bool written = bio && PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1;
  return written ? Text(bio.get()) : "";
}

}  // namespace

Result<Certificate> MakeCertificate(const std::string& secret) {
  const Key authority = KeyOf(secret), own(EVP_EC_gen("P-256"));
  if (!authority || !own) return Failed("P-256 keys");
  const Paper root = Sign(kAuthorityName, authority.get(), authority.get(), true);
  const Paper paper = Sign(kCertificateName, own.get(), authority.get(), false);
  if (!root || !paper) return Failed("certificates");
  Certificate made{Pem(own.get()), Pem(paper.get()), Pem(root.get())};
  if (made.key.empty() || made.certificate.empty() || made.authority.empty()) return Failed("PEM");
  return made;
}

}  // namespace byteps_like::tls
