// A connection that has come in, until it is admitted as a link or has ended: first it is recognised by what it says,
// then there is a handshake with it, or it is passed on. Without a loop; its owner calls Advance after each event.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/transport/entrance/guests.h"
#include "csrc/transport/entrance/handshake.h"
#include "csrc/transport/entrance/reception.h"
#include "csrc/transport/stream.h"

namespace byteps_like {

struct Admitted {
  uint32_t rank = 0;  // of a worker; of a server's shard its place
  uint32_t shard = 0;
  uint32_t view = 0;
  uint64_t number = 0;  // counts connections in the order of their acceptance
};

class Visitor {
 public:
  // Decides on a visitor that has proven the secret, by Conclude; or not yet.
  using Judge = std::function<Status(Visitor&)>;

  Visitor(std::unique_ptr<Stream> stream, const handshake::Keys& keys, const std::string& job, uint64_t number);

  // Looks what it is; false: that can't be seen yet. What `guests` expect is no link; a link has these `keys`.
  Result<bool> Recognise(const Guests& guests, const StreamKeys& keys);
  Opening opening() const { return opening_; }
  Status BecomeGuest(Guests& guests);  // its descriptors are others from here on
  Passage* passage() const { return passage_.get(); }

  // Goes on with the handshake. True: it is in. Otherwise `why` it has to go, or ok if there is nothing to do now.
  bool Converse(const Judge& judge, Status& why);
  const Reception& reception() const { return reception_; }
  Reception& reception() { return reception_; }
  Status Conclude(Result<handshake::Answer> word);  // of a judge: the last word
  void Admit(const Admitted& as) { admitted_ = as; }
  const Admitted& admitted() const { return admitted_; }
  std::unique_ptr<Stream> TakeStream() { return std::move(stream_); }

  bool unproven() const;  // and counted
  bool silent() const { return unproven() && passage_ == nullptr && reception_.state() == Reception::State::kHello; }
  bool early() const { return reception_.state() == Reception::State::kProven && !judged_; }
  size_t descriptors() const { return passage_ != nullptr ? Passage::kDescriptors : 1; }
  std::vector<int> fds() const { return passage_ != nullptr ? passage_->fds() : stream_->fds(); }
  std::string peer() const { return passage_ != nullptr ? passage_->visitor() : stream_->peer(); }
  const std::string& source() const { return source_; }
  uint64_t number() const { return number_; }
  Deadline deadline() const;  // until which it has to get on

 private:
  Status Hear(bool& more);
  Status Say();

  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Passage> passage_;  // in place of the stream, of a guest
  Opening opening_ = Opening::kLink;
  bool recognised_ = false;
  Reception reception_;
  const std::string source_;
  const uint64_t number_;
  const Deadline since_ = Clock::now();
  std::vector<std::byte> unsaid_;
  bool judged_ = false;  // what is unsaid is the last word
  Admitted admitted_;
};

}  // namespace byteps_like
