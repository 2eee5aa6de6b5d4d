// One try to get to a member of the job by one of its addresses: connected, and let in.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "csrc/transport/entrance/handshake.h"

namespace byteps_like {

inline constexpr auto kFirstPause = std::chrono::milliseconds(2);  // between tries, doubled up to:
inline constexpr auto kLongestPause = std::chrono::milliseconds(100);

struct Dialled {
  std::unique_ptr<Stream> stream;  // nullptr: `status` says why
  Status status;
  bool is_final = false;  // it was refused by who knows the secret
};

// Blocks until the deadline, or two seconds, at the most.
Dialled Dial(const std::string& url, const Credentials& credentials, const Introduction& who, Deadline deadline);

}  // namespace byteps_like
