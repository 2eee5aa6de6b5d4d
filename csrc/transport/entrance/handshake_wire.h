// The bytes of the handshake's messages; docs/reference/protocol.md has the same tables. Sizes are fixed: nothing that
// a stranger sends decides how much memory is taken.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "csrc/base/status.h"
#include "csrc/transport/entrance/handshake.h"
#include "csrc/transport/hmac.h"

namespace byteps_like::handshake {

inline constexpr uint32_t kMagic = 0x484C5042;  // "BPLH"
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kMacBytes = 32;
inline constexpr size_t kMaxJobBytes = 64;

// HELLO:  0 magic u32 | 4 version u16 | 6 role u8 | 7 bytes of the job's name u8 | 8 view u32 | 12 member number u32 |
//         16 shard u32 | 20 role of the dialled u8, zeros | 24 its member number u32 | 28 shard that dials u32 (zero of
//         a worker) | 32 incarnation |
//         48 job, zeros behind | 112 nonce | 144 MAC over what is before it
inline constexpr size_t kHelloBytes = 176;
inline constexpr size_t kPreambleBytes = 8;  // the part whose layout no version changes: magic and version
// Answers of the server (CHALLENGE, WELCOME, REFUSAL):  0 kind u8 | 1 reason u8 | 2 role u8 | 3 zero | 4 detail u32 |
// 8 nonce or MAC
inline constexpr size_t kAnswerBytes = 40;
// PROOF: a MAC.

using Hello = std::array<std::byte, kHelloBytes>;
using Answer = std::array<std::byte, kAnswerBytes>;
using byteps_like::Mac;

enum class Kind : uint8_t { kChallenge = 1, kWelcome = 2, kRefusal = 3 };

enum class Reason : uint8_t {
  kNone = 0,
  kMalformed = 1,    // not a HELLO, or fields out of range
  kVersion = 2,      // detail: the server's
  kJob = 3,          //
  kView = 4,         // detail: the server's
  kProof = 5,        // a MAC is wrong: another secret, or a replay
  kAddressee = 6,    // another process was dialled; role and detail: this one's, by rank
  kIncarnation = 7,  // another start of the same job
  kMember = 8,       // no member of this view has the number
};

// The two keys derived from a job's secret: one for messages before the ends know each other's incarnation, and one per
// incarnation. All MACs are kSystem if OpenSSL fails.
class Keys {
 public:
  static Result<Keys> Of(const std::string& secret);

  Result<Mac> HelloMac(const Hello& hello) const;
  Result<Mac> RefusalMac(const Hello& hello, const Answer& refusal) const;
  // Under the key of the incarnation that HELLO names. `binding`: Stream::binding.
  Result<Mac> ClientMac(const Hello& hello, const Answer& challenge, std::span<const std::byte> binding) const;
  Result<Mac> ServerMac(const Hello& hello, const Answer& challenge, const Mac& proof,
                        std::span<const std::byte> binding) const;

 private:
  Result<Mac> LinkKey(const Hello& hello) const;
  std::string secret_;
  Mac hello_key_{};
};
bool SameMac(const Mac& a, const Mac& b);  // in constant time

// Explains a refusal in words, for both ends' messages: "view 3 is over, this is view 4".
std::string Explain(const Hello& hello, const Answer& refusal);

Result<Hello> MakeHello(const Keys& keys, const Credentials& credentials, const Introduction& who);
Result<Answer> MakeChallenge();
Answer MakeWelcome(const Mac& mac);
Answer MakeRefusal(Reason reason, uint32_t detail = 0, Role role = {});  // unsigned
Result<Answer> Sign(const Keys& keys, const Hello& hello, Answer refusal);

// The first bytes alone: kNone, kMalformed or kVersion.
Reason CheckPreamble(const std::byte* bytes);
Reason CheckFields(const Hello& hello);  // kNone or kMalformed
Introduction IntroductionIn(const Hello& hello);
uint32_t ViewIn(const Hello& hello);
Incarnation IncarnationIn(const Hello& hello);
uint16_t VersionIn(const std::byte* hello);
std::string JobIn(const Hello& hello);  // verbatim; of a HELLO whose fields were checked
Mac MacIn(const Hello& hello);

Kind KindOf(const Answer& answer);
Reason ReasonIn(const Answer& answer);
Mac MacIn(const Answer& answer);

}  // namespace byteps_like::handshake
