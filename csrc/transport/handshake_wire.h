// The bytes of the handshake's messages; docs/protocol.md has the same tables. Sizes are fixed: nothing that a stranger
// sends decides how much memory is taken.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "csrc/base/status.h"
#include "csrc/transport/handshake.h"

namespace byteps_like::handshake {

inline constexpr uint32_t kMagic = 0x484C5042;  // "BPLH"
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kMacBytes = 32;
inline constexpr size_t kMaxJobBytes = 64;
inline constexpr size_t kMinSecretBytes = 32;

// HELLO:  0 magic u32 | 4 version u16 | 6 role u8 | 7 bytes of the job's name u8 | 8 epoch u32 | 12 rank u32 |
//         16 shard u32 | 20 zero u32 | 24 job, zeros behind | 88 nonce
inline constexpr size_t kHelloBytes = 120;
inline constexpr size_t kPreambleBytes = 8;  // the part whose layout no version changes: magic and version
// Answers of the server (CHALLENGE, WELCOME, REFUSAL):  0 kind u8 | 1 reason u8 | 2 zero u16 | 4 detail u32 | 8 nonce
// or MAC
inline constexpr size_t kAnswerBytes = 40;
// PROOF: a MAC.

using Hello = std::array<std::byte, kHelloBytes>;
using Answer = std::array<std::byte, kAnswerBytes>;
using Mac = std::array<std::byte, kMacBytes>;

enum class Kind : uint8_t { kChallenge = 1, kWelcome = 2, kRefusal = 3 };

enum class Reason : uint8_t {
  kNone = 0,
  kMalformed = 1,  // not a HELLO, or fields out of range
  kVersion = 2,    // detail: the server's
  kJob = 3,
  kEpoch = 4,  // detail: the server's
  kProof = 5,  // the MAC is wrong: another secret, or a replay
};

// What a refusal means, for both ends' messages: "epoch 3 is over, this is epoch 4".
std::string Explain(Reason reason, uint32_t asked, uint32_t detail);

Result<Hello> MakeHello(const Credentials& credentials, const PeerIdentity& self);
Result<Answer> MakeChallenge();
Answer MakeWelcome(const Mac& mac);
Answer MakeRefusal(Reason reason, uint32_t detail);

// The first bytes alone: kNone, kMalformed or kVersion.
Reason CheckPreamble(const std::byte* bytes);
// The whole message against what this server serves.
Reason CheckHello(const Hello& hello, const Credentials& credentials);
PeerIdentity IdentityIn(const Hello& hello);
uint32_t EpochIn(const Hello& hello);
uint16_t VersionIn(const std::byte* hello);
std::string JobIn(const Hello& hello);  // printable

Kind KindOf(const Answer& answer);
Reason ReasonIn(const Answer& answer);
uint32_t DetailIn(const Answer& answer);
Mac MacIn(const Answer& answer);

// kSystem if OpenSSL fails.
Result<Mac> ClientMac(const std::string& secret, const Hello& hello, const Answer& challenge);
Result<Mac> ServerMac(const std::string& secret, const Hello& hello, const Answer& challenge, const Mac& proof);
bool SameMac(const Mac& a, const Mac& b);  // in constant time

}  // namespace byteps_like::handshake
