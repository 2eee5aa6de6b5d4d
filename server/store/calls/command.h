// Functions that workers call on values: on those of some tensors that lie together, one partition after the other.
// Ours are rows of commands.cc; a language above the core has those of users.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/base/status.h"
#include "csrc/wire/call.h"

namespace byteps_like {

// One partition of each tensor: as many elements, of one type (fp32, fp64 or int64). Or some rows of a table.
struct CommandRun {
  DType dtype = DType::kFloat32;
  size_t count = 0;
  size_t width = 1;                          // of a table: elements of a row
  std::span<const std::byte* const> values;  // by tensor, as they are
  std::span<std::byte* const> results;       // where those go that it writes; nullptr for the others
  const Figures& scalars;
  Figures& figures;  // what has come of it is added to these
};

// Immutable and thread-safe. A shard's thread runs it.
class Command {
 public:
  virtual ~Command() = default;
  // kInvalid: it has nothing to do with so many tensors of that type, or with the scalars.
  virtual Status Check(size_t tensors, DType dtype, const Figures& scalars) const = 0;
  virtual bool Writes(size_t tensor) const = 0;
  // Writes all of its results.
  virtual Status Run(const CommandRun& run) const = 0;
};

using CommandPointer = std::unique_ptr<const Command>;
// nullptr: there is none of that name.
using CommandFinder = std::function<CommandPointer(const std::string& name)>;

// Any thread; for the calls that come from here on.
void SetCommandFinder(CommandFinder finder);
// kInvalid, with what to do about it.
Result<CommandPointer> FindCommand(const std::string& name);

// `figure` of that name, or a new one, grows by so much.
void AddTo(Figures& figures, const std::string& name, double amount);

}  // namespace byteps_like
