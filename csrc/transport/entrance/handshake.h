// The link handshake: both ends prove that they hold the job's secret, without sending it, and agree on their
// identities.
//
//   client -> HELLO     magic, version, job, incarnation, view, who dials and whom, shard, client nonce; a MAC over it
//   server -> CHALLENGE server nonce                                             | REFUSAL code, reason
//   client -> PROOF     HMAC-SHA256(link key, "byteps_like client" | HELLO | CHALLENGE)
//   server -> WELCOME   HMAC-SHA256(link key, "byteps_like server" | HELLO | CHALLENGE | PROOF) | REFUSAL
//
// The MAC in HELLO keeps strangers away at the cost of one hash; a fresh server nonce makes a recorded exchange
// worthless; the link key is made of the secret and the incarnation, so another start of the same job has another one.
// MACs and random bytes are OpenSSL's, comparison is constant-time. Messages have fixed sizes, which are in
// docs/reference/protocol.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "csrc/transport/stream.h"

namespace byteps_like {

inline constexpr uint16_t kProtocolVersion = 2;
inline constexpr size_t kMinSecretBytes = 32;

using Incarnation = std::array<std::byte, 16>;  // of the job: drawn by the scheduler when it starts

struct Credentials {
  std::string job;     // at most 64 bytes; names the job, not secret
  std::string secret;  // 32 bytes or more
  uint32_t view = 0;   // number of the membership
  Incarnation incarnation{};
};

// kInvalid for a name that is too long or a secret that is too short.
Status CheckCredentials(const std::string& job, const std::string& secret);

enum class Role : uint8_t { kWorker = 1, kServer = 2 };

struct MemberId {
  Role role = Role::kWorker;
  uint32_t number = 0;  // the member number: never used twice in an incarnation
  bool operator==(const MemberId&) const = default;
};

struct Introduction {
  MemberId from, to;
  uint32_t shard = 0;       // which shard of the server the link is for; between workers: which way
  uint32_t from_shard = 0;  // which shard of a server dials
};

// How an attempt to get in has ended.
struct Meeting {
  Status status;        // kRefused with the reason, kTimeout, or the stream's failure
  bool certain = true;  // false: an unsigned refusal, perhaps by an impostor: worth another try
};

// The dialling end; blocks until done, refused or late.
Meeting Meet(Stream& stream, const Credentials& credentials, const Introduction& who, Deadline deadline);

}  // namespace byteps_like
