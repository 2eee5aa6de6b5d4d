#include "csrc/gpu/stream.h"

namespace byteps_like {
namespace {

// The context must be current: threads that only wait, or look, may have none.
template <typename Query, typename Handle>
Result<bool> DoneBy(const Gpu& gpu, Query query, Handle handle, std::string_view what) {
  const CurrentContext current(gpu);
  if (!current.status().ok()) return current.status();
  const cuda::Outcome outcome = query(handle);
  if (outcome == cuda::kNotReady) return false;
  const Status status = gpu.Check(outcome, what);
  if (!status.ok()) return status;
  return true;
}

}  // namespace

Result<std::unique_ptr<GpuStream>> GpuStream::Create(std::shared_ptr<Gpu> gpu) {
  const CurrentContext current(*gpu);
  if (!current.status().ok()) return current.status();
  cuda::Stream handle = nullptr;
  const Status status = gpu->Check(gpu->api().StreamCreate(&handle, cuda::kStreamNonBlocking, gpu->urgency()),
                                   "cuStreamCreateWithPriority");
  if (!status.ok()) return status;
  return std::unique_ptr<GpuStream>(new GpuStream(std::move(gpu), handle));
}

GpuStream::~GpuStream() {
  const CurrentContext current(*gpu_);
  (void)gpu_->api().StreamDestroy(handle_);
}

Result<bool> GpuStream::Done() const { return DoneBy(*gpu_, gpu_->api().StreamQuery, handle_, "cuStreamQuery"); }

bool GpuStream::Over() const {
  const CurrentContext current(*gpu_);
  const cuda::Outcome outcome = gpu_->api().StreamQuery(handle_);
  return outcome == cuda::kSuccess || IsSticky(outcome);
}

Status GpuStream::Synchronize() const {
  const CurrentContext current(*gpu_);
  if (!current.status().ok()) return current.status();
  return gpu_->Check(gpu_->api().StreamSynchronize(handle_), "cuStreamSynchronize");
}

Result<std::unique_ptr<GpuEvent>> GpuEvent::Create(std::shared_ptr<Gpu> gpu) {
  const CurrentContext current(*gpu);
  if (!current.status().ok()) return current.status();
  cuda::Event handle = nullptr;
  const Status status = gpu->Check(gpu->api().EventCreate(&handle, cuda::kEventDisableTiming), "cuEventCreate");
  if (!status.ok()) return status;
  return std::unique_ptr<GpuEvent>(new GpuEvent(std::move(gpu), handle));
}

GpuEvent::~GpuEvent() {
  const CurrentContext current(*gpu_);
  (void)gpu_->api().EventDestroy(handle_);
}

// The legacy default stream is that of the current context, which may be another device's.
Status GpuEvent::Record(cuda::Stream stream) const {
  const CurrentContext current(*gpu_);
  if (!current.status().ok()) return current.status();
  return gpu_->Check(gpu_->api().EventRecord(handle_, stream), "cuEventRecord");
}

Status GpuEvent::Block(cuda::Stream stream) const {
  const CurrentContext current(*gpu_);
  if (!current.status().ok()) return current.status();
  return gpu_->Check(gpu_->api().StreamWaitEvent(stream, handle_, 0), "cuStreamWaitEvent");
}

Result<bool> GpuEvent::Done() const { return DoneBy(*gpu_, gpu_->api().EventQuery, handle_, "cuEventQuery"); }

Status GpuEvent::Synchronize() const {
  const CurrentContext current(*gpu_);
  if (!current.status().ok()) return current.status();
  return gpu_->Check(gpu_->api().EventSynchronize(handle_), "cuEventSynchronize");
}

Status CheckNotCapturing(const Gpu& gpu, cuda::Stream stream) {
  const CurrentContext current(gpu);
  if (!current.status().ok()) return current.status();
  int32_t capturing = 0;
  const cuda::Outcome outcome = gpu.api().StreamIsCapturing(stream, &capturing);
  if (outcome != cuda::kCaptureImplicit && (outcome != cuda::kSuccess || capturing == 0))
    return gpu.Check(outcome, "cuStreamIsCapturing");
  return Status(Code::kInvalid,
                "a CUDA graph is being captured on this stream: communication can't be part of a graph; "
                "capture forward and backward alone, and reduce gradients after the replay");
}

}  // namespace byteps_like
