#include "csrc/transport/handshake_wire.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "csrc/wire/bytes.h"

namespace byteps_like::handshake {
namespace {

enum HelloPlace : size_t {
  kMagicAt = 0,
  kVersionAt = 4,
  kRoleAt = 6,
  kJobLengthAt = 7,
  kEpochAt = 8,
  kRankAt = 12,
  kShardAt = 16,
  kZeroAt = 20,
  kJobAt = 24,
  kNonceAt = 88,
};
enum AnswerPlace : size_t { kKindAt = 0, kReasonAt = 1, kDetailAt = 4, kBodyAt = 8 };

static_assert(kJobAt + kMaxJobBytes == kNonceAt && kNonceAt + kNonceBytes == kHelloBytes);
static_assert(kBodyAt + kNonceBytes == kAnswerBytes && kNonceBytes == kMacBytes);

Status RandomBytes(std::byte* out, size_t size) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(out), static_cast<int>(size)) == 1) return {};
  return Status(Code::kSystem, "OpenSSL has no random bytes");
}

Answer MakeAnswer(Kind kind, Reason reason, uint32_t detail) {
  Answer answer{};
  answer[kKindAt] = static_cast<std::byte>(kind);
  answer[kReasonAt] = static_cast<std::byte>(reason);
  PutLittle(answer.data() + kDetailAt, detail);
  return answer;
}

Result<Mac> HmacSha256(const std::string& secret, std::string_view label,
                       std::initializer_list<std::span<const std::byte>> parts) {
  std::vector<unsigned char> text(label.begin(), label.end());
  for (const auto part : parts) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(part.data());
    text.insert(text.end(), bytes, bytes + part.size());
  }
  Mac mac;
  unsigned int size = 0;
  const auto* made = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), text.data(), text.size(),
                          reinterpret_cast<unsigned char*>(mac.data()), &size);
  if (made == nullptr || size != kMacBytes) return Status(Code::kSystem, "OpenSSL can't compute HMAC-SHA256");
  return mac;
}

Reason CheckFields(const Hello& hello) {
  const auto role = std::to_integer<uint8_t>(hello[kRoleAt]);
  const bool known_role = role == static_cast<uint8_t>(Role::kWorker) || role == static_cast<uint8_t>(Role::kServer);
  const auto job_length = std::to_integer<size_t>(hello[kJobLengthAt]);
  if (!known_role || job_length > kMaxJobBytes) return Reason::kMalformed;
  const auto* behind = hello.data() + kJobAt + job_length;
  const bool zeros = std::all_of(behind, hello.data() + kNonceAt, [](std::byte byte) { return byte == std::byte{0}; });
  return zeros && GetLittle<uint32_t>(hello.data() + kZeroAt) == 0 ? Reason::kNone : Reason::kMalformed;
}

std::string_view RawJobIn(const Hello& hello) {
  return {reinterpret_cast<const char*>(hello.data()) + kJobAt, std::to_integer<size_t>(hello[kJobLengthAt])};
}

}  // namespace

std::string Explain(Reason reason, uint32_t asked, uint32_t detail) {
  switch (reason) {
    case Reason::kVersion:
      return "protocol version " + std::to_string(asked) + ", the server speaks " + std::to_string(detail) +
             ": install the same release everywhere";
    case Reason::kJob:
      return "the server belongs to another job";
    case Reason::kEpoch:
      return "epoch " + std::to_string(asked) + ", the server is in epoch " + std::to_string(detail);
    case Reason::kProof:
      return "the proof is wrong: another secret, or a replayed exchange";
    default:
      return "malformed handshake";
  }
}

Result<Hello> MakeHello(const Credentials& credentials, const PeerIdentity& self) {
  Hello hello{};
  PutLittle(hello.data() + kMagicAt, kMagic);
  PutLittle(hello.data() + kVersionAt, kProtocolVersion);
  hello[kRoleAt] = static_cast<std::byte>(self.role);
  hello[kJobLengthAt] = static_cast<std::byte>(credentials.job.size());
  PutLittle(hello.data() + kEpochAt, credentials.epoch);
  PutLittle(hello.data() + kRankAt, self.rank);
  PutLittle(hello.data() + kShardAt, self.shard);
  std::memcpy(hello.data() + kJobAt, credentials.job.data(), credentials.job.size());
  if (Status random = RandomBytes(hello.data() + kNonceAt, kNonceBytes); !random.ok()) return random;
  return hello;
}

Result<Answer> MakeChallenge() {
  Answer answer = MakeAnswer(Kind::kChallenge, Reason::kNone, 0);
  if (Status random = RandomBytes(answer.data() + kBodyAt, kNonceBytes); !random.ok()) return random;
  return answer;
}

Answer MakeWelcome(const Mac& mac) {
  Answer answer = MakeAnswer(Kind::kWelcome, Reason::kNone, 0);
  std::copy(mac.begin(), mac.end(), answer.begin() + kBodyAt);
  return answer;
}

Answer MakeRefusal(Reason reason, uint32_t detail) { return MakeAnswer(Kind::kRefusal, reason, detail); }

Reason CheckPreamble(const std::byte* bytes) {
  if (GetLittle<uint32_t>(bytes + kMagicAt) != kMagic) return Reason::kMalformed;
  return VersionIn(bytes) == kProtocolVersion ? Reason::kNone : Reason::kVersion;
}

Reason CheckHello(const Hello& hello, const Credentials& credentials) {
  if (const Reason fields = CheckFields(hello); fields != Reason::kNone) return fields;
  if (RawJobIn(hello) != credentials.job) return Reason::kJob;
  return EpochIn(hello) == credentials.epoch ? Reason::kNone : Reason::kEpoch;
}

PeerIdentity IdentityIn(const Hello& hello) {
  PeerIdentity identity;
  identity.role = static_cast<Role>(hello[kRoleAt]);
  identity.rank = GetLittle<uint32_t>(hello.data() + kRankAt);
  identity.shard = GetLittle<uint32_t>(hello.data() + kShardAt);
  return identity;
}

uint32_t EpochIn(const Hello& hello) { return GetLittle<uint32_t>(hello.data() + kEpochAt); }

uint16_t VersionIn(const std::byte* hello) { return GetLittle<uint16_t>(hello + kVersionAt); }

std::string JobIn(const Hello& hello) {
  std::string job(RawJobIn(hello));
  std::replace_if(job.begin(), job.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return job;
}

Kind KindOf(const Answer& answer) { return static_cast<Kind>(answer[kKindAt]); }
Reason ReasonIn(const Answer& answer) { return static_cast<Reason>(answer[kReasonAt]); }
uint32_t DetailIn(const Answer& answer) { return GetLittle<uint32_t>(answer.data() + kDetailAt); }

Mac MacIn(const Answer& answer) {
  Mac mac;
  std::copy(answer.begin() + kBodyAt, answer.end(), mac.begin());
  return mac;
}

Result<Mac> ClientMac(const std::string& secret, const Hello& hello, const Answer& challenge) {
  return HmacSha256(secret, "byteps_like client", {hello, challenge});
}

Result<Mac> ServerMac(const std::string& secret, const Hello& hello, const Answer& challenge, const Mac& proof) {
  return HmacSha256(secret, "byteps_like server", {hello, challenge, proof});
}

bool SameMac(const Mac& a, const Mac& b) { return CRYPTO_memcmp(a.data(), b.data(), kMacBytes) == 0; }

}  // namespace byteps_like::handshake
