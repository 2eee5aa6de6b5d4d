#include "csrc/sim/member.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "compression/registry.h"
#include "csrc/base/thread.h"
#include "csrc/kernels/kernels.h"
#include "csrc/sim/expected.h"

namespace byteps_like::sim {
namespace {

constexpr auto kLongestWait = std::chrono::seconds(300);  // far beyond all that the engine's own deadlines allow
constexpr uint64_t kLongestThought = 30'000;              // microseconds
constexpr uint64_t kKeysOfStores = 1'000'000, kKeysOfOne = 10'000;
constexpr uint32_t kBitsOfOne = 6;  // of a store's value, for the pushes of one rank

int64_t First(size_t i) { return static_cast<int64_t>(i) * 1'000'003; }

}  // namespace

struct Member::Tensor {
  uint32_t number = 0, id = 0;
  std::vector<PartitionSpec> parts;
  std::vector<std::byte> memory;
  std::shared_ptr<Operation> operation;
};

struct Member::Store {
  uint32_t number = 0, id = 0, pushed = 0;
  const StorePlan* plan = nullptr;
  std::vector<PartitionSpec> parts;
  std::vector<int64_t> first;
  std::vector<std::vector<int64_t>> sent;
  std::vector<std::shared_ptr<KeepOperation>> pushes;

  int64_t Bit(uint32_t rank, uint32_t push) const { return int64_t{1} << (kBitsOfOne * rank + push); }
  Engine::KeepRequest Whole(std::vector<int64_t>& memory) const {
    Engine::KeepRequest request{.tensor = id, .address = reinterpret_cast<std::byte*>(memory.data())};
    for (uint32_t part = 0; part < parts.size(); ++part) request.parts.push_back(part);
    return request;
  }
};

Member::Member(const Plan& plan, uint32_t rank, Board& board)
    : plan_(plan), rank_(rank), board_(board), random_(plan.seed * 1'000'003 + rank) {}

Member::~Member() = default;

Status Member::Run(EngineOptions options, std::vector<ShardAddress> shards) {
  auto engine = Engine::Start(std::move(options), std::move(shards));
  if (!engine.ok()) return engine.status();
  engine_ = std::move(*engine);
  has_begun_ = true;
  const Status status = Work();
  engine_->Close();
  engine_.reset();
  return status;
}

void Member::Fail(Code code, const std::string& text) {
  if (engine_ != nullptr) engine_->Fail(code, text);
}

void Member::GoOnWithout(uint32_t server, const std::string& why) {
  if (engine_ != nullptr) engine_->GoOnWithout(server, why);
}

// `by_rack`: the sums of a rank that is in one go by its aggregator.
std::vector<PartitionSpec> Member::Cut(uint64_t bytes, uint64_t first_key, bool by_rack) const {
  std::vector<PartitionSpec> parts;
  const uint32_t shards = plan_.servers * plan_.shards;
  const auto rack = by_rack ? plan_.RackOf(rank_) : std::nullopt;
  for (uint64_t offset = 0; offset < bytes; offset += plan_.partition_bytes) {
    const auto index = static_cast<uint32_t>(parts.size());
    const auto length = static_cast<uint32_t>(std::min<uint64_t>(plan_.partition_bytes, bytes - offset));
    parts.push_back({first_key + index, offset, length, index % shards});
    if (!rack) continue;
    parts.back().owner = {index % shards / plan_.shards, index % plan_.shards};
    parts.back().channel = shards + index % plan_.shards;
  }
  return parts;
}

Status Member::Declare(Tensor& tensor) {
  const TensorPlan& one = plan_.tensors[tensor.number];
  const DType dtype = TypeOf(plan_, tensor.number);
  tensor.memory.resize(one.elements * SizeOf(dtype));
  tensor.parts = Cut(tensor.memory.size(), kKeysOfOne * (tensor.number + 1), one.codec.empty());
  if (one.codec.empty()) {
    tensor.id = engine_->Declare(dtype, tensor.parts);
    return {};
  }
  auto codec = MakeCodec(one.codec, plan_.workers);
  if (!codec.ok()) return codec.status();
  auto declared = engine_->DeclareCoded(tensor.parts, {*codec, (*codec)->spec()});
  if (declared.ok()) tensor.id = *declared;
  return declared.status();
}

Status Member::Work() {
  for (uint32_t number = 0; number < plan_.tensors.size(); ++number) {
    tensors_.push_back(std::make_unique<Tensor>());
    tensors_.back()->number = number;
    if (Status declared = Declare(*tensors_.back()); !declared.ok()) return declared;
  }
  for (uint32_t number = 0; number < plan_.stores.size(); ++number) {
    auto store = std::make_unique<Store>();
    store->number = number;
    store->plan = &plan_.stores[number];
    stores_.push_back(std::move(store));
    if (Status opened = Open(*stores_.back()); !opened.ok()) return opened;
  }
  has_opened_ = true;
  for (uint32_t round = 0; round < plan_.rounds; ++round)
    if (Status done = Round(round); !done.ok()) return done;
  for (const auto& store : stores_)
    if (Status settled = Settle(*store); !settled.ok()) return settled;
  const bool together = board_.Meet(rank_);
  for (const auto& store : stores_)
    if (Status read = together ? Read(*store, true) : Status(); !read.ok()) return read;
  if (together) board_.Meet(rank_);
  return {};
}

// Every rank begins them in an order of its own.
Status Member::Round(uint32_t round) {
  std::vector<Tensor*> order;
  order.reserve(tensors_.size());
  for (const auto& tensor : tensors_) order.push_back(tensor.get());
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.Below(i)]);
  for (Tensor* const tensor : order) {
    if (random_.OneIn(3)) Think();
    if (Status begun = Begin(*tensor, round); !begun.ok()) return begun;
  }
  for (const auto& store : stores_) {
    if (store->pushed == store->plan->pushes) continue;
    if (Status pushed = Push(*store); !pushed.ok()) return pushed;
    if (!random_.OneIn(3)) continue;
    if (Status read = Read(*store, false); !read.ok()) return read;
  }
  for (Tensor* const tensor : order)
    if (Status done = Finish(*tensor, round); !done.ok()) return done;
  Think();
  return {};
}

