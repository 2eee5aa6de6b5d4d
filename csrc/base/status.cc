#include "csrc/base/status.h"

#include <system_error>

namespace byteps_like {

Status SystemError(const std::string& what, int error_number) {
  return Status(Code::kSystem, what + ": " + std::generic_category().message(error_number));
}

}  // namespace byteps_like
