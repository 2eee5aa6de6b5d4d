// What an engine does when a server has died, and the others take over what was there.
#include <algorithm>
#include <memory>
#include <utility>

#include "csrc/engine/channel.h"
#include "csrc/engine/engine.h"

namespace byteps_like {
namespace {

constexpr size_t kMostRetired = 64u << 20;  // bytes of results that are kept of tensors which are no more
constexpr size_t kMostRecords = 1u << 16;
constexpr const char* kTwoWay = "twoway ";  // codecs whose servers keep an error feedback

// All ranks find the same, and of the keys of one shard each other shard gets as many.
uint64_t DrawnBy(uint64_t key, const Channel& channel) {
  uint64_t mixed = key * 0x9E3779B97F4A7C15 + (channel.index() + 1) * 0xD1B54A32D192ED03;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
  return mixed ^ (mixed >> 31);
}

}  // namespace

void Engine::GoOnWithout(uint32_t server, const std::string& why) {
  context_.loop.Post([this, server, why] { LeaveOnLoop(server, Status(Code::kPeerLost, why)); });
}

void Engine::LeaveOnLoop(uint32_t server, const Status& why) {
  const auto is_gone = [server](const auto& one) { return one->left() || one->server() == server; };
  if (std::ranges::all_of(channels_, is_gone) || KeepsAt(server)) return FailOnLoop(why);
  for (auto& channel : channels_)
    if (channel->server() == server && !channel->left()) channel->Leave();
  for (Part* const part : AllParts()) HaveAdopted(*part);
  for (const auto& part : retired_) HaveAdopted(*part);
}

// With their preludes. Links may ask for the mutex, so it is not held while they are dealt with.
std::vector<Part*> Engine::AllParts() const {
  std::lock_guard lock(mutex_);
  std::vector<Part*> all;
  for (const DeclaredTensor& tensor : tensors_.all())
    for (const auto& part : tensor.parts) {
      if (part->retired) continue;
      all.push_back(part.get());
      if (part->coding != nullptr && part->coding->prelude) all.push_back(part->coding->prelude.get());
    }
  return all;
}

// Values, or residuals, of which there is no other copy.
bool Engine::KeepsAt(uint32_t server) const {
  std::lock_guard lock(mutex_);
  const auto there = [server](const auto& part) { return part->channel->server() == server; };
  return std::ranges::any_of(tensors_.all(), [&](const DeclaredTensor& tensor) {
    const Coding* const coding = tensor.codings.empty() ? nullptr : tensor.codings.front().get();
    const bool has_state =
        tensor.kept || (coding != nullptr && tensors_.CodecText(coding->number).starts_with(kTwoWay));
    return has_state && std::ranges::any_of(tensor.parts, there);
  });
}

void Engine::HaveAdopted(Part& part) {
  Channel& old = *part.channel;
  if (!old.left()) return;
  const bool in_flight = old.Release(part);
  part.channel = &AdopterOf(part.key);
  context_.in_step.Place(old.index(), -int64_t{part.weight});
  context_.in_step.Place(part.channel->index(), part.weight);
  part.channel->Adopt(part, in_flight);
}

Channel& Engine::AdopterOf(uint64_t key) {
  Channel* best = nullptr;
  for (const auto& channel : channels_)
    if (!channel->left() && (best == nullptr || DrawnBy(key, *channel) > DrawnBy(key, *best))) best = channel.get();
  return *best;
}

// It is retired. Who lacks its last result can ask nobody else; of the oldest, what is left is word that it was there.
void Engine::KeepForOthers(Part& part) {
  if (part.coding != nullptr && part.coding->part == &part && part.coding->prelude)
    KeepForOthers(*part.coding->prelude);
  auto kept = std::make_unique<Part>();
  kept->key = part.key;
  kept->bytes = part.bytes;
  kept->round = part.round;
  kept->channel = part.channel;
  kept->absent = part.absent;
  kept->adoption = part.adoption;
  kept->held = std::move(part.held);
  kept->absences = part.absences;
  kept->channel->KeepFor(*kept);
  part.retired = true;
  retired_bytes_ += kept->bytes;
  retired_.push_back(std::move(kept));
  while (retired_bytes_ > kMostRetired && first_held_ + 1 < retired_.size()) {
    Part& oldest = *retired_[first_held_++];
    retired_bytes_ -= oldest.bytes;
    oldest.channel->LetGoOf(oldest);
  }
  if (retired_.size() <= kMostRecords) return;
  Part& oldest = *retired_.front();
  if (first_held_ == 0) retired_bytes_ -= oldest.bytes;
  first_held_ -= first_held_ > 0;
  oldest.channel->Release(oldest);
  retired_.pop_front();
}

}  // namespace byteps_like