Status Member::Begin(Tensor& tensor, uint32_t round) {
  Expected{plan_, tensor.number, round}.Fill(tensor.memory, rank_);
  Engine::Request request;
  request.tensor = tensor.id;
  request.address = tensor.memory.data();
  request.last_part = static_cast<uint32_t>(tensor.parts.size());
  request.op = OpOf(plan_, tensor.number, round);
  request.root = request.op == Op::kBroadcast ? RootOf(plan_, round) : 0;
  request.priority = static_cast<int32_t>(random_.Below(4));
  board_.OnStep(rank_, '>', "tensor " + std::to_string(tensor.number) + ", round " + std::to_string(round));
  auto operation = engine_->Submit(request);
  if (operation.ok()) tensor.operation = std::move(*operation);
  return operation.status();
}

Status Member::Finish(Tensor& tensor, uint32_t round) {
  const std::string what = "tensor " + std::to_string(tensor.number) + ", round " + std::to_string(round);
  if (Status done = Wait(*tensor.operation, what); !done.ok()) return done;
  for (const Absence& one : tensor.operation->absences)
    if (!board_.IsDead(one.rank)) board_.Complain(rank_, what + ": a rank that lives is missing");
  const size_t wrong =
      Expected{plan_, tensor.number, round}.FirstWrong(tensor.memory, tensor.parts, tensor.operation->absences);
  if (wrong < tensor.memory.size() / SizeOf(TypeOf(plan_, tensor.number)))
    board_.Complain(rank_, what + ": element " + std::to_string(wrong) + " is wrong");
  board_.OnResult(rank_, what, kernels::Crc32c(0, tensor.memory.data(), tensor.memory.size()));
  return {};
}

