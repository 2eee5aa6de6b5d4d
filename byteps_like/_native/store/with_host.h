// Calls Python from threads of servers.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>

#include "byteps_like/_native/events.h"

namespace byteps_like {

// What `work` returns, given a module, with the interpreter lock; or `otherwise` of what went wrong.
template <typename T, typename Work, typename Otherwise>
T WithHost(const char* module, const Work& work, const Otherwise& otherwise) {
  if (InterpreterIsEnding()) return otherwise("the interpreter is ending");
  const nanobind::gil_scoped_acquire lock;
  try {
    return work(nanobind::module_::import_(module));
  } catch (const std::exception& error) {
    return otherwise(error.what());
  }
}

}  // namespace byteps_like
