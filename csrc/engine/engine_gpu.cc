// Tensors on a GPU: from Submit to the stager, and from there on the way of all others.
#include "csrc/base/log.h"
#include "csrc/engine/coder.h"
#include "csrc/engine/engine.h"
#include "csrc/engine/stager.h"

namespace byteps_like {

Status Engine::UseGpu(std::shared_ptr<Gpu> gpu, const KernelTable& kernels) {
  if (stager_) return Status(Code::kInvalid, "the engine has a GPU already");
  auto stager = Stager::Create(*this, std::move(gpu), kernels);
  if (!stager.ok()) return stager.status();
  std::lock_guard lock(mutex_);
  stager_ = std::move(*stager);
  return Status();
}

bool Engine::EncodesOnGpu(uint32_t tensor) const {
  std::lock_guard lock(mutex_);
  const auto& codings = tensors_.at(tensor).codings;
  if (!stager_ || codings.empty()) return false;
  for (const auto& coding : codings)
    if (coding->twin == nullptr) return false;
  return stager_->feeds_back();
}

Result<UserWork*> Engine::RecordStart(const Request& request) {
  if (!stager_) return Status(Code::kInvalid, "a tensor on a GPU, and the engine was given none: UseGpu comes first");
  auto device = DeviceOf(*stager_->gpu(), request.device);
  if (!device.ok()) return device.status();
  if (*device != stager_->gpu()->info().ordinal)
    return Status(Code::kInvalid, "a tensor on GPU " + std::to_string(*device) + ", and the engine uses GPU " +
                                      std::to_string(stager_->gpu()->info().ordinal));
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
  }
  return stager_->Record(request.stream, request.last_part - request.first_part);
}

void Engine::Stage(Tensor& tensor, const Request& request) {
  bool encodes = request.op != Op::kBroadcast && !tensor.codings.empty() && stager_->feeds_back();
  for (const auto& coding : tensor.codings) encodes = encodes && coding->twin != nullptr;
  if (tensor.stagings.empty())
    for (const auto& part : tensor.parts)
      part->staging = tensor.stagings.emplace_back(std::make_unique<Staging>(*part)).get();
  for (uint32_t i = request.first_part; i < request.last_part; ++i) {
    Staging& staging = *tensor.stagings[i];
    staging.active = true;
    staging.encodes = encodes;
    staging.device = request.device + staging.part->offset;
    staging.mirror = request.address + staging.part->offset;
  }
}

void Engine::BeginStaged(Part& part, UserWork* start) {
  part.staging->start = start;
  stager_->Begin(*part.staging);
}

void Engine::CameDown(Part& part) {
  if (part.coding != nullptr && part.coding->active) return coder_->Begin(*part.coding);
  Hand(part);
}

void Engine::Returned(Part& part, const Status& status) {
  if (part.staging != nullptr && part.staging->active) return stager_->Landed(part, status);
  Done(part, status);
}

Result<bool> Engine::WaitOnStream(const Operation& operation, uint64_t stream) {
  if (operation.done()) {
    std::lock_guard lock(mutex_);
    if (!operation.status.ok()) return operation.status;
    return true;
  }
  if (!stager_) return false;
  auto blocked = stager_->Block(operation, stream);
  if (blocked.ok() && !*blocked && !told_of_waits_.exchange(true))
    Log(LogLevel::kWarning, "rank " + std::to_string(options_.rank) +
                                ": streams can't wait for a word of memory with this driver: the host waits in their "
                                "place, and copies overlap less");
  return blocked;
}

uint64_t Engine::bytes_down() const { return stager_ ? stager_->down() : 0; }
uint64_t Engine::bytes_up() const { return stager_ ? stager_->up() : 0; }

}  // namespace byteps_like