Status Member::Open(Store& store) {
  const uint32_t elements = store.plan->elements;
  store.parts = Cut(elements * sizeof(int64_t), kKeysOfStores + kKeysOfOne * store.number);
  store.id = engine_->Declare(DType::kInt64, store.parts);
  Engine::KeepSpec spec{.tensor = store.id,
                        .text = "policy " + store.plan->policy + "\ncombine sum:age=none,damp=none\nupdate add"};
  if (store.plan->replicas > 1) spec.text += "\nreplicas " + std::to_string(store.plan->replicas);
  if (!plan_.elastic) spec.root = plan_.workers - 1;  // else it may die first
  for (size_t i = 0; i < elements; ++i) store.first.push_back(plan_.elastic ? 0 : First(i));
  if (rank_ == spec.root) spec.initial = std::as_bytes(std::span(store.first));
  auto opening = engine_->Keep(spec);
  if (!opening.ok()) return opening.status();
  return Wait(**opening, "opening of store " + std::to_string(store.number));
}

Status Member::Push(Store& store) {
  store.sent.emplace_back(store.plan->elements, store.Bit(rank_, store.pushed));
  auto push = engine_->Contribute(store.Whole(store.sent.back()), {});
  if (!push.ok()) return push.status();
  board_.OnStep(rank_, '>', "store " + std::to_string(store.number) + ", push " + std::to_string(store.pushed));
  ++store.pushed;
  store.pushes.push_back(std::move(*push));
  return {};
}

// All pushes are made, and their answers are there.
Status Member::Settle(Store& store) {
  while (store.pushed < store.plan->pushes)
    if (Status pushed = Push(store); !pushed.ok()) return pushed;
  for (const auto& push : store.pushes) {
    if (Status done = Wait(*push, "push to store " + std::to_string(store.number)); !done.ok()) return done;
    for (const KeepOutcome& one : push->outcomes)
      if (one.applied != Applied::kCounted) board_.Complain(rank_, "a push was not counted");
  }
  return {};
}

Status Member::Read(Store& store, bool all) {
  std::vector<int64_t> value(store.plan->elements);
  auto read = engine_->Read(store.Whole(value), 0);
  if (!read.ok()) return read.status();
  const Status done = Wait(**read, "read of store " + std::to_string(store.number));
  if (done.ok()) CheckRead(store, value, all);
  return done;
}

// Every push is in it wholly, in each partition, or not at all: each has a bit of its own.
void Member::CheckRead(const Store& store, const std::vector<int64_t>& value, bool all) {
  int64_t possible = 0;
  for (uint32_t rank = 0; rank < plan_.workers; ++rank)
    for (uint32_t push = 0; push < store.plan->pushes; ++push) possible |= store.Bit(rank, push);
  for (const PartitionSpec& part : store.parts) {
    const size_t begin = part.offset / sizeof(int64_t), end = begin + part.bytes / sizeof(int64_t);
    const int64_t sum = value[begin] - store.first[begin];
    bool wrong = all ? sum != possible : (sum & ~possible) != 0;
    for (size_t i = begin; i < end; ++i) wrong = wrong || value[i] - store.first[i] != sum;
    if (wrong)
      board_.Complain(rank_, "store " + std::to_string(store.number) + ", key " + std::to_string(part.key) +
                                 ": its value is wrong");
  }
}

void Member::Think() { SleepFor(std::chrono::microseconds(random_.Below(kLongestThought))); }

Status Member::Wait(Operation& operation, const std::string& what) {
  const Status status = engine_->Wait(operation, Clock::now() + kLongestWait);
  board_.OnStep(rank_, status.ok() ? '=' : '#', what + (status.ok() ? "" : ": " + status.message()));
  if (status.code() == Code::kTimeout) board_.Complain(rank_, what + ": nobody ends it");
  return status;
}

}  // namespace byteps_like::sim
