// What a store key does to its value with a combined gradient. An update is a pure function of the value, its own
// state, the gradient, a learning rate and the number of updates made so far. It has a reference in Python
// (byteps_like/store/updates) that gives the same bits: elements are computed in the value's own type, each operation
// rounded by itself, scalars in fp64 and rounded once, sums in fp64 in 16 lanes (loop.h). So all instruction sets, and
// all replicas of a key, give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "csrc/base/dtype.h"
#include "csrc/base/status.h"
#include "server/update/store_push.h"

namespace byteps_like {

// A value is `rows` rows of `width` elements; without rows of its own, any split of its elements.
struct ValueShape {
  size_t rows = 0;
  size_t width = 0;
  size_t count() const { return rows * width; }
};

// Memory is the caller's; the three arrays are disjoint, of one type, at any address.
struct UpdateCall {
  DType dtype = DType::kFloat32;  // one that the update takes
  ValueShape shape;
  void* value = nullptr;  // changed in place, as the state is
  void* state = nullptr;  // StateCount elements
  const void* gradient = nullptr;
  double lr = 0;                           // at least 0: the push's, or lr()
  uint64_t step = 1;                       // the version that this update makes, from 1
  std::span<const StorePush> pushes = {};  // whose gradients were combined
};

// Immutable and thread-safe. Nothing here blocks or allocates, but for functions of users.
class ValueUpdate {
 public:
  virtual ~ValueUpdate() = default;
  // fp32 and fp64, unless it says otherwise; no update takes others than these and int64.
  virtual bool Takes(DType dtype) const { return dtype == DType::kFloat32 || dtype == DType::kFloat64; }
  // Whether it needs the tensor uncut, because it takes norms over all of it.
  virtual bool whole() const { return false; }
  // The rate of pushes that bring none; 1 if it uses no rate.
  virtual double lr() const { return 1; }
  // Elements of state, of the value's type: one array behind the other.
  virtual size_t StateCount(const ValueShape& /*shape*/) const { return 0; }
  // Writes the state before the first update; zeros, unless it says otherwise.
  virtual void Begin(DType dtype, const ValueShape& shape, void* state) const;
  // The gradient should be finite, see IsFinite; no update checks that. False: what has come of it is not finite, and
  // nothing has changed. An error ends the job.
  virtual Result<bool> Apply(const UpdateCall& call) const = 0;
};

using UpdatePointer = std::unique_ptr<const ValueUpdate>;

// Whether `count` elements of fp32 or fp64 have neither an infinity nor a NaN; true for integers. A server doesn't
// apply what isn't finite, and says so.
bool IsFinite(DType dtype, const void* gradient, size_t count);

}  // namespace byteps_like
