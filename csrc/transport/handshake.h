// The link handshake: both ends prove that they hold the job's secret, without sending it, and agree on who they are.
//
//   client -> HELLO     magic, version, job, epoch, role, rank, shard, client nonce (32 random bytes)
//   server -> CHALLENGE server nonce                                             | REFUSAL code, reason
//   client -> PROOF     HMAC-SHA256(secret, "byteps_like client" | HELLO | CHALLENGE)
//   server -> WELCOME   HMAC-SHA256(secret, "byteps_like server" | HELLO | CHALLENGE | PROOF) | REFUSAL
//
// A fresh server nonce makes a recorded exchange worthless. MACs and random bytes are OpenSSL's, comparison is
// constant-time. Messages have fixed sizes; docs/protocol.md has the bytes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "csrc/transport/stream.h"

namespace byteps_like {

inline constexpr uint16_t kProtocolVersion = 1;

struct Credentials {
  std::string job;     // at most 64 bytes; names the job, not secret
  std::string secret;  // 32 bytes or more
  uint32_t epoch = 0;
};

enum class Role : uint8_t { kWorker = 1, kServer = 2 };

struct PeerIdentity {
  Role role = Role::kWorker;
  uint32_t rank = 0;
  uint32_t shard = 0;  // which shard of the server the link is for; between workers: which way
};

// Both block until done, refused (kRefused with the reason) or late (kTimeout). The server logs each refusal.
Status ClientHandshake(Stream& stream, const Credentials& credentials, const PeerIdentity& self, Deadline deadline);
Result<PeerIdentity> ServerHandshake(Stream& stream, const Credentials& credentials, Deadline deadline);

}  // namespace byteps_like
