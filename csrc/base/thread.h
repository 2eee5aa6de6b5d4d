// Threads that may not be had: a limit of processes (ulimit -u, a container's pids) or of memory is an error of the
// operation that wants one, not the end of the process.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "csrc/base/status.h"

namespace byteps_like {

// kCapacity with what was wanted and why it can't be had.
template <typename Body>
Result<std::thread> StartThread(const std::string& what, Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    return Status(Code::kCapacity, "no thread " + what + ": " + error.code().message() +
                                       " (ulimit -u, or the pids limit of the container)");
  }
}

}  // namespace byteps_like
