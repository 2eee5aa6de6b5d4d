// Processes that may have little of something: children, so that the limit is theirs alone.
#pragma once

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>

#include "tests/sanitizers.h"

namespace byteps_like::testing {

using Resource = decltype(RLIMIT_AS);

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kMapsAtWill = false;  // sanitizers take terabytes of address space for themselves
#else
inline constexpr bool kMapsAtWill = true;
#endif

inline uint64_t AddressSpace() {  // bytes that this process has mapped
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// From now on this process may have `bytes` of a resource; of address space, as many more.
inline void Allow(Resource resource, uint64_t bytes) {
  rlimit limit{};
  ::getrlimit(resource, &limit);
  limit.rlim_cur = (resource == RLIMIT_AS ? AddressSpace() : 0) + bytes;
  ::setrlimit(resource, &limit);
}

// What `body` returns in a child.
inline int InChild(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

}  // namespace byteps_like::testing
