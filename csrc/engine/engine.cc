#include "csrc/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "csrc/base/thread.h"
#include "csrc/base/trace.h"
#include "csrc/engine/channel.h"
#include "csrc/engine/coding/coder.h"
#include "csrc/engine/staging/stager.h"
#include "csrc/gpu/gate.h"

namespace byteps_like {
namespace {

constexpr auto kGoodbyeTimeout = std::chrono::seconds(1);
constexpr size_t kDialers = 16;    // threads that connect to shards at once
constexpr double kPerRank = 0.01;  // seconds to connect to a shard, beyond the timeout: all ranks do so at once

}  // namespace

Engine::Engine(EngineOptions options)
    : context_(std::move(options), loop_), silence_(context_, channels_, *this, [this] { return WatchStager(); }) {
  StartWatching();
}

Result<std::unique_ptr<Engine>> Engine::Start(EngineOptions options, std::vector<ShardAddress> shards) {
  std::unique_ptr<Engine> engine(new Engine(std::move(options)));
  if (!engine->context_.loop.made().ok()) return engine->context_.loop.made();
  ChannelOwner& owner = *engine;
  for (ShardAddress& shard : shards) {
    const size_t index = engine->context_.in_step.Add();
    engine->channels_.push_back(std::make_unique<Channel>(engine->context_, owner, std::move(shard), index));
  }
  if (Status connected = engine->ConnectAll(); !connected.ok()) return connected;
  const auto here = std::ranges::count_if(engine->channels_, &Channel::shares_memory);
  engine->context_.loop.ShareCores(engine->context_.options.local_workers + static_cast<size_t>(here));
  engine->context_.loop.Post([engine = engine.get()] {
    for (auto& channel : engine->channels_) channel->Start();
  });
  auto thread = StartThread("for the engine", [engine = engine.get()] { engine->context_.loop.Run(); });
  if (!thread.ok()) return thread.status();
  engine->thread_ = std::move(*thread);
  return engine;
}

// Every rank begins at another shard, so that they don't all knock at the same door at once. Each shard has its own
// deadline, from when it is its turn.
Status Engine::ConnectAll() {
  const size_t count = channels_.size();
  const Standing own = context_.standing();
  const size_t first = count * (own.rank % own.world_size) / own.world_size;
  const auto patience = Patience();
  std::atomic<size_t> next{0};
  std::mutex mutex;
  Status failed;
  const auto dial = [&] {
    for (size_t i; (i = next.fetch_add(1)) < count;) {
      Status connected = channels_[(first + i) % count]->Connect(Clock::now() + patience);
      if (connected.ok()) continue;
      next = count;
      for (auto& channel : channels_) channel->GiveUp();
      std::lock_guard lock(mutex);
      if (failed.ok()) failed = std::move(connected);
    }
  };
  std::vector<Thread> dialers;
  while (dialers.size() + 1 < std::min(count, kDialers)) {
    auto dialer = StartThread("to dial with", dial);
    if (!dialer.ok()) break;  // those that there are take longer
    dialers.push_back(std::move(*dialer));
  }
  dial();
  for (Thread& dialer : dialers) dialer.join();
  return failed;
}

Clock::duration Engine::Patience() const {
  const std::chrono::duration<double> seconds(context_.options.connect_timeout +
                                              kPerRank * context_.standing().world_size);
  return std::chrono::duration_cast<Clock::duration>(seconds);
}

Engine::~Engine() {
  StopWatching();
  Close();
  if (stager_ && stager_->stuck()) KeepForDevice();
  if (thread_.joinable()) {
    context_.loop.Stop();
    thread_.join();
  }
  channels_.clear();
}

uint32_t Engine::Declare(DType dtype, const std::vector<PartitionSpec>& partitions) {
  std::lock_guard lock(mutex_);
  const uint32_t tensor = tensors_.Add(dtype, partitions, channels_);
  Weigh(tensor);
  return tensor;
}

void Engine::Weigh(uint32_t tensor) {
  context_.loop.Post([this, tensor] {
    bool astray = false;
    {
      std::lock_guard lock(mutex_);
      for (const auto& part : tensors_.at(tensor).parts) {
        context_.in_step.Place(part->channel->index(), part->weight);
        astray |= part->channel->left();
      }
    }
    if (!astray) return;
    for (Part* const part : AllParts()) HaveAdopted(*part);
  });
}

void Engine::Retire(uint32_t tensor) {
  context_.loop.Post([this, tensor] {
    std::lock_guard lock(mutex_);
    for (const auto& part : tensors_.at(tensor).parts) {
      context_.in_step.Place(part->channel->index(), -int64_t{part->weight});
      cut_off_.erase(part->key);
      if (part->operation) continue;
      part->channel->Forget(*part);
      if (part->coding != nullptr && part->coding->prelude)
        part->coding->prelude->channel->Forget(*part->coding->prelude);
      if (context_.options.outlives_servers) KeepForOthers(*part);
    }
    ReleaseStaging(tensors_.at(tensor));
    if (tensors_.at(tensor).idle()) tensors_.Remove(tensor);
  });
}

size_t Engine::tensors() const {
  std::lock_guard lock(mutex_);
  return tensors_.size();
}

void Engine::Register(const std::shared_ptr<SharedBuffer>& buffer) { regions_.Add(buffer); }

void Engine::OnMemoryGone(uint64_t) {
  std::vector<uint32_t> gone = regions_.TakeGone();
  if (gone.empty()) return;
  context_.loop.Post([this, gone = std::move(gone)] {
    for (auto& channel : channels_)
      for (const uint32_t id : gone) channel->Withdraw(id);
  });
}

Status Engine::CheckRequest(const Request& request, const DeclaredTensor& tensor) const {
  const auto& parts = tensor.parts;
  if (request.first_part > request.last_part || request.last_part > parts.size())
    return Status(Code::kInvalid, "no such partitions");
  if (request.op == Op::kBroadcast && request.root >= context_.standing().world_size)
    return Status(Code::kInvalid, "root " + std::to_string(request.root) + " is not a rank of this world");
  if (request.first_part == request.last_part) return Status();
  if (tensor.kept) return Status(Code::kInvalid, "servers keep this tensor: contribute to it, or read it");
  const Part& first = *parts[request.first_part];
  const DType dtype = first.coding != nullptr ? DType::kFloat32 : first.dtype;
  if (!Supports(request.op, dtype))
    return Status(Code::kInvalid, std::string("there is no ") + NameOf(request.op) + " of " + NameOf(dtype));
  const bool sums = request.op == Op::kSum || request.op == Op::kAverage || request.op == Op::kBroadcast;
  if (first.coding != nullptr && !sums)
    return Status(Code::kInvalid,
                  "codec " + first.coding->codec->spec() + " has no " + std::string(NameOf(request.op)));
  for (uint32_t i = request.first_part; i < request.last_part; ++i) {
    if (parts[i]->operation) return Status(Code::kInvalid, "an operation on this tensor is still in flight");
    if (parts[i]->absent && (request.op == Op::kBroadcast || request.device != 0))
      return Status(Code::kInvalid, "broadcast and GPU memory are not supported for tensors split into local shares");
  }
  return Status();
}

Result<std::shared_ptr<Operation>> Engine::Submit(const Request& request) {
  if (request.device == 0) return SubmitFrom(request, nullptr);
  auto start = RecordStart(request);
  if (!start.ok()) return start.status();
  auto operation = SubmitFrom(request, *start);
  if (!operation.ok() || request.first_part == request.last_part) stager_->Drop(*start);
  return operation;
}

Result<std::shared_ptr<Operation>> Engine::SubmitFrom(const Request& request, UserWork* start) {
  bool wake = false;
  auto operation = std::make_shared<Operation>();
  operation->memory = RegionOf(request.address, 1).buffer;
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    if (closed_) return Status(Code::kClosed, "the engine is closed");
    DeclaredTensor& tensor = tensors_.at(request.tensor);
    auto& parts = tensor.parts;
    if (Status wrong = CheckRequest(request, tensor); !wrong.ok()) return wrong;
    operation->remaining = request.last_part - request.first_part;
    if (request.first_part < request.last_part) operation->key = parts[request.first_part]->key;
    if (start != nullptr) Stage(tensor, request);
    if (start != nullptr) operation->gate = std::move(start->gate);
    const bool idle = submitted_.empty();
    // Equal in priority and age, the last goes first: in an arena it holds what the next forward needs first.
    for (uint32_t i = request.last_part; i-- > request.first_part;) {
      Part& part = *parts[i];
      part.operation = operation;
      part.address = request.address + part.offset;
      part.op = request.op;
      part.root = request.root;
      part.brings = request.op != Op::kBroadcast || request.root == context_.standing().rank;
      part.priority = request.priority;
      part.movable = request.movable;
      part.traced = {Tracing() ? TraceClock() : 0, 0, 0};
      if (part.coding != nullptr) {
        if (part.op != Op::kBroadcast) {
          BeginCoded(part);
          if (start != nullptr) BeginStaged(part, start);
          continue;
        }
        part.total = part.bytes;
        part.dtype = DType::kFloat32;
        part.encoded = false;
      }
      if (start != nullptr) {
        BeginStaged(part, start);
      } else {
        submitted_.push_back(&part);
      }
    }
    wake = idle && !submitted_.empty();
  }
  if (wake) context_.loop.PostOrRun([this] { Drain(); });
  return operation;
}

