// A client of the handshake, built by hand from docs/reference/protocol.md: none of our code lies between it and the
// server.
#pragma once

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/socket.h>

#include <string>

#include "csrc/base/fd.h"

namespace byteps_like::testing {

class RawClient {
 public:
  explicit RawClient(const std::string& url) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    const timeval limit{10, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  void Send(const std::string& bytes) {
    REQUIRE(::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  }
  std::string Receive(size_t size) {  // fewer at the end of the stream
    std::string bytes(size, '\0');
    const ssize_t got = ::recv(fd_.get(), bytes.data(), size, MSG_WAITALL);
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }
  void Close() { fd_.Reset(); }

 private:
  Fd fd_;
};

inline std::string Little(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

inline std::string Hmac(const std::string& key, const std::string& text) {
  unsigned char mac[32];
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), mac, &size);
  return std::string(reinterpret_cast<char*>(mac), size);
}

// What a HELLO says, field by field; a worker that dials a server unless told otherwise.
struct RawHello {
  std::string secret = std::string(32, 's');
  std::string job = "the-job";
  std::string incarnation = std::string(16, 'i');
  uint16_t version = 2;
  uint8_t role = 1, to_role = 2;
  uint32_t view = 7, member = 5, shard = 0, to = 9;
  std::string nonce = std::string(32, 'n');

  std::string bytes() const {
    std::string name = job;
    name.resize(64);
    const std::string signed_part = "BPLH" + Little(version, 2) + Little(role, 1) + Little(job.size(), 1) +
                                    Little(view, 4) + Little(member, 4) + Little(shard, 4) + Little(to_role, 4) +
                                    Little(to, 4) + Little(0, 4) + incarnation + name + nonce;
    return signed_part + Hmac(Hmac(secret, "byteps_like v2 hello"), "byteps_like hello" + signed_part);
  }
  std::string link_key() const { return Hmac(secret, "byteps_like v2 link" + incarnation); }
  std::string Proof(const std::string& challenge) const {
    return Hmac(link_key(), "byteps_like client" + bytes() + challenge);
  }
  std::string Welcome(const std::string& challenge) const {
    return Hmac(link_key(), "byteps_like server" + bytes() + challenge + Proof(challenge));
  }
  bool Signed(const std::string& refusal) const {
    const std::string mac =
        Hmac(Hmac(secret, "byteps_like v2 hello"), "byteps_like refusal" + bytes() + refusal.substr(0, 8));
    return refusal.substr(8) == mac;
  }
};

// The refusal's reason, or 0 if the answer is something else.
inline int RefusalReason(const std::string& answer) {
  return answer.size() == 40 && answer[0] == 3 ? static_cast<int>(answer[1]) : 0;
}

}  // namespace byteps_like::testing
