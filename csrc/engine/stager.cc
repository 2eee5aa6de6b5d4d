#include "csrc/engine/stager.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/base/trace.h"
#include "csrc/codec/payload.h"
#include "csrc/engine/engine.h"
#include "csrc/gpu/stream_launcher.h"

namespace byteps_like {
namespace {

constexpr size_t kLanes = 4;  // each way: one is copied, others encode, or wait for the user's stream
constexpr size_t kWords = 1 << 14;
constexpr size_t kAlignment = 256;                           // of what lies in a lane's memory
constexpr auto kLookAfter = std::chrono::milliseconds(200);  // without a host function, while lanes are busy
constexpr auto kLongestDrain = std::chrono::seconds(5);

Status Stopped() { return Status(Code::kClosed, "this rank was shut down while the operation was in flight"); }
size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t PayloadBytes(const Coding& coding) { return Aligned(std::max(coding.plan.payload, coding.plan.result)); }
uint32_t HeadOf(const Coding& coding) { return coding.dense() ? 0 : kPayloadHeader; }

GpuFeedback OnDevice(const Feedback& feedback) {
  return {.residual = reinterpret_cast<DevicePointer>(feedback.residual),
          .momentum = reinterpret_cast<DevicePointer>(feedback.momentum),
          .mu = feedback.mu,
          .nesterov = feedback.nesterov,
          .masked = feedback.masked};
}

}  // namespace

// Words ---------------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Words>> Words::Create(const std::shared_ptr<Gpu>& gpu) {
  auto buffer = SharedBuffer::Create(kWords * sizeof(uint32_t));
  if (!buffer.ok()) return buffer.status();
  auto locked = PinnedMemory::Lock(gpu, *buffer);
  if (!locked.ok()) return locked.status();
  auto device = (*locked)->DeviceAddressOf((*buffer)->data());
  if (!device.ok()) return device.status();
  auto words = std::make_unique<Words>();
  words->memory_ = std::move(*locked);
  words->device_ = *device;
  auto* const first = reinterpret_cast<uint32_t*>(words->memory_->data());
  for (uint32_t i = kWords; i-- > 0;) {
    words->words_.push_back({first + (kWords - 1 - i), 0});
    words->free_.push_back(i);
  }
  return words;
}

void Words::Take(Operation& operation) {
  if (free_.empty()) return;
  const uint32_t index = free_.back();
  free_.pop_back();
  operation.word = device_ + index * sizeof(uint32_t);
  operation.word_index = index;
  operation.word_value = ++words_[index].value;
}

void Words::Give(const Operation& operation) {
  if (operation.word == 0) return;
  std::atomic_ref<uint32_t>(*words_[operation.word_index].at).store(operation.word_value, std::memory_order_release);
  free_.push_back(operation.word_index);
}

// Its beginning and its end -------------------------------------------------------------------------------------------

Result<std::unique_ptr<Stager>> Stager::Create(Engine& engine, std::shared_ptr<Gpu> gpu, const KernelTable& kernels) {
  std::unique_ptr<Stager> stager(new Stager(engine, std::move(gpu)));
  const Status status = stager->Prepare(kernels);
  if (!status.ok()) return status;
  stager->thread_ = std::thread([stager = stager.get()] { stager->Work(); });
  return stager;
}

Status Stager::Prepare(const KernelTable& kernels) {
  auto words = Words::Create(gpu_);
  if (!words.ok()) return words.status();
  words_ = std::move(*words);
  waits_ = gpu_->WhyNoWaits().empty();
  auto feedback = GpuFeedbackKernels::Make(kernels);
  if (feedback.ok()) feedback_ = std::make_unique<GpuFeedbackKernels>(*feedback);
  auto buffer = SharedBuffer::Create(2 * kLanes * kAlignment);
  if (!buffer.ok()) return buffer.status();
  auto reports = PinnedMemory::Lock(gpu_, *buffer);
  if (!reports.ok()) return reports.status();
  reports_ = std::move(*reports);
  for (size_t i = 0; i < 2 * kLanes; ++i) {
    Status status = AddLane(i < kLanes ? down_lanes_ : up_lanes_, i >= kLanes, i);
    if (!status.ok()) return status;
  }
  return Status();
}

