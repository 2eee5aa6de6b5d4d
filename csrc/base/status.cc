#include "csrc/base/status.h"

#include <system_error>

namespace byteps_like {

Code CodeFrom(uint32_t number) {
  return number == 0 || number >= kCodeCount ? Code::kCorrupt : static_cast<Code>(number);
}

Status Failure(const Status& why) {
  return why.ok() ? Status(Code::kSystem, "a failure without a reason: " + why.message()) : why;
}

Status SystemError(const std::string& what, int error_number) {
  return Status(Code::kSystem, what + ": " + std::generic_category().message(error_number));
}

}  // namespace byteps_like
