// What an engine does when a server has died, and the others take over what was there.
#include <algorithm>
#include <memory>
#include <utility>

#include "csrc/engine/channel.h"
#include "csrc/engine/engine.h"
#include "csrc/wire/adopter.h"

namespace byteps_like {
namespace {

constexpr size_t kMostRetired = 64u << 20;  // bytes of results that are kept of tensors which are no more
constexpr size_t kMostRecords = 1u << 16;
constexpr const char* kTwoWay = "twoway ";  // codecs whose servers keep an error feedback

}  // namespace

void Engine::GoOnWithout(uint32_t server, const std::string& why) {
  context_.loop.Post([this, server, why] { LeaveOnLoop(server, Status(Code::kPeerLost, why)); });
}

void Engine::LeaveOnLoop(uint32_t server, const Status& why) {
  const auto is_gone = [server](const auto& one) { return one->left() || one->server() == server; };
  if (std::ranges::all_of(channels_, is_gone) || HasResidualsAt(server)) return FailOnLoop(why);
  for (auto& channel : channels_)
    if (channel->server() == server && !channel->left()) channel->Leave();
  for (Part* const part : AllParts()) HaveAdopted(*part);
  for (const auto& part : retired_) HaveAdopted(*part);
  for (Part* const part : KeptParts()) MoveKept(*part);
  const Status asked(Code::kPeerLost, "server " + std::to_string(server) +
                                          " has died, and what it was asked for may have been done: ask again");
  for (auto& channel : channels_)
    if (channel->server() == server) channel->kept().End(asked);
}

// With their preludes. Links may ask for the mutex, so it is not held while they are dealt with.
std::vector<Part*> Engine::AllParts() const {
  std::lock_guard lock(mutex_);
  std::vector<Part*> all;
  for (const DeclaredTensor& tensor : tensors_.all())
    for (const auto& part : tensor.parts) {
      if (part->retired || tensor.kept) continue;
      all.push_back(part.get());
      if (part->coding != nullptr && part->coding->prelude) all.push_back(part->coding->prelude.get());
    }
  return all;
}

// Residuals, of which there is no copy. Of a value there is one, or the shard that others go to says so.
bool Engine::HasResidualsAt(uint32_t server) const {
  std::lock_guard lock(mutex_);
  const auto there = [server](const auto& part) { return part->channel->server() == server; };
  return std::ranges::any_of(tensors_.all(), [&](const DeclaredTensor& tensor) {
    const Coding* const coding = tensor.codings.empty() ? nullptr : tensor.codings.front().get();
    const bool has_residuals = coding != nullptr && tensors_.CodecText(coding->number).starts_with(kTwoWay);
    return has_residuals && std::ranges::any_of(tensor.parts, there);
  });
}

std::vector<Part*> Engine::KeptParts() const {
  std::lock_guard lock(mutex_);
  std::vector<Part*> kept;
  for (const DeclaredTensor& tensor : tensors_.all())
    if (tensor.kept)
      for (const auto& part : tensor.parts) kept.push_back(part.get());
  return kept;
}

// Of which the shard that takes it over has a copy.
void Engine::MoveKept(Part& part) {
  Channel& old = *part.channel;
  if (!old.left()) return;
  Channel& adopter = AdopterOf(part.home);
  if (!adopter.busy()) adopter.Heard();
  {
    std::lock_guard lock(mutex_);
    part.channel = &adopter;
  }
  old.kept().Move(part.key, adopter.kept());
  silence_.Arm();
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

// Of a key, or of all that was at home in a channel.
Channel& Engine::AdopterOf(uint64_t what) {
  Channel* best = nullptr;
  for (const auto& channel : channels_)
    if (!channel->left() && (best == nullptr || DrawOf(what, channel->index()) > DrawOf(what, best->index())))
      best = channel.get();
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
