// Kernels by name.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "csrc/base/status.h"

namespace byteps_like {

using KernelHandle = uint64_t;  // a CUfunction
// All kernels that were compiled for the device, by their names in csrc/cuda.
using KernelTable = std::map<std::string, KernelHandle, std::less<>>;

// Looks up the kernels that something needs; the first that is missing is kept for `status`.
class KernelsOf {
 public:
  explicit KernelsOf(const KernelTable& table) : table_(table) {}
  KernelHandle operator()(const std::string& name);
  const Status& status() const { return status_; }  // kInvalid

 private:
  const KernelTable& table_;
  Status status_;
};

}  // namespace byteps_like
