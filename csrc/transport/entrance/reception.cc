#include "csrc/transport/entrance/reception.h"

namespace byteps_like {

using namespace handshake;  // NOLINT: the messages, used all over this file

std::span<std::byte> Reception::room() {
  switch (state_) {
    case State::kHello:
      // Another version's HELLO may be shorter: the common part comes first.
      return std::span(hello_).subspan(got_, (got_ < kPreambleBytes ? kPreambleBytes : kHelloBytes) - got_);
    case State::kProof:
      return std::span(proof_).subspan(got_);
    default:
      return {};
  }
}

Result<std::optional<Answer>> Reception::Take(size_t bytes, std::span<const std::byte> binding) {
  got_ += bytes;
  binding_.assign(binding.begin(), binding.end());
  if (state_ == State::kHello && got_ == kPreambleBytes) return OnPreamble();
  if (state_ == State::kHello && got_ == kHelloBytes) return OnHello();
  if (state_ == State::kProof && got_ == kMacBytes) return OnProof();
  return std::optional<Answer>();
}

Result<std::optional<Answer>> Reception::OnPreamble() {
  const Reason reason = CheckPreamble(hello_.data());
  if (reason == Reason::kNone) return std::optional<Answer>();
  return std::optional(Unsigned(reason, reason == Reason::kVersion ? kProtocolVersion : 0));
}

Result<std::optional<Answer>> Reception::OnHello() {
  auto mac = keys_.HelloMac(hello_);
  if (!mac.ok()) return mac.status();
  const bool whole = CheckFields(hello_) == Reason::kNone;
  const bool of_this_job = whole && JobIn(hello_) == job_;
  if (!SameMac(*mac, MacIn(hello_))) {
    return std::optional(Unsigned(!whole ? Reason::kMalformed : of_this_job ? Reason::kProof : Reason::kJob));
  }
  auto answer = of_this_job ? MakeChallenge() : Refuse(whole ? Reason::kJob : Reason::kMalformed);
  if (!answer.ok()) return answer.status();
  if (of_this_job) {
    challenge_ = *answer;
    state_ = State::kProof;
    got_ = 0;
  }
  return std::optional(*answer);
}

Result<std::optional<Answer>> Reception::OnProof() {
  auto mac = keys_.ClientMac(hello_, challenge_, binding_);
  if (!mac.ok()) return mac.status();
  if (SameMac(*mac, proof_)) {
    state_ = State::kProven;
    return std::optional<Answer>();
  }
  auto refusal = Refuse(Reason::kProof);
  if (!refusal.ok()) return refusal.status();
  return std::optional(*refusal);
}

Result<Answer> Reception::Welcome() const {
  auto mac = keys_.ServerMac(hello_, challenge_, proof_, binding_);
  if (!mac.ok()) return mac.status();
  return MakeWelcome(*mac);
}

Result<Answer> Reception::Refuse(Reason reason, uint32_t detail, Role role) {
  return Sign(keys_, hello_, Unsigned(reason, detail, role));
}

Answer Reception::Unsigned(Reason reason, uint32_t detail, Role role) {
  const Answer refusal = MakeRefusal(reason, detail, role);
  state_ = State::kRefused;
  why_ = Explain(hello_, refusal);
  return refusal;
}

}  // namespace byteps_like