void Engine::Drain() {
  taken_.clear();
  {
    std::lock_guard lock(mutex_);
    taken_.swap(submitted_);
  }
  for (Part* part : taken_) {
    // A prelude holds up the payload behind it, an absent rank those of others: before payloads of equal priority.
    HaveAdopted(*part);
    part->order = order_++ | ((part->key & kPreludeKey) != 0 || part->absent ? 0 : uint64_t{1} << 63);
    part->channel->Enqueue(*part);
  }
  silence_.Arm();
  Status failure;
  {
    std::lock_guard lock(mutex_);
    failure = failure_;
  }
  if (!failure.ok())
    for (auto& channel : channels_) channel->Abort(failure);
}

void Engine::Arrived(Part& part, const Header& result) {
  if ((result.flags & kMovable) != 0 && part.offset == 0 && part.operation) part.operation->moves = true;
}

void Engine::Landed(Part& part, const Status& status) {
  if (part.coding != nullptr && part.coding->on_gpu) return stager_->Landed(part, status);
  if (part.coding != nullptr && part.coding->active) return coder_->Landed(part, status);
  Returned(part, status);
}

void Engine::Done(Part& part, const Status& status) {
  std::shared_ptr<SharedBuffer> memory;  // let go of after the lock
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Operation> operation = std::move(part.operation);
  if (operation->remaining.load(std::memory_order_relaxed) == 1) memory = std::move(operation->memory);
  if (!status.ok()) operation->status = status;
  operation->absences.insert(operation->absences.end(), part.absences.begin(), part.absences.end());
  if (part.staging != nullptr) part.staging->active = false;
  EndPart(*operation);
}

