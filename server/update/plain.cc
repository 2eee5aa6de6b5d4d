// Updates that scale nothing: none, assign, add. They also take integers.
#include <cstring>

#include "csrc/kernels/kernels.h"
#include "server/update/updates.h"

namespace byteps_like {
namespace {

class PlainUpdate : public ValueUpdate {
 public:
  bool Takes(DType dtype) const override { return dtype == DType::kInt64 || ValueUpdate::Takes(dtype); }
};

class Assign : public PlainUpdate {
 public:
  explicit Assign(CodecSpec&) {}
  Result<bool> Apply(const UpdateCall& call) const override {
    if (call.shape.count() != 0) std::memcpy(call.value, call.gradient, call.shape.count() * SizeOf(call.dtype));
    return true;
  }
};

// What is combined in a round is its result, and nothing is kept.
class NoUpdate final : public Assign {
 public:
  using Assign::Assign;
};

class Add final : public PlainUpdate {
 public:
  explicit Add(CodecSpec&) {}
  Result<bool> Apply(const UpdateCall& call) const override {
    kernels::Reduce(Op::kSum, call.dtype, call.value, call.gradient, call.shape.count());
    return true;
  }
};

}  // namespace

Result<UpdatePointer> MakeNoUpdate(CodecSpec& spec) { return Made<NoUpdate>(spec); }
Result<UpdatePointer> MakeAssign(CodecSpec& spec) { return Made<Assign>(spec); }
Result<UpdatePointer> MakeAdd(CodecSpec& spec) { return Made<Add>(spec); }

}  // namespace byteps_like
