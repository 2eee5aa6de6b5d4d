// The text of a store key's spec: a line each for its policy, its way of combining and its update, and those that only
// some have.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "csrc/base/status.h"
#include "server/store/filters/filters.h"
#include "server/store/store_key.h"

namespace byteps_like {

struct SpecTerms {
  std::shared_ptr<const StoreRules> rules;
  std::shared_ptr<const Filters> filters;
  uint32_t replicas = 1;  // servers that have the value, as far as there are so many
};

Result<SpecTerms> ParseSpec(std::string_view text);  // kInvalid
bool IsOfRows(std::string_view text);                // it is that of a table
std::string PolicyIn(std::string_view text);         // of one that was parsed

}  // namespace byteps_like