Status Stager::AddLane(Lanes& lanes, bool is_up, size_t index) {
  auto lane = std::make_unique<Lane>();
  auto stream = GpuStream::Create(gpu_);
  if (!stream.ok()) return stream.status();
  lane->stager = this;
  lane->stream = std::move(*stream);
  lane->is_up = is_up;
  lane->report = reinterpret_cast<GpuReport*>(reports_->data() + index * kAlignment);
  lanes.push_back(std::move(lane));
  return Status();
}

Stager::~Stager() {
  Stop();
  Drain();
}

void Stager::Stop() {
  std::vector<Staging*> left;
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    for (auto* const queue : {&down_queue_, &up_queue_})
      for (; !queue->empty(); queue->pop()) left.push_back(queue->top().staging);
  }
  changed_.notify_all();
  for (Staging* const staging : left) engine_.Done(*staging->part, Stopped());
}

void Stager::Drain() {
  {
    std::unique_lock lock(mutex_);
    if (joined_) return;
    joined_ = true;
    if (!changed_.wait_for(lock, kLongestDrain, [this] { return !Busy(); }))
      Log(LogLevel::kError, "GPU " + std::to_string(gpu_->info().ordinal) +
                                " has not ended its copies within 5 s of the shutdown: is a kernel hanging?");
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// From callers --------------------------------------------------------------------------------------------------------

Result<UserWork*> Stager::Record(uint64_t stream, uint32_t parts) {
  const auto handle = reinterpret_cast<cuda::Stream>(stream);
  Status status = CheckNotCapturing(*gpu_, handle);
  if (!status.ok()) return status;
  UserWork* start = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
    if (!free_starts_.empty()) {
      start = free_starts_.back();
      free_starts_.pop_back();
    }
  }
  if (start == nullptr) {
    auto event = GpuEvent::Create(gpu_);
    if (!event.ok()) return event.status();
    std::lock_guard lock(mutex_);
    start = starts_.emplace_back(std::make_unique<UserWork>()).get();
    start->event = std::move(*event);
  }
  start->waiting = parts;
  status = start->event->Record(handle);
  if (status.ok()) return start;
  Drop(start);
  return status;
}

void Stager::Drop(UserWork* start) {
  std::lock_guard lock(mutex_);
  free_starts_.push_back(start);
}

void Stager::Begin(Staging& staging) {
  std::lock_guard lock(mutex_);
  down_queue_.push({staging.part->priority, order_++, &staging});
  changed_.notify_all();
}

Result<bool> Stager::Block(const Operation& operation, uint64_t stream) {
  if (!waits_ || operation.word == 0) return false;
  const CurrentContext current(*gpu_);
  if (!current.status().ok()) return current.status();
  const cuda::Outcome outcome = gpu_->api().StreamWaitValue(reinterpret_cast<cuda::Stream>(stream), operation.word,
                                                            operation.word_value, cuda::kWaitGreaterEqual);
  if (outcome == cuda::kNotSupported) {
    waits_ = false;
    return false;
  }
  const Status status = gpu_->Check(outcome, "cuStreamWaitValue32");
  if (!status.ok()) return status;
  return true;
}

void Stager::Landed(Part& part, const Status& status) {
  Status why = status;
  if (why.ok()) {
    std::lock_guard lock(mutex_);
    if (broken_.ok() && !ending_) {
      up_queue_.push({part.priority, order_++, part.staging});
      changed_.notify_all();
      return;
    }
    why = broken_.ok() ? Stopped() : broken_;
  }
  engine_.Done(part, why);
}

// The thread ----------------------------------------------------------------------------------------------------------

Stager::Lane* Stager::Free(const Lanes& lanes) const {
  for (const auto& lane : lanes)
    if (lane->staging == nullptr) return lane.get();
  return nullptr;
}

bool Stager::Busy() const {
  const auto busy = [](const auto& lane) { return lane->staging != nullptr; };
  return std::any_of(down_lanes_.begin(), down_lanes_.end(), busy) ||
         std::any_of(up_lanes_.begin(), up_lanes_.end(), busy);
}

void Stager::Work() {
  const CurrentContext current(*gpu_);
  if (!current.status().ok()) Break(current.status());
  std::unique_lock lock(mutex_);
  while (!joined_ || Busy()) {
    const bool up = Issue(up_lanes_, up_queue_, lock);  // nearest to their end first
    const bool down = Issue(down_lanes_, down_queue_, lock);
    if (up || down) continue;
    const auto more = [this] {
      return (joined_ && !Busy()) || (!up_queue_.empty() && Free(up_lanes_) != nullptr) ||
             (!down_queue_.empty() && Free(down_lanes_) != nullptr);
    };
    if (!Busy()) {
      changed_.wait(lock, [&] { return more() || joined_; });
    } else if (!changed_.wait_for(lock, kLookAfter, more)) {
      lock.unlock();
      Look();
      lock.lock();
      if (joined_ && Busy()) break;  // Drain has waited for long
    }
  }
}

bool Stager::Issue(Lanes& lanes, std::priority_queue<Task>& queue, std::unique_lock<std::mutex>& lock) {
  Lane* const lane = queue.empty() ? nullptr : Free(lanes);
  if (lane == nullptr) return false;
  Staging& staging = *queue.top().staging;
  UserWork* const start = staging.start;  // the partition may be in another round when we are through
  queue.pop();
  lane->staging = &staging;
  lock.unlock();
  const Status status = lane->is_up ? Up(*lane, staging) : Down(*lane, staging);
  if (!status.ok()) Break(status);
  lock.lock();
  if (!lane->is_up && --start->waiting == 0) free_starts_.push_back(start);
  return true;
}

// A stamp is only taken for the timeline.
Status Stager::Stamp(Lane& lane, cuda::HostFunction function) {
  if (!Tracing()) return Status();
  return gpu_->Check(gpu_->api().LaunchHostFunction(lane.stream->handle(), function, &lane), "cuLaunchHostFunc");
}

Status Stager::Down(Lane& lane, const Staging& staging) {
  const cuda::Stream stream = lane.stream->handle();
  lane.began = lane.coded = 0;
  Status status = staging.start->event->Block(stream);
  if (status.ok()) status = Stamp(lane, [](void* at) { static_cast<Lane*>(at)->began = TraceClock(); });
  size_t bytes = staging.part->bytes;
  if (status.ok() && staging.encodes) {
    bytes = staging.part->coding->plan.payload;
    status = Encode(lane, staging);
    if (status.ok()) status = Stamp(lane, [](void* at) { static_cast<Lane*>(at)->coded = TraceClock(); });
  }
  if (!status.ok()) return status;
  const DevicePointer from = staging.encodes ? lane.scratch->address() : staging.device;
  std::byte* const to = staging.mirror + (staging.encodes ? HeadOf(*staging.part->coding) : 0);
  status = gpu_->Check(gpu_->api().MemcpyDown(to, from, bytes, stream), "cuMemcpyDtoHAsync");
  if (!status.ok()) return status;
  down_ += bytes;
  return gpu_->Check(gpu_->api().LaunchHostFunction(stream, Fired, &lane), "cuLaunchHostFunc");
}

Status Stager::Up(Lane& lane, const Staging& staging) {
  const cuda::Stream stream = lane.stream->handle();
  const Part& part = *staging.part;
  lane.began = lane.coded = 0;
  Status status = Stamp(lane, [](void* at) { static_cast<Lane*>(at)->began = TraceClock(); });
  const uint32_t head = staging.encodes ? HeadOf(*part.coding) : 0;
  const size_t bytes = staging.encodes ? part.expected - head : part.bytes;
  if (status.ok() && staging.encodes) status = Reserve(lane, *part.coding);
  if (!status.ok()) return status;
  const DevicePointer to = staging.encodes ? lane.scratch->address() : staging.device;
  status = gpu_->Check(gpu_->api().MemcpyUp(to, staging.mirror + head, bytes, stream), "cuMemcpyHtoDAsync");
  if (!status.ok()) return status;
  up_ += bytes;
  if (staging.encodes) {
    status = Stamp(lane, [](void* at) { static_cast<Lane*>(at)->coded = TraceClock(); });
    if (status.ok()) status = Decode(lane, staging);
    if (!status.ok()) return status;
  }
  return gpu_->Check(gpu_->api().LaunchHostFunction(stream, Fired, &lane), "cuLaunchHostFunc");
}

// With codecs ---------------------------------------------------------------------------------------------------------

// Only while nothing runs on the lane.
Status Stager::Reserve(Lane& lane, const Coding& coding) {
  const size_t bytes = PayloadBytes(coding) + Aligned(coding.twin->Workspace(coding.numel)) + kAlignment;
  if (lane.scratch && lane.scratch->bytes() >= bytes) return Status();
  lane.scratch.reset();
  auto memory = GpuMemory::Allocate(gpu_, bytes);
  if (!memory.ok()) return memory.status();
  lane.scratch = std::move(*memory);
  return Status();
}

Status Stager::Encode(Lane& lane, const Staging& staging) {
  const Coding& coding = *staging.part->coding;
  Status status = Reserve(lane, coding);
  if (!status.ok()) return status;
  StreamLauncher launcher(*lane.stream);
  const DevicePointer payload = lane.scratch->address();
  const GpuRound round{.x = staging.device,
                       .numel = coding.numel,
                       .draw = coding.draw,
                       .workspace = payload + PayloadBytes(coding),
                       .report = payload + lane.scratch->bytes() - kAlignment};
  const GpuFeedback feedback = OnDevice(coding.feedback);
  if (feedback_) status = feedback_->Compensate(launcher, feedback, coding.scale, round.x, round.numel);
  if (status.ok()) status = coding.twin->Encode(launcher, round, payload);
  if (status.ok() && feedback.residual != 0)
    status = coding.twin->Residual(launcher, round, payload, feedback.residual);
  if (status.ok() && feedback_) status = feedback_->Settle(launcher, feedback, round.x, round.numel);
  if (HeadOf(coding) != 0)
    EncodePayloadHeader({.codec = coding.codec->id(), .numel = coding.numel, .spec = coding.spec_crc}, staging.mirror);
  return status;
}

Status Stager::Decode(Lane& lane, const Staging& staging) {
  const Part& part = *staging.part;
  const Coding& coding = *part.coding;
  const uint32_t head = HeadOf(coding);
  uint32_t count = coding.codec->world();
  if (head != 0) {
    auto header = DecodePayloadHeader({staging.mirror, part.expected});
    if (!header.ok()) return header.status();
    if (header->codec != coding.codec->id() || header->spec != coding.spec_crc || header->numel != coding.numel)
      return Status(Code::kCorrupt,
                    "the result of key " + std::to_string(part.key) + " is not of codec " + coding.codec->spec());
    count = header->count;
  }
  const bool divide = coding.op == Op::kAverage && (head != 0 || !IsFloat(*coding.plan.dense));
  const DevicePointer result = lane.scratch->address();
  const DevicePointer report = result + lane.scratch->bytes() - kAlignment;
  const GpuRound round{.x = staging.device,
                       .numel = coding.numel,
                       .draw = coding.draw,
                       .workspace = result + PayloadBytes(coding),
                       .report = report};
  StreamLauncher launcher(*lane.stream);
  Status status = launcher.Fill(report, 0, sizeof(GpuReport));
  if (status.ok())
    status = coding.twin->Decode(launcher, round, result, part.expected - head, count,
                                 divide ? 1.0f / static_cast<float>(count) : 1.0f);
  if (!status.ok()) return status;
  return gpu_->Check(gpu_->api().MemcpyDown(lane.report, report, sizeof(GpuReport), lane.stream->handle()),
                     "cuMemcpyDtoHAsync");
}

// Ends of lanes -------------------------------------------------------------------------------------------------------

// On a thread of the driver's, which must not call it.
void Stager::Fired(void* at) {
  Lane& lane = *static_cast<Lane*>(at);
  Stager& stager = *lane.stager;
  Staging* staging = nullptr;
  {
    std::lock_guard lock(stager.mutex_);
    staging = lane.staging;
  }
  if (staging != nullptr) stager.Finish(lane, *staging);
}

void Stager::Finish(Lane& lane, Staging& staging) {
  if (Tracing()) TraceLane(lane, staging);
  const bool corrupt = lane.is_up && staging.encodes && lane.report->corrupt != 0;
  bool stopped = false;
  {
    std::lock_guard lock(mutex_);
    if (lane.staging == nullptr) return;  // it has been broken meanwhile
    stopped = ending_ && !lane.is_up;
    lane.staging = nullptr;
    changed_.notify_all();  // under the lock: who drains may end us next
  }
  Part& part = *staging.part;
  if (corrupt) {
    const Status wrong(Code::kCorrupt, "the result of key " + std::to_string(part.key) + " makes no sense to codec " +
                                           part.coding->codec->spec());
    engine_.Done(part, wrong);
    return engine_.Fail(wrong.code(), wrong.message());
  }
  if (lane.is_up || stopped) return engine_.Done(part, stopped ? Stopped() : Status());
  engine_.CameDown(part);
}

void Stager::TraceLane(const Lane& lane, const Staging& staging) const {
  const Part& part = *staging.part;
  const auto trace = [&](TraceKind kind, int64_t from, int64_t until) {
    Trace({.kind = kind,
           .begin = from,
           .duration = until - from,
           .key = part.key,
           .bytes = part.bytes,
           .round = part.round,
           .priority = part.priority,
           .member = engine_.rank()});
  };
  const int64_t now = TraceClock();
  if (lane.began == 0) return;
  const int64_t middle = lane.coded == 0 ? (lane.is_up ? now : lane.began) : lane.coded;
  if (lane.coded != 0)
    trace(lane.is_up ? TraceKind::kDecoded : TraceKind::kEncoded, lane.is_up ? middle : lane.began,
          lane.is_up ? now : middle);
  trace(lane.is_up ? TraceKind::kUp : TraceKind::kDown, lane.is_up ? lane.began : middle, lane.is_up ? middle : now);
}

// Failures ------------------------------------------------------------------------------------------------------------

void Stager::Look() {
  for (const Lanes* const lanes : {&down_lanes_, &up_lanes_})
    for (const auto& lane : *lanes) {
      const auto done = lane->stream->Done();
      if (!done.ok()) return Break(done.status());
    }
}

void Stager::Break(const Status& status) {
  std::vector<Staging*> left;
  {
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return;
    broken_ = Status(status.code(), "rank " + std::to_string(engine_.rank()) + ": " + status.message());
    for (const Lanes* const lanes : {&down_lanes_, &up_lanes_})
      for (const auto& lane : *lanes)
        if (Staging* const staging = std::exchange(lane->staging, nullptr)) left.push_back(staging);
    for (auto* const queue : {&down_queue_, &up_queue_})
      for (; !queue->empty(); queue->pop()) left.push_back(queue->top().staging);
    changed_.notify_all();
  }
  for (Staging* const staging : left) engine_.Done(*staging->part, broken_);
  engine_.Fail(broken_.code(), broken_.message());
}

}  // namespace byteps_like
