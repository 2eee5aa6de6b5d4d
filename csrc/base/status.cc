#include "csrc/base/status.h"

#include <sys/resource.h>

#include <cerrno>
#include <system_error>

namespace byteps_like {
namespace {

// The remedy, where the text of errno doesn't name it.
std::string Remedy(int error_number) {
  if (error_number == ENFILE) return " on this host (fs.file-max)";
  if (error_number != EMFILE) return "";
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return ": this process may have " + std::to_string(limit.rlim_cur) + " (ulimit -n)";
}

bool MeansCapacity(int error_number) {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOMEM || error_number == ENOBUFS ||
         error_number == ENOSPC || error_number == EFBIG;
}

Code CodeOf(int error_number) {
  if (error_number == ECONNREFUSED) return Code::kPeerLost;
  return MeansCapacity(error_number) ? Code::kCapacity : Code::kSystem;
}

}  // namespace

Code CodeFrom(uint32_t number) {
  return number == 0 || number >= kCodeCount ? Code::kCorrupt : static_cast<Code>(number);
}

Status Failure(const Status& why) {
  return why.ok() ? Status(Code::kSystem, "a failure without a reason: " + why.message()) : why;
}

Status SystemError(const std::string& what, int error_number) {
  return Status(CodeOf(error_number),
                what + ": " + std::generic_category().message(error_number) + Remedy(error_number));
}

}  // namespace byteps_like
