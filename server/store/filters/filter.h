// What both ends do with the rows of a table on their way: a payload filter makes fewer bytes of them, and rows again.
// It has a twin in Python (byteps_like/store/filters), whose payloads it reads, and which reads its own.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "csrc/base/dtype.h"
#include "csrc/base/status.h"
#include "csrc/codec/codec.h"

namespace byteps_like {

// Immutable and thread-safe. Nothing here blocks, but for filters of users.
class PayloadFilter {
 public:
  virtual ~PayloadFilter() = default;
  // kInvalid if it can do nothing with rows of this type.
  virtual Status Check(DType /*dtype*/) const { return {}; }
  // Whether it takes rows, not just bytes: then no other one may come before it.
  virtual bool TakesRows() const { return false; }
  // Whether values are read through it as well, not only contributions sent.
  virtual bool OfValues() const { return true; }
  // What it makes of `bytes` at most.
  virtual size_t Most(DType dtype, size_t bytes) const = 0;
  // Writes to `out`, which has room for the most that there may be: how much.
  virtual Result<size_t> Encode(DType dtype, const Draw& draw, std::span<const std::byte> in,
                                std::span<std::byte> out) const = 0;
  // Likewise. kCorrupt: `in` is no payload of this filter, or one of more bytes than `out` has room for.
  virtual Result<size_t> Decode(DType dtype, std::span<const std::byte> in, std::span<std::byte> out) const = 0;
};

using FilterPointer = std::unique_ptr<const PayloadFilter>;

}  // namespace byteps_like
