#include "server/update/function.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "csrc/base/hook.h"
#include "server/update/updates.h"

namespace byteps_like {
namespace {

// What the function changes is put back where it isn't finite.
class FunctionUpdate final : public ValueUpdate {
 public:
  explicit FunctionUpdate(std::unique_ptr<const ServerFunction> function) : function_(std::move(function)) {}
  bool Takes(DType dtype) const override { return dtype == DType::kInt64 || ValueUpdate::Takes(dtype); }
  double lr() const override { return std::numeric_limits<double>::quiet_NaN(); }
  size_t StateCount(const ValueShape& shape) const override { return function_->StateCount(shape); }

  Result<bool> Apply(const UpdateCall& call) const override {
    const size_t values = call.shape.count(), states = StateCount(call.shape), size = SizeOf(call.dtype);
    const std::unique_ptr<std::byte[]> before(new (std::nothrow) std::byte[(values + states) * size]);
    if (before == nullptr) return Status(Code::kCapacity, "no memory to try a function in");
    Copy(before.get(), call.value, values * size);
    Copy(before.get() + values * size, call.state, states * size);
    if (Status run = function_->Run(call); !run.ok()) return run;
    if (IsFinite(call.dtype, call.value, values) && IsFinite(call.dtype, call.state, states)) return true;
    Copy(call.value, before.get(), values * size);
    Copy(call.state, before.get() + values * size, states * size);
    return false;
  }

 private:
  static void Copy(void* to, const void* from, size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }

  const std::unique_ptr<const ServerFunction> function_;
};

}  // namespace

void SetFunctionFinder(FunctionFinder finder) { TheHook<FunctionFinder>().Set(std::move(finder)); }

Result<UpdatePointer> MakeFunction(CodecSpec& spec) {
  const std::string name = spec.Text("of");
  if (Status done = spec.Done(); !done.ok()) return done;
  const FunctionFinder find = TheHook<FunctionFinder>().Get();
  auto function = find ? find(name) : nullptr;
  if (function != nullptr) return UpdatePointer(std::make_unique<const FunctionUpdate>(std::move(function)));
  return Status(Code::kInvalid, "this server has no function " + name +
                                    ": start servers with --import and the module that registers it");
}

}  // namespace byteps_like
