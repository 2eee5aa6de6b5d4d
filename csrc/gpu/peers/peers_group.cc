#include "csrc/gpu/peers/peers_group.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "csrc/base/thread.h"
#include "csrc/gpu/stream_launcher.h"

namespace byteps_like {
namespace {

constexpr uint32_t kScatter = 0, kGather = 1;  // lanes
constexpr size_t kAlignment = 256;             // of a slice in a stage: kernels load 16 bytes at a time
constexpr auto kLast = std::chrono::seconds(2);
constexpr auto kTick = std::chrono::milliseconds(1);

// Kernels on any stream, the framework's too.
class OnStream final : public Launcher {
 public:
  OnStream(const Gpu& gpu, cuda::Stream stream) : gpu_(gpu), stream_(stream) {}
  Status Fill(DevicePointer to, uint8_t value, size_t bytes) override {
    return gpu_.Check(gpu_.api().MemsetBytes(to, value, bytes, stream_), "cuMemsetD8Async");
  }
  Status Copy(DevicePointer to, DevicePointer from, size_t bytes) override {
    return gpu_.Check(gpu_.api().Memcpy(to, from, bytes, stream_), "cuMemcpyAsync");
  }

 private:
  Status LaunchPacked(KernelHandle kernel, const LaunchShape& shape,
                      std::span<const KernelArgument> arguments) override {
    return LaunchOn(gpu_, stream_, kernel, shape, arguments);
  }
  const Gpu& gpu_;
  const cuda::Stream stream_;
};

}  // namespace

GpuPeers::GpuPeers(std::shared_ptr<Gpu> gpu, GpuPeerSum sum, PeersOptions options)
    : gpu_(std::move(gpu)), sum_(sum), options_(std::move(options)), mapped_(options_.pids.size()) {}

Result<std::unique_ptr<GpuPeers>> GpuPeers::Create(std::shared_ptr<Gpu> gpu, const KernelTable& kernels,
                                                   std::shared_ptr<SharedBuffer> page, PeersOptions options) {
  const size_t ranks = options.pids.size();
  if (ranks < 2 || ranks > PeersPage::kMostRanks || options.rank >= ranks)
    return Status(Code::kInvalid, "rank " + std::to_string(options.rank) + " of " + std::to_string(ranks) +
                                      " on one host: GPUs reduce among 2 to 8");
  if (options.stage_bytes < kAlignment * ranks)
    return Status(Code::kInvalid, "a stage of " + std::to_string(options.stage_bytes) + " bytes");
  if (const std::string why = gpu->WhyNoWaits(); !why.empty()) return Status(Code::kDevice, why);
  if (gpu->api().StreamWriteValue == nullptr)
    return Status(Code::kDevice, gpu->driver().path() + " has no cuStreamWriteValue32_v2");
  auto sum = GpuPeerSum::Make(kernels);
  if (!sum.ok()) return sum.status();
  std::unique_ptr<GpuPeers> made(new GpuPeers(std::move(gpu), *sum, std::move(options)));
  const Status status = made->Start(std::move(page));
  if (!status.ok()) return status;
  return made;
}

Status GpuPeers::Start(std::shared_ptr<SharedBuffer> buffer) {
  auto page = PeersPage::Create(gpu_, std::move(buffer));
  if (!page.ok()) return page.status();
  page_ = std::move(*page);
  auto stage = GpuMemory::Allocate(gpu_, options_.stage_bytes * PeersPage::kLanes);
  if (!stage.ok()) return stage.status();
  stage_ = std::move(*stage);
  for (Lane& lane : lanes_) {
    auto event = GpuEvent::Create(gpu_);
    if (!event.ok()) return event.status();
    lane.last = std::move(*event);
  }
  wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return SystemError("eventfd", errno);
  Status status = WatchPids();
  if (!status.ok()) return status;
  auto watch = StartThread("to watch the ranks of this host with", [this] { Watch(); });
  if (!watch.ok()) return watch.status();
  watch_ = std::move(*watch);
  return {};
}

GpuPeers::~GpuPeers() {
  if (!watch_.joinable()) return;  // it was never made
  std::unique_lock lock(mutex_);
  const auto over = [this] { return !Flying(); };
  closing_ = true;
  Wake();
  if (!landed_.wait_for(lock, kLast, over)) {
    FailNow(Status(Code::kClosed, "reductions among the GPUs of this host were shut down"));
    landed_.wait_for(lock, kLast, over);
  }
  const bool safe = !Flying();
  ending_ = true;
  Wake();
  lock.unlock();
  watch_.join();
  if (!safe) {  // the device hangs: what it may still use stays
    for (auto& one : mapped_) (void)one.release();
    for (Lane& lane : lanes_) (void)lane.last.release();
    (void)stage_.release();
    (void)page_.release();
    return;
  }
  mapped_.clear();
  if (failure_.ok()) page_->set_state(options_.rank, PeerState::kLeft);
  // CUDA leaves it open what becomes of a mapping whose memory is freed.
  for (std::chrono::milliseconds left = kLast / 2; joined_ && failure_.ok() && AnyHere() && left > kTick; left -= kTick)
    std::this_thread::sleep_for(kTick);
}

bool GpuPeers::AnyHere() const {
  for (uint32_t rank = 0; rank < size(); ++rank)
    if (rank != options_.rank && page_->state(rank) == PeerState::kHere && !dead_[rank]) return true;
  return false;
}

Result<std::string> GpuPeers::Export() const { return ExportMemory(*gpu_, stage_->address()); }

Status GpuPeers::Join(std::span<const std::string> exported) {
  if (exported.size() != size() || joined_)
    return Status(Code::kInvalid, "stages of " + std::to_string(exported.size()) + " ranks, once");
  std::vector<DevicePointer> begins(size(), stage_->address());
  for (uint32_t rank = 0; rank < size(); ++rank) {
    if (rank == options_.rank) continue;
    auto opened = GpuMemory::Open(gpu_, exported[rank]);
    if (!opened.ok()) return opened.status();
    if ((*opened)->bytes() < options_.stage_bytes * PeersPage::kLanes)
      return Status(Code::kMismatch, Named(rank) + " has a stage of another size");
    begins[rank] = (*opened)->address();
    mapped_[rank] = std::move(*opened);
  }
  std::lock_guard lock(mutex_);
  for (uint32_t number = 0; number < PeersPage::kLanes; ++number)
    for (const DevicePointer begin : begins) lanes_[number].stages.push_back(begin + number * options_.stage_bytes);
  joined_ = true;
  return {};
}

GpuPeers::Slice GpuPeers::SliceOf(const PeersArray& array, uint32_t rank) const {
  const uint64_t share = (array.numel + size() - 1) / size();
  const uint64_t begin = std::min(share * rank, array.numel);
  return {begin, std::min(share, array.numel - begin)};
}

Status GpuPeers::Begin(Lane& lane, cuda::Stream stream) {
  Status status;
  {
    std::lock_guard lock(mutex_);
    status = joined_ ? StatusNow() : Status(Code::kInvalid, "Join comes first");
  }
  if (!status.ok()) return status;
  status = CheckNotCapturing(*gpu_, stream);
  if (!status.ok()) return status;
  return lane.step == 0 ? Status() : lane.last->Block(stream);  // calls may come on several streams
}

void GpuPeers::SetIssuing(Lane& lane) {
  std::lock_guard lock(mutex_);
  if (!Flying()) Wake();
  lane.issuing = true;
  lane.since = std::chrono::steady_clock::now();
}

Status GpuPeers::End(Lane& lane, cuda::Stream stream, Status status) {
  const Status recorded = lane.last->Record(stream);
  if (status.ok()) status = recorded;
  std::lock_guard lock(mutex_);
  lane.issuing = false;
  lane.flying = lane.flying || recorded.ok();
  if (!status.ok()) FailNow(status);
  return status;
}

Status GpuPeers::Meet(uint32_t number, cuda::Stream stream) {
  const uint32_t step = ++lanes_[number].step;
  Status status = gpu_->Check(gpu_->api().StreamWriteValue(stream, page_->address(number, options_.rank), step, 0),
                              "cuStreamWriteValue32");
  for (uint32_t rank = 0; rank < size() && status.ok(); ++rank)
    if (rank != options_.rank)
      status =
          gpu_->Check(gpu_->api().StreamWaitValue(stream, page_->address(number, rank), step, cuda::kWaitGreaterEqual),
                      "cuStreamWaitValue32");
  return status;
}

Status GpuPeers::Copy(cuda::Stream stream, DevicePointer to, DevicePointer from, uint64_t bytes) {
  if (to == from || bytes == 0) return {};
  return OnStream(*gpu_, stream).Copy(to, from, bytes);
}

Status GpuPeers::ReduceScatter(cuda::Stream stream, const PeersArray& array, uint32_t divisor) {
  if (Status wrong = GpuPeerSum::Check(array.dtype); !wrong.ok()) return wrong;  // before anything is queued
  std::lock_guard call(lanes_[kScatter].calls);
  const CurrentContext current(*gpu_);
  if (!current.status().ok()) return current.status();
  Status begun = Begin(lanes_[kScatter], stream);
  if (!begun.ok() || array.numel == 0) return begun;
  SetIssuing(lanes_[kScatter]);
  return End(lanes_[kScatter], stream, ScatterPieces(stream, array, divisor));
}

Status GpuPeers::ScatterPieces(cuda::Stream stream, const PeersArray& array, uint32_t divisor) {
  const uint64_t item = SizeOf(array.dtype);
  const uint64_t most = options_.stage_bytes / size() / kAlignment * kAlignment / item;
  const DevicePointer stage = lanes_[kScatter].stages[options_.rank];
  for (uint64_t at = 0; at < SliceOf(array, 0).numel; at += most) {
    Status status;
    for (uint32_t rank = 0; rank < size() && status.ok(); ++rank) {
      const Slice slice = SliceOf(array, rank);
      if (rank == options_.rank || at >= slice.numel) continue;
      status = Copy(stream, stage + rank * most * item, array.whole + (slice.begin + at) * item,
                    std::min(most, slice.numel - at) * item);
    }
    if (status.ok()) status = Meet(kScatter, stream);
    if (status.ok()) status = SumOwn(stream, array, at, most, divisor);
    if (status.ok()) status = Meet(kScatter, stream);
    if (!status.ok()) return status;
  }
  return {};
}

Status GpuPeers::SumOwn(cuda::Stream stream, const PeersArray& array, uint64_t at, uint64_t most, uint32_t divisor) {
  const Slice slice = SliceOf(array, options_.rank);
  if (at >= slice.numel) return {};
  const uint64_t item = SizeOf(array.dtype);
  std::array<DevicePointer, PeersPage::kMostRanks> sources{};
  for (uint32_t rank = 0; rank < size(); ++rank)
    sources[rank] = rank == options_.rank ? array.whole + (slice.begin + at) * item
                                          : lanes_[kScatter].stages[rank] + options_.rank * most * item;
  OnStream launcher(*gpu_, stream);
  return sum_.Sum(launcher, array.dtype, std::span(sources).first(size()), array.own + at * item,
                  std::min(most, slice.numel - at), divisor);
}

Status GpuPeers::AllGather(cuda::Stream stream, const PeersArray& array) {
  std::lock_guard call(lanes_[kGather].calls);
  const CurrentContext current(*gpu_);
  if (!current.status().ok()) return current.status();
  Status begun = Begin(lanes_[kGather], stream);
  if (!begun.ok() || array.numel == 0) return begun;
  SetIssuing(lanes_[kGather]);
  return End(lanes_[kGather], stream, GatherPieces(stream, array));
}

Status GpuPeers::GatherPieces(cuda::Stream stream, const PeersArray& array) {
  const uint64_t item = SizeOf(array.dtype), most = options_.stage_bytes / item;
  const std::vector<DevicePointer>& stages = lanes_[kGather].stages;
  const Slice own = SliceOf(array, options_.rank);
  Status status = Copy(stream, array.whole + own.begin * item, array.own, own.numel * item);
  for (uint64_t at = 0; at < SliceOf(array, 0).numel && status.ok(); at += most) {
    if (at < own.numel)
      status = Copy(stream, stages[options_.rank], array.own + at * item, std::min(most, own.numel - at) * item);
    if (status.ok()) status = Meet(kGather, stream);
    for (uint32_t rank = 0; rank < size() && status.ok(); ++rank) {
      const Slice slice = SliceOf(array, rank);
      if (rank == options_.rank || at >= slice.numel) continue;
      status =
          Copy(stream, array.whole + (slice.begin + at) * item, stages[rank], std::min(most, slice.numel - at) * item);
    }
    if (status.ok()) status = Meet(kGather, stream);
  }
  return status;
}

}  // namespace byteps_like
