#include "csrc/transport/entrance/visitor.h"

#include <array>
#include <chrono>
#include <utility>

namespace byteps_like {
namespace {

constexpr auto kHelloTimeout = std::chrono::seconds(1);
constexpr auto kHandshakeTimeout = std::chrono::seconds(5);
constexpr auto kWorldTimeout = std::chrono::seconds(60);  // how long an early peer may wait

}  // namespace

Visitor::Visitor(std::unique_ptr<Stream> stream, const handshake::Keys& keys, const std::string& job, uint64_t number)
    : stream_(std::move(stream)), reception_(keys, job), source_(stream_->source()), number_(number) {}

Deadline Visitor::deadline() const {
  if (passage_ != nullptr) return Deadline::max();  // who answers it has deadlines of its own
  if (early()) return since_ + kWorldTimeout;
  return since_ + (reception_.state() == Reception::State::kHello ? Clock::duration(kHelloTimeout) : kHandshakeTimeout);
}

bool Visitor::unproven() const {
  if (source_.empty()) return false;
  return passage_ != nullptr ? !passage_->proven() : reception_.state() != Reception::State::kProven;
}

Result<bool> Visitor::Recognise(const Guests& guests, const StreamKeys& keys) {
  if (recognised_) return true;
  if (!guests.empty() && stream_->peeks()) {
    std::array<std::byte, kOpeningBytes> first;
    auto seen = stream_->Peek(first);
    if (!seen.ok()) return seen.status();
    const auto opening = OpeningOf(std::span(first).first(*seen));
    if (!opening) return false;
    if (guests.expects(*opening)) opening_ = *opening;
  }
  if (opening_ == Opening::kLink) stream_->UseKeys(keys);
  return recognised_ = true;
}

Status Visitor::BecomeGuest(Guests& guests) {
  auto inner = stream_->TakeInner();
  if (inner == nullptr) inner = std::move(stream_);
  auto passage = guests.Enter(opening_, std::move(inner));
  if (passage.ok()) passage_ = std::move(*passage);
  return passage.status();
}

bool Visitor::Converse(const Judge& judge, Status& why) {
  for (bool more = true; more;) {
    if (why = Say(); !why.ok() || !unsaid_.empty()) return false;
    if (judged_) {
      if (reception_.state() != Reception::State::kRefused) return true;
      why = Status(Code::kRefused, reception_.why());
      return false;
    }
    if (why = Hear(more); !why.ok()) return false;
    if (reception_.state() == Reception::State::kRefused) judged_ = more = true;
    if (reception_.state() != Reception::State::kProven || judged_) continue;
    if (why = judge(*this); !why.ok()) return false;
    more = more || judged_;
  }
  return false;
}

// Takes the bytes that have come; sets `more` if there were any.
Status Visitor::Hear(bool& more) {
  std::byte unasked;
  std::span<std::byte> room = reception_.room();
  const bool nothing_due = room.empty();
  if (nothing_due) room = std::span(&unasked, 1);  // the end of the stream is still to be heard
  Result<size_t> got = stream_->Read(room.data(), room.size());
  if (!got.ok()) return got.status();
  more = *got > 0;
  if (!more) return {};
  if (nothing_due) return Status(Code::kCorrupt, "it sent data before it was admitted");
  auto answer = reception_.Take(*got, stream_->binding());
  if (!answer.ok()) return answer.status();
  if (*answer) unsaid_.assign((*answer)->begin(), (*answer)->end());
  return {};
}

Status Visitor::Say() {
  while (!unsaid_.empty()) {
    const iovec piece{unsaid_.data(), unsaid_.size()};
    Result<size_t> said = stream_->Write(std::span(&piece, 1));
    if (!said.ok()) return said.status();
    if (*said == 0) break;
    unsaid_.erase(unsaid_.begin(), unsaid_.begin() + static_cast<ptrdiff_t>(*said));
  }
  return {};
}

Status Visitor::Conclude(Result<handshake::Answer> word) {
  if (!word.ok()) return word.status();
  judged_ = true;
  unsaid_.assign(word->begin(), word->end());
  return {};
}

}  // namespace byteps_like