// One of its parts has landed. Under the mutex.
void Engine::EndPart(Operation& operation) {
  if (operation.remaining.fetch_sub(1) != 1) return;
  if (operation.gate) operation.gate->Open();
  completed_.notify_all();
  context_.loop.Nudge();  // whoever waits may drive it, and codec threads or the stager may have ended the operation
}

void Engine::GiveUp(const std::shared_ptr<Operation>& operation, const Status& why) {
  context_.loop.Post([this, operation, why] {
    operation->given_up = why;
    for (auto& channel : channels_) channel->GiveUp(*operation);
  });
}

Status Engine::Wait(Operation& operation, Deadline deadline) {
  const int64_t since = Tracing() && !operation.done() ? TraceClock() : 0;
  const bool ended = operation.done() || WaitDriving(operation, deadline);
  if (since != 0)
    TraceSince(since, {.kind = TraceKind::kWait, .key = operation.key, .member = context_.standing().rank});
  if (!ended) return Status(Code::kTimeout, "the operation has not ended yet");
  return operation.status;
}

// The caller does the work of the I/O thread meanwhile: to hand over to it, and to be woken by it, takes 25 us each.
bool Engine::WaitDriving(const Operation& operation, Deadline deadline) {
  const auto done = [&] { return operation.done(); };
  return context_.loop.Drive(done, deadline, [&] {
    std::unique_lock lock(mutex_);
    return completed_.wait_until(lock, deadline, done);
  });
}

void Engine::Fail(Code code, const std::string& text) {
  context_.loop.Post([this, code, text] { FailOnLoop(Status(code, text)); });
}

void Engine::FailOnLoop(const Status& why) {
  const Status failure = Failure(why);
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok() || closed_) return;
    failure_ = failure;
  }
  for (auto& channel : channels_) channel->Abort(failure);
  context_.options.on_event(failure.code(), failure.message(), true);
}

void Engine::Close() {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  if (!thread_.joinable()) return;
  if (coder_) coder_->Stop();
  if (stager_) stager_->Stop();
  struct Waiter {
    std::mutex mutex;
    ConditionVariable changed;
    bool done = false;
  };
  auto waiter = std::make_shared<Waiter>();
  CloseOnLoop([waiter] {
    std::lock_guard lock(waiter->mutex);
    waiter->done = true;
    waiter->changed.notify_all();
  });
  std::unique_lock lock(waiter->mutex);
  waiter->changed.wait(lock, [&] { return waiter->done; });
  if (stager_) stager_->Drain();
}

void Engine::CloseOnLoop(std::function<void()> done) {
  context_.loop.Post([this, done = std::move(done)]() mutable {
    Drain();
    on_closed_ = std::move(done);
    for (auto& channel : channels_) channel->Goodbye();
    OnChannelClosed();
    context_.loop.CallAt(Clock::now() + kGoodbyeTimeout, [this] {
      for (auto& channel : channels_)
        channel->Abort(Status(Code::kClosed, "this rank was shut down, and " + channel->name() + " did not respond"));
      OnChannelClosed();
    });
  });
}

void Engine::OnChannelClosed() {
  for (auto& channel : channels_)
    if (!channel->closed()) return;
  if (on_closed_) std::exchange(on_closed_, nullptr)();
}

void Engine::LetGo() {
  for (auto& channel : channels_)
    if (channel->held()) channel->LetGo();
}

void Engine::OnRoom() {
  for (auto& channel : channels_)
    if (channel->lacks_room()) channel->OnRoom();
}

uint64_t Engine::bounced() const {
  uint64_t sum = 0;
  for (const auto& channel : channels_) sum += channel->bounced();
  return sum;
}

LinkCounters Engine::counters() const {
  LinkCounters sum;
  for (const auto& channel : channels_) sum += channel->counters();
  return sum;
}

std::map<std::string, uint32_t> Engine::links() const {
  std::map<std::string, uint32_t> links;
  for (const auto& channel : channels_) ++links[channel->transport()];
  return links;
}

std::vector<std::string> Engine::peers() const {
  std::vector<std::string> names;
  names.reserve(channels_.size());
  for (const auto& channel : channels_) names.push_back(channel->name());
  return names;
}

}  // namespace byteps_like
