// The handshake of TLS 1.3 by libssl, without I/O: bytes in, bytes out, and at last the keys of both directions.
//
// Both ends prove a pre-shared key, HMAC-SHA256(secret, "byteps_like v2 link tls" | incarnation), with a Diffie-Hellman
// exchange beside it (psk_dhe_ke), so that who learns the secret later can't read what was recorded. The identity of
// the key is the incarnation in hexadecimal: the accepting end makes the key of any incarnation, and the handshake of
// links, which follows, judges it.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/transport/stream.h"
#include "csrc/transport/tls/traffic_key.h"

namespace byteps_like::tls {

class Negotiation {
 public:
  static Status IsViable();  // why this OpenSSL can't do it
  static Result<std::unique_ptr<Negotiation>> Begin(const StreamKeys& keys, bool dials);

  // Takes what has come (all of it) and appends to `out` what is to be sent, also where it fails. kRefused if the other
  // end has proven no such key, kCorrupt if it does not speak TLS.
  Status Step(std::span<const std::byte> in, std::vector<std::byte>& out);
  bool done() const { return SSL_is_init_finished(ssl_.get()) == 1; }

  struct Outcome {
    Secret send{}, receive{};
    std::array<std::byte, 32> binding{};  // the connection's exporter, "EXPORTER-Channel-Binding" (RFC 9266)
    std::vector<std::byte> rest;          // came behind the handshake
  };
  Result<Outcome> Finish();  // once, when done

 private:
  class Contexts;
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  explicit Negotiation(bool dials) : dials_(dials) {}
  static int OfferKey(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, size_t* size,
                      SSL_SESSION** session);
  static int FindKey(SSL* ssl, const unsigned char* identity, size_t size, SSL_SESSION** session);
  static void HearSecret(const SSL* ssl, const char* line);
  SSL_SESSION* SessionOf(const StreamKeys& keys) const;
  Status Explain() const;

  const bool dials_;
  StreamKeys keys_;
  std::string identity_;
  std::unique_ptr<SSL, Free> ssl_;
  std::optional<Secret> client_, server_;
};

}  // namespace byteps_like::tls
