// The table of policies. To add one, write a file in this folder for its new parts, and a row in policies.cc
// (docs/how-to/add-a-policy.md).
#pragma once

#include <span>

#include "server/policy/policy.h"

namespace byteps_like {

std::span<const PolicyRow> Policies();
// The first row of the table that opens rounds of these terms; nullptr: none does.
const PolicyRow* FindPolicy(std::span<const PolicyRow> table, const Terms& terms);

}  // namespace byteps_like
