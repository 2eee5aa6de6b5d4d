// One end of a TLS 1.3 connection by libssl, without I/O: sealed bytes come in by one window and go out by another.
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
#include <span>
#include <string>

#include "csrc/base/status.h"
#include "csrc/transport/stream.h"
#include "csrc/transport/tls/window.h"

namespace byteps_like::tls {

inline constexpr size_t kRecordBytes = 16u << 10;  // of content, at most

class Connection {
 public:
  static Status IsViable();  // why this OpenSSL can't do it
  static Result<std::unique_ptr<Connection>> Begin(const StreamKeys& keys, bool dials);

  Window& incoming() { return in_; }   // has come
  Window& outgoing() { return out_; }  // is to be sent, also after a failure

  // Goes on with the handshake. kRefused if the other end has proven no such key, or does not speak TLS.
  Status Step();
  bool done() const { return SSL_is_init_finished(ssl_.get()) == 1; }

  // What follows is for connections that are done.
  using Binding = std::array<std::byte, 32>;
  Result<Binding> Export() const;  // the connection's exporter, "EXPORTER-Channel-Binding" (RFC 9266)

  // Opens what has come, at most one record of it. 0: the next is not whole yet. kClosed after close_notify, kPeerLost
  // after another alert, kCorrupt if it is not what the peer sent next.
  Result<size_t> Read(std::span<std::byte> room);
  Status Write(std::span<const std::byte> content);  // one record, of kRecordBytes at most
  Status UpdateKey();                                // of what is sent, before the next record
  void Close();                                      // close_notify

 private:
  class Contexts;
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  explicit Connection(bool dials) : dials_(dials) {}
  static int OfferKey(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, size_t* size,
                      SSL_SESSION** session);
  static int FindKey(SSL* ssl, const unsigned char* identity, size_t size, SSL_SESSION** session);
  class Pipe;
  Status WhyNothingCame(int result) const;
  SSL_SESSION* SessionOf(const StreamKeys& keys) const;
  Status Explain() const;

  const bool dials_;
  StreamKeys keys_;
  std::string identity_;
  Window in_, out_;
  std::unique_ptr<SSL, Free> ssl_;
};

}  // namespace byteps_like::tls
