#include "csrc/engine/tensor_table.h"

#include <algorithm>
#include <utility>

#include "csrc/codec/payload.h"
#include "csrc/kernels/kernels.h"
#include "csrc/wire/frame.h"

namespace byteps_like {
namespace {

std::unique_ptr<Part> PreludeOf(const Part& part, const CodecPlan& plan) {
  auto prelude = std::make_unique<Part>();
  prelude->key = part.key | kPreludeKey;
  prelude->offset = part.offset;
  prelude->channel = part.channel;
  prelude->bytes = prelude->total = plan.prelude;
  prelude->dtype = plan.prelude_dtype;
  prelude->op = plan.prelude_op;
  return prelude;
}

std::unique_ptr<Coding> CodingOf(Part& part, const CodecUse& use, uint32_t number) {
  auto coding = std::make_unique<Coding>();
  coding->codec = use.codec.get();
  coding->numel = part.bytes / sizeof(float);
  coding->plan = use.codec->Plan(coding->numel);
  coding->twin = use.twin.get();
  coding->number = number;
  coding->spec_crc = kernels::Crc32c(0, use.codec->spec().data(), use.codec->spec().size());
  coding->part = &part;
  if (coding->plan.prelude != 0) {
    coding->prelude = PreludeOf(part, coding->plan);
    coding->prelude->coding = coding.get();
  }
  return coding;
}

Status CheckSizes(const PartitionSpec& part, const CodecPlan& plan) {
  const uint64_t largest = kPayloadHeader + uint64_t{std::max(plan.payload, plan.result)};
  if (largest <= kMaxPartition && plan.prelude <= kMaxPartition) return Status();
  return Status(Code::kInvalid, "key " + std::to_string(part.key) + ": encoded it may have " + std::to_string(largest) +
                                    " bytes, and a partition at most " + std::to_string(kMaxPartition));
}

}  // namespace

Status CheckCoded(const std::vector<PartitionSpec>& partitions, const CodecUse& use, uint32_t world) {
  const std::string& spec = use.codec->spec();
  if (use.codec->trait() == Trait::kOpaque) return Status(Code::kInvalid, "codec " + spec + " can't be summed");
  if (use.codec->world() != world)
    return Status(Code::kInvalid, "codec " + spec + " is for a world of " + std::to_string(use.codec->world()));
  for (const PartitionSpec& part : partitions) {
    if ((part.key & kPreludeKey) != 0)
      return Status(Code::kInvalid, "key " + std::to_string(part.key) + " is that of a prelude");
    if (part.bytes % sizeof(float) != 0 || part.offset % sizeof(float) != 0 || part.bytes == 0)
      return Status(Code::kInvalid, "key " + std::to_string(part.key) + " is not of whole elements of float32");
    if (Status wrong = CheckSizes(part, use.codec->Plan(part.bytes / sizeof(float))); !wrong.ok()) return wrong;
  }
  return Status();
}

bool DeclaredTensor::idle() const {
  return stagings.empty() && std::ranges::all_of(parts, [](const auto& part) {
           const Part* const prelude = part->coding != nullptr ? part->coding->prelude.get() : nullptr;
           return !part->operation && part->waiting == 0 && (prelude == nullptr || prelude->waiting == 0);
         });
}

uint32_t TensorTable::Add(DType dtype, const std::vector<PartitionSpec>& partitions,
                          const std::vector<std::unique_ptr<Channel>>& channels) {
  if (vacant_.empty()) {
    vacant_.push_back(static_cast<uint32_t>(tensors_.size()));
    tensors_.emplace_back();
  }
  const uint32_t id = vacant_.back();
  vacant_.pop_back();
  for (const PartitionSpec& spec : partitions) {
    auto part = std::make_unique<Part>();
    part->key = spec.key;
    part->offset = spec.offset;
    part->bytes = part->total = part->weight = spec.bytes;
    part->dtype = dtype;
    part->channel = channels.at(spec.channel).get();
    part->home = spec.channel;
    part->absent = spec.absent;
    part->owner = spec.owner;
    tensors_[id].parts.push_back(std::move(part));
  }
  return id;
}

void TensorTable::Encode(uint32_t id, const CodecUse& use) {
  const uint32_t number = NumberOf(use);
  DeclaredTensor& tensor = tensors_.at(id);
  for (const auto& part : tensor.parts) {
    Coding& coding = *tensor.codings.emplace_back(CodingOf(*part, use, number));
    part->coding = &coding;
    part->weight = coding.plan.prelude + coding.plan.payload;
  }
}

void TensorTable::Remove(uint32_t id) {
  tensors_.at(id) = {};
  vacant_.push_back(id);
}

uint32_t TensorTable::NumberOf(const CodecUse& use) {
  for (uint32_t i = 0; i < codecs_.size(); ++i)
    if (codecs_[i].codec == use.codec && codecs_[i].twin == use.twin && codecs_[i].text == use.text) return i;
  codecs_.push_back(use);
  return static_cast<uint32_t>(codecs_.size() - 1);
}

}  // namespace byteps_like
