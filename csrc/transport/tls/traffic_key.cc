#include "csrc/transport/tls/traffic_key.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

namespace byteps_like::tls {
namespace {

constexpr size_t kKeyBytes = 16;
constexpr size_t kTagBytes = 16;
constexpr unsigned char kOpaque = 23, kMajor = 3, kMinor = 3;  // what all sealed records have in their header

Status NoCipher() { return Status(Code::kSystem, "OpenSSL can't compute AES-128-GCM"); }

// HKDF-Expand-Label of RFC 8446, section 7.1, without a context; up to 32 bytes are one block of HKDF-Expand.
Result<Mac> ExpandLabel(const Secret& secret, std::string_view label, size_t bytes) {
  std::string info{'\0', static_cast<char>(bytes), static_cast<char>(6 + label.size())};
  info += "tls13 ";
  info += label;
  info += '\0';
  info += '\1';
  return HmacSha256(secret, info);
}

unsigned char* Unsigned(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* Unsigned(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

}  // namespace

TrafficKey::~TrafficKey() { OPENSSL_cleanse(secret_.data(), secret_.size()); }

Result<TrafficKey> TrafficKey::Of(const Secret& secret, bool seals) {
  TrafficKey key;
  key.seals_ = seals;
  key.context_.reset(EVP_CIPHER_CTX_new());
  if (key.context_ == nullptr) return NoCipher();
  if (Status set = key.Set(secret); !set.ok()) return set;
  return key;
}

Status TrafficKey::Set(const Secret& secret) {
  auto key = ExpandLabel(secret, "key", kKeyBytes);
  auto iv = ExpandLabel(secret, "iv", iv_.size());
  if (!key.ok()) return key.status();
  if (!iv.ok()) return iv.status();
  secret_ = secret;
  records_ = 0;
  std::memcpy(iv_.data(), iv->data(), iv_.size());
  unsigned char bytes[kKeyBytes];
  std::memcpy(bytes, key->data(), kKeyBytes);
  const int seals = seals_ ? 1 : 0;
  const bool made = EVP_CipherInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, bytes, iv_.data(), seals) == 1;
  OPENSSL_cleanse(bytes, kKeyBytes);
  OPENSSL_cleanse(key->data(), key->size());
  return made ? Status() : NoCipher();
}

Status TrafficKey::Update() {
  auto next = ExpandLabel(secret_, "traffic upd", sizeof(Secret));
  return next.ok() ? Set(*next) : next.status();
}

TrafficKey::Nonce TrafficKey::NextNonce() {
  auto nonce = iv_;
  for (size_t i = 0; i < sizeof(records_); ++i) {
    nonce[nonce.size() - 1 - i] ^= static_cast<unsigned char>(records_ >> (8 * i));
  }
  ++records_;
  return nonce;
}

Result<size_t> TrafficKey::Seal(ContentType type, std::span<const iovec> pieces, size_t content, std::byte* out) {
  const size_t sealed = content + kTailBytes;
  const unsigned char header[] = {kOpaque, kMajor, kMinor, static_cast<unsigned char>(sealed >> 8),
                                  static_cast<unsigned char>(sealed)};
  static_assert(sizeof(header) == kRecordHeaderBytes);
  std::copy(std::begin(header), std::end(header), Unsigned(out));
  const Nonce nonce = NextNonce();
  if (!SealPieces(nonce, pieces, type, Unsigned(out), content)) return NoCipher();
  return kRecordHeaderBytes + sealed;
}

bool TrafficKey::SealPieces(const Nonce& nonce, std::span<const iovec> pieces, ContentType type, unsigned char* record,
                            size_t content) {
  EVP_CIPHER_CTX* const context = context_.get();
  unsigned char* to = record + kRecordHeaderBytes;
  int size = 0;
  bool good = EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
              EVP_EncryptUpdate(context, nullptr, &size, record, kRecordHeaderBytes) == 1;
  const auto append = [&](const void* bytes, size_t length) {
    const auto* from = static_cast<const unsigned char*>(bytes);
    good = good && EVP_EncryptUpdate(context, to, &size, from, static_cast<int>(length)) == 1;
    to += length;
  };
  for (const iovec& piece : pieces) {
    const size_t length = std::min(piece.iov_len, content);
    if (length > 0) append(piece.iov_base, length);
    content -= length;
  }
  append(&type, sizeof(type));
  return good && EVP_EncryptFinal_ex(context, to, &size) == 1 &&
         EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kTagBytes, to) == 1;
}

Result<TrafficKey::Opened> TrafficKey::Open(std::span<const std::byte> record, std::byte* out) {
  Opened opened{{}, record.size() - kOverheadBytes};
  const Nonce nonce = NextNonce();
  const unsigned char* const bytes = Unsigned(record.data());
  const std::optional<bool> right = OpenContent(nonce, bytes, Unsigned(out), opened);
  if (!right) return NoCipher();
  if (*right) return opened;
  return Status(Code::kCorrupt, "a record failed its authentication: it was changed, repeated or left out");
}

std::optional<bool> TrafficKey::OpenContent(const Nonce& nonce, const unsigned char* record, unsigned char* out,
                                            Opened& opened) {
  EVP_CIPHER_CTX* const context = context_.get();
  const unsigned char* const message = record + kRecordHeaderBytes;
  const size_t content = opened.content;
  auto* const type = reinterpret_cast<unsigned char*>(&opened.type);
  unsigned char tag[kTagBytes], nothing;
  std::copy_n(message + content + 1, kTagBytes, tag);
  int size = 0;
  const bool possible =
      EVP_DecryptInit_ex(context, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
      EVP_DecryptUpdate(context, nullptr, &size, record, kRecordHeaderBytes) == 1 &&
      (content == 0 || EVP_DecryptUpdate(context, out, &size, message, static_cast<int>(content)) == 1) &&
      EVP_DecryptUpdate(context, type, &size, message + content, 1) == 1 &&
      EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag) == 1;
  if (!possible) return std::nullopt;
  return EVP_DecryptFinal_ex(context, &nothing, &size) == 1;
}

Result<size_t> RecordSize(std::span<const std::byte> bytes) {
  if (bytes.size() < kRecordHeaderBytes) return size_t{0};
  const unsigned char* const header = Unsigned(bytes.data());
  const size_t sealed = (size_t{header[3]} << 8) + header[4];
  if (header[0] != kOpaque || header[1] != kMajor || header[2] != kMinor) {
    return Status(Code::kCorrupt, "what came is no record of TLS");
  }
  if (sealed < kTailBytes || sealed > kMostSealedBytes) {
    return Status(Code::kCorrupt, "a record of TLS has " + std::to_string(sealed) + " bytes");
  }
  return kRecordHeaderBytes + sealed;
}

}  // namespace byteps_like::tls
