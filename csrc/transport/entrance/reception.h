// The accepting end of a handshake, without I/O, clock or thread: bytes in, answers out. The owner of the stream reads
// into `room` and says how many bytes came.
//
//   kHello --MAC right--> kProof --MAC right--> kProven: HELLO can be believed, and Welcome or Refuse is due
//     `------------------------`--> kRefused
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/transport/entrance/handshake_wire.h"

namespace byteps_like {

class Reception {
 public:
  enum class State { kHello, kProof, kProven, kRefused };

  // Both live longer. The credentials are checked.
  Reception(const handshake::Keys& keys, const std::string& job) : keys_(keys), job_(job) {}

  State state() const { return state_; }
  // Where the rest of the next message goes; empty: none is expected.
  std::span<std::byte> room();
  // `bytes` have arrived there, on a stream with this binding; returns the answer to send, if any. kSystem if OpenSSL
  // fails.
  Result<std::optional<handshake::Answer>> Take(size_t bytes, std::span<const std::byte> binding = {});

  // The contents of HELLO, from kProof on; authenticated from kProven on.
  Introduction who() const { return handshake::IntroductionIn(hello_); }
  uint32_t view() const { return handshake::ViewIn(hello_); }
  Incarnation incarnation() const { return handshake::IncarnationIn(hello_); }

  // In state kProven only.
  Result<handshake::Answer> Welcome() const;
  Result<handshake::Answer> Refuse(handshake::Reason reason, uint32_t detail = 0, Role role = {});
  const std::string& why() const { return why_; }  // it was refused

 private:
  Result<std::optional<handshake::Answer>> OnPreamble();
  Result<std::optional<handshake::Answer>> OnHello();
  Result<std::optional<handshake::Answer>> OnProof();
  handshake::Answer Unsigned(handshake::Reason reason, uint32_t detail = 0, Role role = {});

  const handshake::Keys& keys_;
  const std::string& job_;
  State state_ = State::kHello;
  size_t got_ = 0;  // of the message that is coming
  handshake::Hello hello_{};
  handshake::Answer challenge_{};
  handshake::Mac proof_{};
  std::vector<std::byte> binding_;
  std::string why_;
};

}  // namespace byteps_like
