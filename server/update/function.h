// Functions of users: what a language above the core does to a value with a gradient. The update `function` runs one,
// on the thread of the key's shard. Servers find them by name.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "csrc/base/status.h"
#include "server/update/update.h"

namespace byteps_like {

class ServerFunction {
 public:
  virtual ~ServerFunction() = default;
  // Elements of state, zeros at first. 0 where that can't be found out: Run says why.
  virtual size_t StateCount(const ValueShape& shape) const = 0;
  // Changes value and state in place. An error ends the job.
  virtual Status Run(const UpdateCall& call) const = 0;
};

// nullptr: there is none of that name.
using FunctionFinder = std::function<std::unique_ptr<const ServerFunction>(const std::string& name)>;

// Any thread; for the functions that are asked for from here on.
void SetFunctionFinder(FunctionFinder finder);

}  // namespace byteps_like
