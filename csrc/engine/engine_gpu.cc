// Tensors on a GPU: from Submit to the stager, and from there on the way of all others.
#include <algorithm>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/base/trace.h"
#include "csrc/engine/coding/coder.h"
#include "csrc/engine/engine.h"
#include "csrc/engine/staging/stager.h"
#include "csrc/gpu/gate.h"

namespace byteps_like {

Status Engine::UseGpu(std::shared_ptr<Gpu> gpu, const KernelTable& kernels) {
  if (stager_) return Status(Code::kInvalid, "the engine has a GPU already");
  auto stager = Stager::Create(*this, context_, std::move(gpu), kernels);
  if (!stager.ok()) return stager.status();
  std::lock_guard lock(mutex_);
  stager_ = std::move(*stager);
  return Status();
}

Status Engine::AddKernels(const KernelTable& kernels) {
  std::lock_guard lock(mutex_);
  if (!stager_) return Status(Code::kInvalid, "kernels, and the engine was given no GPU: UseGpu comes first");
  stager_->AddKernels(kernels);
  return Status();
}

bool Engine::WatchStager() {
  Stager* stager = nullptr;
  {
    std::lock_guard lock(mutex_);
    stager = stager_.get();
  }
  return stager != nullptr && stager->Watch();
}

bool Engine::EncodesOnGpu(uint32_t tensor) const {
  std::lock_guard lock(mutex_);
  return HasTwins(tensors_.at(tensor));
}

bool Engine::HasTwins(const DeclaredTensor& tensor) const {
  const auto has = [](const auto& coding) { return coding->twin != nullptr; };
  const auto& codings = tensor.codings;
  return stager_ && stager_->encodes() && !codings.empty() && std::all_of(codings.begin(), codings.end(), has);
}

Result<UserWork*> Engine::RecordStart(const Request& request) {
  if (!stager_) return Status(Code::kInvalid, "a tensor on a GPU, and the engine was given none: UseGpu comes first");
  auto device = DeviceOf(stager_->gpu(), request.device);
  if (!device.ok()) return device.status();
  if (*device != stager_->gpu().info().ordinal)
    return Status(Code::kInvalid, "a tensor on GPU " + std::to_string(*device) + ", and the engine uses GPU " +
                                      std::to_string(stager_->gpu().info().ordinal));
  bool reserved = false;
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    const DeclaredTensor& tensor = tensors_.at(request.tensor);
    reserved = tensor.reserved || !HasTwins(tensor);
  }
  const Status status = reserved ? Status() : ReserveStaging(request.tensor);
  if (!status.ok()) return status;
  return stager_->Record(request.stream, request.last_part - request.first_part);
}

// Without the mutex, which host functions take, while the driver is called.
Status Engine::ReserveStaging(uint32_t id) {
  std::lock_guard reserving(reserving_);
  std::vector<const Coding*> codings;
  DeclaredTensor* tensor = nullptr;
  {
    std::lock_guard lock(mutex_);
    tensor = &tensors_.at(id);
    if (tensor->reserved) return Status();
    for (const auto& coding : tensor->codings) codings.push_back(coding.get());
  }
  Status status = stager_->Reserve(codings);
  std::lock_guard lock(mutex_);
  tensor->reserved = status.ok();
  return status;
}

void Engine::ReleaseStaging(DeclaredTensor& tensor) {
  if (!std::exchange(tensor.reserved, false)) return;
  std::vector<const Coding*> codings;
  codings.reserve(tensor.codings.size());
  for (const auto& coding : tensor.codings) codings.push_back(coding.get());
  stager_->Release(codings);
}

void Engine::Stage(DeclaredTensor& tensor, const Request& request) {
  bool encodes = request.op != Op::kBroadcast && HasTwins(tensor);
  for (const auto& coding : tensor.codings) encodes = encodes && !coding->next.feedback.on_host();
  if (tensor.stagings.empty())
    for (const auto& part : tensor.parts)
      part->staging = tensor.stagings.emplace_back(std::make_unique<Staging>(*part)).get();
  for (uint32_t i = request.first_part; i < request.last_part; ++i) {
    Staging& staging = *tensor.stagings[i];
    staging.active = true;
    staging.stage = !encodes                        ? StagingStage::kDown
                    : staging.part->coding->prelude ? StagingStage::kPrepare
                                                    : StagingStage::kEncode;
    staging.device = request.device + staging.part->offset;
    staging.mirror = request.address + staging.part->offset;
  }
}

void Engine::BeginStaged(Part& part, UserWork* start) {
  part.staging->start = start;
  if (Tracing())
    Trace({.kind = TraceKind::kReady,
           .begin = part.traced.ready,
           .key = part.key,
           .bytes = part.bytes,
           .round = part.round,
           .priority = part.priority,
           .member = context_.standing().rank});
  stager_->Begin(*part.staging);
}

// Memory that a device may still use is never freed.
void Engine::KeepForDevice() {
  struct Kept {
    std::unique_ptr<Stager> stager;
    TensorTable tensors;
    std::vector<std::shared_ptr<SharedBuffer>> regions;
  };
  static std::mutex mutex;
  static auto* const kept = new std::vector<Kept>();
  std::lock_guard lock(mutex);
  kept->push_back({std::move(stager_), std::move(tensors_), regions_.buffers()});
}

void Engine::CameDown(Part& part) {
  if (part.coding != nullptr && part.coding->active) return coder_->Begin(*part.coding);
  const bool prepared = part.staging->stage == StagingStage::kPrepare;
  Part& sent = prepared ? *part.coding->prelude : part;
  if (prepared) sent.address = part.coding->agreed.data;
  sent.priority = part.priority;
  sent.traced = {Tracing() ? TraceClock() : 0, 0, 0};
  Hand(sent);
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
  if (operation.gate == nullptr) return false;
  auto blocked = operation.gate->Block(reinterpret_cast<cuda::Stream>(stream));
  if (blocked.ok() && !*blocked && !told_of_waits_.exchange(true)) {
    const std::string why = stager_->gpu().WhyNoWaits();
    Log(LogLevel::kWarning, "rank " + std::to_string(context_.standing().rank) +
                                ": the host waits for the network in place of streams, and copies" + " overlap less: " +
                                (why.empty() ? "they can't wait for a word of memory with this driver" : why));
  }
  return blocked;
}

uint64_t Engine::bytes_down() const { return stager_ ? stager_->supplies().down.load() : 0; }
uint64_t Engine::bytes_up() const { return stager_ ? stager_->supplies().up.load() : 0; }

CodedCounters Engine::gpu_coded() const {
  if (!stager_) return {};
  return {stager_->supplies().encoded_in, stager_->supplies().encoded_out};
}

}  // namespace byteps_like
