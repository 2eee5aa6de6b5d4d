#include "csrc/transport/tls/connection.h"

#include <openssl/crypto.h>
#include <openssl/err.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "csrc/transport/hmac.h"

namespace byteps_like::tls {

namespace {

constexpr char kCipherSuite[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherNumber[] = {0x13, 0x01};
constexpr char kGroups[] = "X25519:P-256";
constexpr char kExporter[] = "EXPORTER-Channel-Binding";
constexpr size_t kIncarnationBytes = sizeof(StreamKeys::incarnation);

Status Failed(const std::string& what) {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  return Status(Code::kSystem, "OpenSSL can't " + what + (reason != nullptr ? std::string(": ") + reason : ""));
}

std::string Hexadecimal(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<size_t>(byte >> 4)];
    text += kDigits[std::to_integer<size_t>(byte & std::byte{15})];
  }
  return text;
}

bool FromHexadecimal(std::string_view text, std::span<std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (text.size() != 2 * bytes.size()) return false;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t high = kDigits.find(text[2 * i]), low = kDigits.find(text[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return false;
    bytes[i] = static_cast<std::byte>(high << 4 | low);
  }
  return true;
}

}  // namespace

// libssl's way to the two windows.
class Connection::Pipe {
 public:
  static BIO* Of(Connection& connection) {
    static BIO_METHOD* const method = Make();
    BIO* const bio = method != nullptr ? BIO_new(method) : nullptr;
    if (bio != nullptr) BIO_set_data(bio, &connection);
    if (bio != nullptr) BIO_set_init(bio, 1);
    return bio;
  }

 private:
  static BIO_METHOD* Make() {
    BIO_METHOD* const method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "byteps_like windows");
    if (method == nullptr) return nullptr;
    BIO_meth_set_read_ex(method, &Pipe::Read);
    BIO_meth_set_write_ex(method, &Pipe::Write);
    BIO_meth_set_ctrl(method, &Pipe::Control);
    return method;
  }
  static Connection& Owner(BIO* bio) { return *static_cast<Connection*>(BIO_get_data(bio)); }
  static int Read(BIO* bio, char* to, size_t size, size_t* got) {
    Window& in = Owner(bio).in_;
    *got = std::min(size, in.size());
    BIO_clear_retry_flags(bio);
    if (*got == 0) BIO_set_retry_read(bio);
    if (*got > 0) std::memcpy(to, in.data(), *got);
    in.Drop(*got);
    return *got > 0 ? 1 : 0;
  }
  static int Write(BIO* bio, const char* from, size_t size, size_t* written) {
    Owner(bio).out_.Append(from, size);
    *written = size;
    return 1;
  }
  static long Control(BIO*, int what, long, void*) { return what == BIO_CTRL_FLUSH ? 1 : 0; }
};

// What all connections of a process share, for either end.
class Connection::Contexts {
 public:
  static const Contexts& Get() {
    static const Contexts* const contexts = new Contexts;  // threads may outlive static objects
    return *contexts;
  }

  const Status& made() const { return made_; }
  SSL_CTX* of(bool dials) const { return dials ? dialling_ : accepting_; }

 private:
  Contexts() : dialling_(Make(TLS_client_method())), accepting_(Make(TLS_server_method())) {
    if (!made_.ok()) return;
    SSL_CTX_set_psk_use_session_callback(dialling_, &Connection::OfferKey);
    // A peer that ignores the offered key would have to show a certificate, and none is trusted.
    SSL_CTX_set_verify(dialling_, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_psk_find_session_callback(accepting_, &Connection::FindKey);
    SSL_CTX_set_num_tickets(accepting_, 0);
  }

  SSL_CTX* Make(const SSL_METHOD* method) {
    SSL_CTX* const context = SSL_CTX_new(method);
    const bool good = context != nullptr && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
                      SSL_CTX_set_ciphersuites(context, kCipherSuite) == 1 &&
                      SSL_CTX_set1_groups_list(context, kGroups) == 1;
    if (!good) {
      if (made_.ok()) made_ = Failed("do TLS 1.3 with AES-128-GCM");
      return context;
    }
    SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    return context;
  }

  Status made_;
  SSL_CTX* const dialling_;
  SSL_CTX* const accepting_;
};

Status Connection::IsViable() { return Contexts::Get().made(); }

Result<std::unique_ptr<Connection>> Connection::Begin(const StreamKeys& keys, bool dials) {
  ERR_clear_error();
  if (const Status& made = Contexts::Get().made(); !made.ok()) return made;
  std::unique_ptr<Connection> self(new Connection(dials));
  self->keys_ = keys;
  self->identity_ = Hexadecimal(keys.incarnation);
  self->ssl_.reset(SSL_new(Contexts::Get().of(dials)));
  BIO* const pipe = Pipe::Of(*self);
  if (self->ssl_ == nullptr || pipe == nullptr) {
    BIO_free(pipe);
    return Failed("begin a connection");
  }
  SSL_set_bio(self->ssl_.get(), pipe, pipe);
  SSL_set_app_data(self->ssl_.get(), self.get());
  dials ? SSL_set_connect_state(self->ssl_.get()) : SSL_set_accept_state(self->ssl_.get());
  return self;
}

Status Connection::Step() {
  ERR_clear_error();
  SSL* const ssl = ssl_.get();
  const int result = SSL_do_handshake(ssl);
  const int error = result == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl, result);
  Status status;
  if (error != SSL_ERROR_NONE && error != SSL_ERROR_WANT_READ) status = Explain();
  // An impostor may have chosen to go on without the key.
  if (status.ok() && done() && SSL_session_reused(ssl) != 1) return Status(Code::kRefused, "it has proven no key");
  return status;
}

