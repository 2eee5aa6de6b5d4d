#include "csrc/transport/entrance/dial.h"

#include <algorithm>
#include <utility>

namespace byteps_like {

Dialled Dial(const std::string& url, const Credentials& credentials, const Introduction& who, Deadline deadline) {
  constexpr auto kOneTry = std::chrono::seconds(2);
  auto stream = Connect(url, std::min(deadline, Clock::now() + kOneTry));
  if (!stream.ok()) return {nullptr, stream.status()};
  const Meeting met = Meet(**stream, credentials, who, std::min(deadline, Clock::now() + kOneTry));
  if (!met.status.ok()) return {nullptr, met.status, met.status.code() == Code::kRefused && met.certain};
  return {std::move(*stream), Status()};
}

}  // namespace byteps_like
