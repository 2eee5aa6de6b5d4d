// What a row of a table is before its first update: made of its id alone, so that it is the same whenever and wherever
// it is made, and takes no memory before. Twin of byteps_like/store/tables/first_values.py, to the last bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "compression/spec.h"
#include "csrc/base/dtype.h"
#include "csrc/base/status.h"

namespace byteps_like {

class FirstValues {
 public:
  virtual ~FirstValues() = default;
  virtual bool Takes(DType dtype) const { return IsFloat(dtype); }
  // `width` elements.
  virtual void Make(uint64_t id, DType dtype, size_t width, std::byte* row) const = 0;
};

// Of a canonical text: "zeros", "uniform:bound=0.01,seed=0", "normal:seed=0,std=0.01". kInvalid.
Result<std::unique_ptr<const FirstValues>> MakeFirstValues(std::string_view text);

}  // namespace byteps_like
