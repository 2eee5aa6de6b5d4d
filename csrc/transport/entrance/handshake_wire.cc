#include "csrc/transport/entrance/handshake_wire.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "csrc/base/entropy.h"
#include "csrc/transport/hmac.h"
#include "csrc/wire/bytes.h"

namespace byteps_like::handshake {
namespace {

enum HelloPlace : size_t {
  kMagicAt = 0,
  kVersionAt = 4,
  kRoleAt = 6,
  kJobLengthAt = 7,
  kViewAt = 8,
  kNumberAt = 12,
  kShardAt = 16,
  kToRoleAt = 20,
  kToNumberAt = 24,
  kFromShardAt = 28,
  kIncarnationAt = 32,
  kJobAt = 48,
  kNonceAt = 112,
  kHelloMacAt = 144,
};
enum AnswerPlace : size_t { kKindAt = 0, kReasonAt = 1, kAnswerRoleAt = 2, kDetailAt = 4, kBodyAt = 8 };

static_assert(kIncarnationAt + sizeof(Incarnation) == kJobAt && kJobAt + kMaxJobBytes == kNonceAt);
static_assert(kNonceAt + kNonceBytes == kHelloMacAt && kHelloMacAt + kMacBytes == kHelloBytes);
static_assert(kBodyAt + kNonceBytes == kAnswerBytes && kNonceBytes == kMacBytes);

Answer MakeAnswer(Kind kind, Reason reason, uint32_t detail, Role role) {
  Answer answer{};
  answer[kKindAt] = static_cast<std::byte>(kind);
  answer[kReasonAt] = static_cast<std::byte>(reason);
  answer[kAnswerRoleAt] = static_cast<std::byte>(role);
  PutLittle(answer.data() + kDetailAt, detail);
  return answer;
}

bool IsRole(std::byte byte) {
  return byte == static_cast<std::byte>(Role::kWorker) || byte == static_cast<std::byte>(Role::kServer);
}

bool AllZero(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte byte) { return byte == std::byte{0}; });
}

Mac MacAt(const std::byte* bytes) {
  Mac mac;
  std::copy_n(bytes, kMacBytes, mac.begin());
  return mac;
}

}  // namespace

Result<Keys> Keys::Of(const std::string& secret) {
  Keys keys;
  keys.secret_ = secret;
  auto key = HmacSha256(std::as_bytes(std::span(secret)), "byteps_like v2 hello");
  if (!key.ok()) return key.status();
  keys.hello_key_ = *key;
  return keys;
}

Result<Mac> Keys::LinkKey(const Hello& hello) const {
  return HmacSha256(std::as_bytes(std::span(secret_)), "byteps_like v2 link",
                    {std::span(hello).subspan<kIncarnationAt, sizeof(Incarnation)>()});
}

Result<Mac> Keys::HelloMac(const Hello& hello) const {
  return HmacSha256(hello_key_, "byteps_like hello", {std::span(hello).first<kHelloMacAt>()});
}

Result<Mac> Keys::RefusalMac(const Hello& hello, const Answer& refusal) const {
  return HmacSha256(hello_key_, "byteps_like refusal", {hello, std::span(refusal).first<kBodyAt>()});
}

Result<Mac> Keys::ClientMac(const Hello& hello, const Answer& challenge, std::span<const std::byte> binding) const {
  auto key = LinkKey(hello);
  return key.ok() ? HmacSha256(*key, "byteps_like client", {hello, challenge, binding}) : key;
}

Result<Mac> Keys::ServerMac(const Hello& hello, const Answer& challenge, const Mac& proof,
                            std::span<const std::byte> binding) const {
  auto key = LinkKey(hello);
  return key.ok() ? HmacSha256(*key, "byteps_like server", {hello, challenge, proof, binding}) : key;
}

bool SameMac(const Mac& a, const Mac& b) { return CRYPTO_memcmp(a.data(), b.data(), kMacBytes) == 0; }

std::string Explain(const Hello& hello, const Answer& refusal) {
  const auto detail = GetLittle<uint32_t>(refusal.data() + kDetailAt);
  switch (ReasonIn(refusal)) {
    case Reason::kVersion:
      return "protocol version " + std::to_string(VersionIn(hello.data())) + ", the other end speaks " +
             std::to_string(detail) + ": install the same release everywhere";
    case Reason::kJob:
      return "it belongs to another job";
    case Reason::kView:
      return "epoch " + std::to_string(ViewIn(hello)) + ", the other end is in epoch " + std::to_string(detail);
    case Reason::kProof:
      return "the proof is wrong: another secret, or a replayed exchange";
    case Reason::kAddressee:
      return std::string("you have reached ") +
             (refusal[kAnswerRoleAt] == static_cast<std::byte>(Role::kServer) ? "server " : "rank ") +
             std::to_string(detail) + ", which is not the member you dialled: two members have the same address";
    case Reason::kIncarnation:
      return "it belongs to another start of the same job: end the process that is left over";
    case Reason::kMember:
      return "there is no member " + std::to_string(IntroductionIn(hello).from.number) + " in its epoch";
    default:
      return "malformed handshake";
  }
}

