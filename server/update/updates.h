// The table of updates. To add one, write a .cc in this folder, and a row in updates.cc (docs/how-to/add-an-update.md).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compression/spec.h"
#include "csrc/base/status.h"
#include "server/update/update.h"

namespace byteps_like {

// The update that `spec` (canonical: all keys) describes. kInvalid says what is wrong with it.
Result<UpdatePointer> MakeUpdate(std::string_view spec);

std::vector<std::string> UpdateNames();

// Each update's file defines one of these. Kind's constructor takes the keys from the spec.
using UpdateMaker = Result<UpdatePointer> (*)(CodecSpec& spec);

template <typename Kind>
Result<UpdatePointer> Made(CodecSpec& spec) {
  auto update = std::make_unique<const Kind>(spec);
  const Status done = spec.Done();
  if (!done.ok()) return done;
  return UpdatePointer(std::move(update));
}

}  // namespace byteps_like
