// How every message of an operation's kTimeout says it.
#pragma once

#include <cstdio>
#include <string>

namespace byteps_like {

// As in "timed out after the timeout of 0.5 s": programs written for gloo or NCCL look for "timed out" or " timeout ".
inline std::string TimedOut(double seconds) {
  char text[64];
  std::snprintf(text, sizeof(text), "timed out after the timeout of %g s", seconds);
  return text;
}

}  // namespace byteps_like
