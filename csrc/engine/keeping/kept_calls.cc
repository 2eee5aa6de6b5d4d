#include "csrc/engine/keeping/kept_calls.h"

#include <limits>
#include <utility>

namespace byteps_like {

void KeptCalls::OnNewLink() {
  sent_ = false;
  passed_ = 0;
}

bool KeptCalls::due() {
  if (!waits()) return false;
  const KeepCall& first = calls_.front();
  while (passed_ < first.keys.size() && has_sent_(first.keys[passed_], first.order)) ++passed_;
  return passed_ == first.keys.size();
}

void KeptCalls::Next(Outgoing& next) {
  const KeepCall& first = calls_.front();
  sent_ = true;
  next.header = {};
  next.header.type = first.type;
  next.header.key = first.keys.front();
  next.header.round = number_;
  next.header.priority = std::numeric_limits<int32_t>::max();
  next.header.aux = first.here;
  next.header.total = first.parts;
  next.header.length = static_cast<uint32_t>(first.text.size());
  next.payload = reinterpret_cast<const std::byte*>(first.text.data());
}

Status KeptCalls::OnAnswer(const Header& header, std::string payload) {
  if (header.round + 1 == number_) return {};  // it has come over an older link, too
  if (calls_.empty() || !sent_ || header.round != number_)
    return Status(Code::kCorrupt, "call " + std::to_string(header.round) + " was answered, which was not made");
  const KeepCall answered = std::move(calls_.front());
  calls_.pop_front();
  ++number_;
  OnNewLink();
  const bool failed = header.aux != 0;
  const Status how = failed ? Status(CodeFrom(header.aux), payload) : Status();
  if (!failed) answered.ticket.operation->answers[answered.ticket.index] = std::move(payload);
  sink_.Settled(answered.ticket, how, {});
  return {};
}

void KeptCalls::End(const Status& why) {
  for (const KeepCall& call : std::exchange(calls_, {})) sink_.Settled(call.ticket, why, {});
}

}  // namespace byteps_like