Result<Hello> MakeHello(const Keys& keys, const Credentials& credentials, const Introduction& who) {
  Hello hello{};
  PutLittle(hello.data() + kMagicAt, kMagic);
  PutLittle(hello.data() + kVersionAt, kProtocolVersion);
  hello[kRoleAt] = static_cast<std::byte>(who.from.role);
  hello[kJobLengthAt] = static_cast<std::byte>(credentials.job.size());
  PutLittle(hello.data() + kViewAt, credentials.view);
  PutLittle(hello.data() + kNumberAt, who.from.number);
  PutLittle(hello.data() + kShardAt, who.shard);
  hello[kToRoleAt] = static_cast<std::byte>(who.to.role);
  PutLittle(hello.data() + kToNumberAt, who.to.number);
  PutLittle(hello.data() + kFromShardAt, who.from_shard);
  std::copy(credentials.incarnation.begin(), credentials.incarnation.end(), hello.begin() + kIncarnationAt);
  std::memcpy(hello.data() + kJobAt, credentials.job.data(), credentials.job.size());
  if (Status random = FillRandomly(std::span(hello).subspan(kNonceAt, kNonceBytes)); !random.ok()) return random;
  auto mac = keys.HelloMac(hello);
  if (!mac.ok()) return mac.status();
  std::copy(mac->begin(), mac->end(), hello.begin() + kHelloMacAt);
  return hello;
}

Result<Answer> MakeChallenge() {
  Answer answer = MakeAnswer(Kind::kChallenge, Reason::kNone, 0, {});
  if (Status random = FillRandomly(std::span(answer).subspan(kBodyAt, kNonceBytes)); !random.ok()) return random;
  return answer;
}

Answer MakeWelcome(const Mac& mac) {
  Answer answer = MakeAnswer(Kind::kWelcome, Reason::kNone, 0, {});
  std::copy(mac.begin(), mac.end(), answer.begin() + kBodyAt);
  return answer;
}

Answer MakeRefusal(Reason reason, uint32_t detail, Role role) {
  return MakeAnswer(Kind::kRefusal, reason, detail, role);
}

Result<Answer> Sign(const Keys& keys, const Hello& hello, Answer refusal) {
  auto mac = keys.RefusalMac(hello, refusal);
  if (!mac.ok()) return mac.status();
  std::copy(mac->begin(), mac->end(), refusal.begin() + kBodyAt);
  return refusal;
}

Reason CheckPreamble(const std::byte* bytes) {
  if (GetLittle<uint32_t>(bytes + kMagicAt) != kMagic) return Reason::kMalformed;
  return VersionIn(bytes) == kProtocolVersion ? Reason::kNone : Reason::kVersion;
}

Reason CheckFields(const Hello& hello) {
  const auto job_length = std::to_integer<size_t>(hello[kJobLengthAt]);
  if (!IsRole(hello[kRoleAt]) || !IsRole(hello[kToRoleAt]) || job_length > kMaxJobBytes) return Reason::kMalformed;
  const std::byte* const at = hello.data();
  const bool has_shards = hello[kRoleAt] == static_cast<std::byte>(Role::kServer);
  const bool zeros = AllZero(at + kJobAt + job_length, at + kNonceAt) &&
                     AllZero(at + kToRoleAt + 1, at + kToNumberAt) &&
                     (has_shards || AllZero(at + kFromShardAt, at + kIncarnationAt));
  return zeros ? Reason::kNone : Reason::kMalformed;
}

Introduction IntroductionIn(const Hello& hello) {
  Introduction who;
  who.from = {static_cast<Role>(hello[kRoleAt]), GetLittle<uint32_t>(hello.data() + kNumberAt)};
  who.to = {static_cast<Role>(hello[kToRoleAt]), GetLittle<uint32_t>(hello.data() + kToNumberAt)};
  who.shard = GetLittle<uint32_t>(hello.data() + kShardAt);
  who.from_shard = GetLittle<uint32_t>(hello.data() + kFromShardAt);
  return who;
}

uint32_t ViewIn(const Hello& hello) { return GetLittle<uint32_t>(hello.data() + kViewAt); }

Incarnation IncarnationIn(const Hello& hello) {
  Incarnation incarnation;
  std::copy_n(hello.begin() + kIncarnationAt, incarnation.size(), incarnation.begin());
  return incarnation;
}

uint16_t VersionIn(const std::byte* hello) { return GetLittle<uint16_t>(hello + kVersionAt); }

std::string JobIn(const Hello& hello) {
  return {reinterpret_cast<const char*>(hello.data()) + kJobAt, std::to_integer<size_t>(hello[kJobLengthAt])};
}

Mac MacIn(const Hello& hello) { return MacAt(hello.data() + kHelloMacAt); }

Kind KindOf(const Answer& answer) { return static_cast<Kind>(answer[kKindAt]); }
Reason ReasonIn(const Answer& answer) { return static_cast<Reason>(answer[kReasonAt]); }
Mac MacIn(const Answer& answer) { return MacAt(answer.data() + kBodyAt); }

}  // namespace byteps_like::handshake
