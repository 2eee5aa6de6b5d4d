#include "csrc/gpu/kernel_table.h"

namespace byteps_like {

KernelHandle KernelsOf::operator()(const std::string& name) {
  const auto found = table_.find(name);
  if (found != table_.end()) return found->second;
  if (status_.ok()) status_ = Status(Code::kInvalid, "the GPU kernel " + name + " was not compiled");
  return 0;
}

}  // namespace byteps_like
