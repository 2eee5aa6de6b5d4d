// The key of one direction of a TLS 1.3 connection (RFC 8446, sections 5 and 7.3), with TLS_AES_128_GCM_SHA256: seals
// records, or opens them. No I/O.
//
// libssl negotiates the connection (handshake.h). Its own records would be copied once more on each side and sent one
// by one; these are made from where the bytes lie, and opened to where they belong (docs/decisions/0042).
#pragma once

#include <openssl/evp.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "csrc/base/status.h"
#include "csrc/transport/hmac.h"

namespace byteps_like::tls {

enum class ContentType : uint8_t { kAlert = 21, kHandshake = 22, kData = 23 };

inline constexpr size_t kRecordHeaderBytes = 5;
inline constexpr size_t kRecordBytes = 16u << 10;               // of content, at most
inline constexpr size_t kTailBytes = 1 + 16;                    // the type, and the tag of the whole
inline constexpr size_t kMostSealedBytes = kRecordBytes + 256;  // what a record of any other peer may have
inline constexpr size_t kOverheadBytes = kRecordHeaderBytes + kTailBytes;

using Secret = Mac;  // of which the key and the nonces of a direction are made

class TrafficKey {
 public:
  TrafficKey() = default;
  TrafficKey(TrafficKey&&) = default;
  TrafficKey& operator=(TrafficKey&&) = default;
  ~TrafficKey();

  static Result<TrafficKey> Of(const Secret& secret, bool seals);
  Status Update();  // to the next secret, as KeyUpdate says

  uint64_t records() const { return records_; }  // under this key

  // Seals up to kRecordBytes of content, which lie in `pieces`, to `out`: kOverheadBytes more. Returns those bytes.
  Result<size_t> Seal(ContentType type, std::span<const iovec> pieces, size_t content, std::byte* out);

  struct Opened {
    ContentType type{};
    size_t content = 0;
  };
  // Opens a whole record, header included, to `out`, which has room for its content. kCorrupt if it is not the next
  // record of the peer, unchanged; what is in `out` is then meaningless.
  Result<Opened> Open(std::span<const std::byte> record, std::byte* out);

 private:
  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };
  using Nonce = std::array<unsigned char, 12>;
  Status Set(const Secret& secret);
  Nonce NextNonce();
  bool SealPieces(const Nonce& nonce, std::span<const iovec> pieces, ContentType type, unsigned char* record,
                  size_t content);
  // Whether the tag is right; nothing if OpenSSL fails.
  std::optional<bool> OpenContent(const Nonce& nonce, const unsigned char* record, unsigned char* out, Opened& opened);

  std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
  Secret secret_{};
  Nonce iv_{};
  uint64_t records_ = 0;
  bool seals_ = false;
};

// How many bytes the record at the beginning of `bytes` has, header included; 0 if its header is not there yet.
// kCorrupt, with the reason, if it can't be a record of such a connection.
Result<size_t> RecordSize(std::span<const std::byte> bytes);

}  // namespace byteps_like::tls
