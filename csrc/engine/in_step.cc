#include "csrc/engine/in_step.h"

#include <algorithm>

namespace byteps_like {

size_t InStep::Add() {
  links_.emplace_back();
  return links_.size() - 1;
}

void InStep::Place(size_t link, int64_t bytes) {
  links_[link].weight += bytes;
  weight_ += bytes;
}

// A link that had nothing to send has saved up no advantage.
void InStep::Wants(size_t link, int32_t priority) {
  Link& one = links_[link];
  if (!one.wants) one.done = std::max(one.done, Behind());
  one.wants = true;
  one.priority = priority;
}

void InStep::Rests(size_t link) {
  now_ = Behind();
  links_[link].wants = false;
}

double InStep::Behind() const {
  double least = 0;
  bool any = false;
  for (const Link& link : links_) {
    if (!link.wants) continue;
    least = any ? std::min(least, link.done) : link.done;
    any = true;
  }
  return any ? least : now_;
}

bool InStep::MayGo(size_t link, int64_t lead) const {
  const Link& self = links_[link];
  const double most = self.done - static_cast<double>(lead) / static_cast<double>(std::max<int64_t>(weight_, 1));
  return std::none_of(links_.begin(), links_.end(), [&](const Link& other) {
    return other.wants && other.priority >= self.priority && other.done < most;
  });
}

void InStep::Sent(size_t link, int64_t bytes) {
  Link& one = links_[link];
  one.done += static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(one.weight, 1));
}

}  // namespace byteps_like