Status Connection::Explain() const {
  switch (ERR_GET_REASON(ERR_peek_last_error())) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_UNEXPECTED_MESSAGE:
    case SSL_R_UNKNOWN_PROTOCOL:
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_RECORD_LENGTH_MISMATCH:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_DATA_LENGTH_TOO_LONG:
      return Status(Code::kRefused, "it does not speak TLS as we do: do all members have tls=on?");
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
      return Status(Code::kRefused, "its key of TLS is another one: another secret");
    default: {
      const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
      return Status(Code::kRefused, std::string("TLS failed: ") + (reason != nullptr ? reason : "no reason given"));
    }
  }
}

Result<Connection::Binding> Connection::Export() const {
  Binding binding;
  if (SSL_export_keying_material(ssl_.get(), reinterpret_cast<unsigned char*>(binding.data()), binding.size(),
                                 kExporter, std::strlen(kExporter), nullptr, 0, 0) != 1) {
    return Failed("export what binds a connection");
  }
  return binding;
}

Result<size_t> Connection::Read(std::span<std::byte> room) {
  ERR_clear_error();
  size_t got = 0;
  const int result = SSL_read_ex(ssl_.get(), room.data(), room.size(), &got);
  if (result == 1) return got;
  if (Status why = WhyNothingCame(result); !why.ok()) return why;
  return size_t{0};
}

Status Connection::WhyNothingCame(int result) const {
  const int error = SSL_get_error(ssl_.get(), result);
  if (error == SSL_ERROR_WANT_READ) return {};
  if (error == SSL_ERROR_ZERO_RETURN) return Status(Code::kClosed, "it closed the connection");
  const unsigned long why = ERR_peek_last_error();
  const char* const reason = ERR_reason_error_string(why);
  const std::string text = reason != nullptr ? reason : "no reason given";
  if (ERR_GET_REASON(why) > SSL_AD_REASON_OFFSET) return Status(Code::kPeerLost, "it ended TLS by an alert: " + text);
  return Status(Code::kCorrupt, "a record of TLS was changed, repeated or left out: " + text);
}

Status Connection::Write(std::span<const std::byte> content) {
  ERR_clear_error();
  size_t written = 0;
  const bool good = SSL_write_ex(ssl_.get(), content.data(), content.size(), &written) == 1;
  return good && written == content.size() ? Status() : Failed("seal a record");
}

Status Connection::UpdateKey() {
  ERR_clear_error();
  return SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1 ? Status() : Failed("change a key");
}

void Connection::Close() {
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
}

// Called by libssl ----------------------------------------------------------------------------------------------------

// nullptr if OpenSSL fails.
SSL_SESSION* Connection::SessionOf(const StreamKeys& keys) const {
  auto key = HmacSha256(std::as_bytes(std::span(keys.secret)), "byteps_like v2 link tls", {keys.incarnation});
  SSL_SESSION* const session = SSL_SESSION_new();
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(ssl_.get(), kCipherNumber);
  const bool good =
      key.ok() && session != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key->data()), key->size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  if (key.ok()) OPENSSL_cleanse(key->data(), key->size());
  if (good) return session;
  SSL_SESSION_free(session);
  return nullptr;
}

int Connection::OfferKey(SSL* ssl, const EVP_MD*, const unsigned char** identity, size_t* size, SSL_SESSION** session) {
  const auto& self = *static_cast<Connection*>(SSL_get_app_data(ssl));
  *session = self.SessionOf(self.keys_);
  *identity = reinterpret_cast<const unsigned char*>(self.identity_.data());
  *size = self.identity_.size();
  return *session != nullptr ? 1 : 0;
}

// Without a session libssl goes on as with a stranger, and fails for want of a certificate.
int Connection::FindKey(SSL* ssl, const unsigned char* identity, size_t size, SSL_SESSION** session) {
  const auto& self = *static_cast<Connection*>(SSL_get_app_data(ssl));
  StreamKeys keys = self.keys_;
  const std::string_view text(reinterpret_cast<const char*>(identity), size);
  *session = FromHexadecimal(text, keys.incarnation) ? self.SessionOf(keys) : nullptr;
  return 1;
}

}  // namespace byteps_like::tls
