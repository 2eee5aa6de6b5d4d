#include "csrc/transport/entrance/handshake.h"

#include "csrc/transport/entrance/handshake_wire.h"

namespace byteps_like {
namespace {

using namespace handshake;  // NOLINT: the messages, used all over this file

// A stream that encrypts refuses what has not proven its key, which may be an impostor.
Meeting Interrupted(const Stream& stream, const Status& failure) {
  return {Status(failure.code(), "handshake with " + stream.peer() + ": " + failure.message()), false};
}

Meeting Refused(const Stream& stream, const std::string& why, bool certain) {
  return {Status(Code::kRefused, "handshake with " + stream.peer() + " refused: " + why), certain};
}

// The outcome when the peer's answer is not the expected one.
Meeting Disappointed(const Stream& stream, const Keys& keys, const Hello& hello, const Answer& answer) {
  if (KindOf(answer) != Kind::kRefusal) return Refused(stream, "its answer is not one of this protocol", false);
  auto expected = keys.RefusalMac(hello, answer);
  if (!expected.ok()) return {expected.status()};
  return Refused(stream, Explain(hello, answer), SameMac(*expected, MacIn(answer)));
}

}  // namespace

Status CheckCredentials(const std::string& job, const std::string& secret) {
  if (job.size() > kMaxJobBytes) {
    return Status(Code::kInvalid, "the job's name is longer than " + std::to_string(kMaxJobBytes) + " bytes");
  }
  if (secret.size() < kMinSecretBytes) {
    return Status(Code::kInvalid, "the job's secret is shorter than " + std::to_string(kMinSecretBytes) + " bytes");
  }
  return {};
}

Meeting Meet(Stream& stream, const Credentials& credentials, const Introduction& who, Deadline deadline) {
  if (Status valid = CheckCredentials(credentials.job, credentials.secret); !valid.ok()) return {valid};
  auto keys = Keys::Of(credentials.secret);
  if (!keys.ok()) return {keys.status()};
  auto hello = MakeHello(*keys, credentials, who);
  if (!hello.ok()) return {hello.status()};
  stream.UseKeys({credentials.secret, credentials.incarnation});
  if (Status sent = WriteFull(stream, *hello, deadline); !sent.ok()) return Interrupted(stream, sent);
  Answer challenge, welcome;
  if (Status read = ReadFull(stream, challenge, deadline); !read.ok()) return Interrupted(stream, read);
  if (KindOf(challenge) != Kind::kChallenge) return Disappointed(stream, *keys, *hello, challenge);
  auto proof = keys->ClientMac(*hello, challenge, stream.binding());
  if (!proof.ok()) return {proof.status()};
  if (Status sent = WriteFull(stream, *proof, deadline); !sent.ok()) return Interrupted(stream, sent);
  if (Status read = ReadFull(stream, welcome, deadline); !read.ok()) return Interrupted(stream, read);
  if (KindOf(welcome) != Kind::kWelcome) return Disappointed(stream, *keys, *hello, welcome);
  auto expected = keys->ServerMac(*hello, challenge, *proof, stream.binding());
  if (!expected.ok()) return {expected.status()};
  if (!SameMac(*expected, MacIn(welcome))) return Refused(stream, "it does not hold the job's secret", false);
  return {};
}

}  // namespace byteps_like
