#include "csrc/transport/handshake.h"

#include "csrc/base/log.h"
#include "csrc/transport/handshake_wire.h"

namespace byteps_like {
namespace {

using namespace handshake;  // NOLINT: the messages, used all over this file

Status CheckCredentials(const Credentials& credentials) {
  if (credentials.job.size() > kMaxJobBytes) {
    return Status(Code::kInvalid, "the job's name is longer than " + std::to_string(kMaxJobBytes) + " bytes");
  }
  if (credentials.secret.size() < kMinSecretBytes) {
    return Status(Code::kInvalid, "the job's secret is shorter than " + std::to_string(kMinSecretBytes) + " bytes");
  }
  return {};
}

Status During(const Stream& stream, const Status& failure) {
  return Status(failure.code(), "handshake with " + stream.peer() + ": " + failure.message());
}

Status Refused(const Stream& stream, const std::string& why) {
  return Status(Code::kRefused, "handshake with " + stream.peer() + " refused: " + why);
}

// Reads one answer of the server; a refusal becomes kRefused with its reason.
Result<Answer> ReadAnswer(Stream& stream, Kind expected, uint32_t epoch, Deadline deadline) {
  Answer answer;
  if (Status read = ReadFull(stream, answer, deadline); !read.ok()) return During(stream, read);
  if (KindOf(answer) == expected) return answer;
  if (KindOf(answer) != Kind::kRefusal) return Refused(stream, "it answers with something else");
  const Reason reason = ReasonIn(answer);
  const uint32_t asked = reason == Reason::kVersion ? kProtocolVersion : epoch;
  return Refused(stream, Explain(reason, asked, DetailIn(answer)));
}

// Tells the client why, best effort, and the log who and why.
Status Refuse(Stream& stream, Reason reason, uint32_t asked, uint32_t detail, Deadline deadline,
              const std::string& who = "") {
  const Answer refusal = MakeRefusal(reason, detail);
  const Status told = WriteFull(stream, refusal, deadline);
  Status status = Refused(stream, Explain(reason, asked, detail) + who + (told.ok() ? "" : " (could not tell it)"));
  Log(LogLevel::kWarning, status.message());
  return status;
}

Status Failed(const Stream& stream, const Status& failure) {
  Status status = During(stream, failure);
  Log(LogLevel::kWarning, status.message());
  return status;
}

std::string Who(const Hello& hello) {
  const PeerIdentity identity = IdentityIn(hello);
  return std::string(" (it says: ") + (identity.role == Role::kWorker ? "worker " : "server ") +
         std::to_string(identity.rank) + " of job \"" + JobIn(hello) + "\")";
}

Result<Hello> ReadHello(Stream& stream, const Credentials& credentials, Deadline deadline) {
  Hello hello;
  const std::span<std::byte> all(hello);
  if (Status read = ReadFull(stream, all.first(kPreambleBytes), deadline); !read.ok()) return Failed(stream, read);
  if (const Reason reason = CheckPreamble(hello.data()); reason != Reason::kNone) {
    return Refuse(stream, reason, VersionIn(hello.data()), kProtocolVersion, deadline);
  }
  if (Status read = ReadFull(stream, all.subspan(kPreambleBytes), deadline); !read.ok()) return Failed(stream, read);
  const Reason reason = CheckHello(hello, credentials);
  if (reason == Reason::kNone) return hello;
  const std::string who = reason == Reason::kMalformed ? "" : Who(hello);
  return Refuse(stream, reason, EpochIn(hello), credentials.epoch, deadline, who);
}

}  // namespace

Status ClientHandshake(Stream& stream, const Credentials& credentials, const PeerIdentity& self, Deadline deadline) {
  if (Status valid = CheckCredentials(credentials); !valid.ok()) return valid;
  auto hello = MakeHello(credentials, self);
  if (!hello.ok()) return hello.status();
  if (Status sent = WriteFull(stream, *hello, deadline); !sent.ok()) return During(stream, sent);
  auto challenge = ReadAnswer(stream, Kind::kChallenge, credentials.epoch, deadline);
  if (!challenge.ok()) return challenge.status();
  auto proof = ClientMac(credentials.secret, *hello, *challenge);
  if (!proof.ok()) return proof.status();
  if (Status sent = WriteFull(stream, *proof, deadline); !sent.ok()) return During(stream, sent);
  auto welcome = ReadAnswer(stream, Kind::kWelcome, credentials.epoch, deadline);
  if (!welcome.ok()) return welcome.status();
  auto expected = ServerMac(credentials.secret, *hello, *challenge, *proof);
  if (!expected.ok()) return expected.status();
  if (!SameMac(*expected, MacIn(*welcome))) return Refused(stream, "it does not hold the job's secret");
  return {};
}

Result<PeerIdentity> ServerHandshake(Stream& stream, const Credentials& credentials, Deadline deadline) {
  if (Status valid = CheckCredentials(credentials); !valid.ok()) return valid;
  auto hello = ReadHello(stream, credentials, deadline);
  if (!hello.ok()) return hello.status();
  auto challenge = MakeChallenge();
  if (!challenge.ok()) return challenge.status();
  if (Status sent = WriteFull(stream, *challenge, deadline); !sent.ok()) return Failed(stream, sent);
  Mac proof;
  if (Status read = ReadFull(stream, proof, deadline); !read.ok()) return Failed(stream, read);
  auto expected = ClientMac(credentials.secret, *hello, *challenge);
  if (!expected.ok()) return expected.status();
  if (!SameMac(*expected, proof)) return Refuse(stream, Reason::kProof, 0, 0, deadline, Who(*hello));
  auto mac = ServerMac(credentials.secret, *hello, *challenge, proof);
  if (!mac.ok()) return mac.status();
  const Answer welcome = MakeWelcome(*mac);
  if (Status sent = WriteFull(stream, welcome, deadline); !sent.ok()) return Failed(stream, sent);
  return IdentityIn(*hello);
}

}  // namespace byteps_like
