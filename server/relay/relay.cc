#include "server/relay/relay.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace byteps_like {
namespace {

EngineOptions Reporting(EngineOptions options, RelaySink& sink) {
  options.bounce_bytes = 0;
  options.on_event = [&sink](Code, const std::string& text, bool fatal) {
    if (!fatal) sink.OnRelayWarning(text);
  };
  return options;
}

}  // namespace

Relay::Relay(EventLoop& loop, EngineOptions options, const std::vector<ShardAddress>& owners, RelaySink& sink)
    : sink_(sink),
      context_(Reporting(std::move(options), sink), loop),
      silence_(context_, channels_, *this, [] { return false; }) {
  ChannelOwner& self = *this;
  for (const ShardAddress& owner : owners) {
    const size_t index = context_.in_step.Add();
    channels_.push_back(std::make_unique<Channel>(context_, self, owner, index));
    owners_.push_back({owner.server, owner.shard});
  }
}

Status Relay::Connect() {
  const std::chrono::duration<double> patience(context_.options.connect_timeout);
  for (const auto& channel : channels_) {
    const Deadline deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
    if (Status connected = channel->Connect(deadline); !connected.ok())
      return Status(connected.code(), context_.name() + ", an aggregator: " + connected.message());
    links_here_ += channel->shares_memory() ? 1 : 0;
  }
  return {};
}

void Relay::Start() {
  for (const auto& channel : channels_) channel->Start();
}

Status Relay::SetOwner(uint64_t key, ShardNumber owner) {
  const auto found = std::ranges::find(owners_, owner);
  const std::string name = "shard " + std::to_string(owner.shard) + " of server " + std::to_string(owner.server);
  if (found == owners_.end()) return Status(Code::kInvalid, name + " does not sum what racks pass on");
  Channel* const channel = channels_[static_cast<size_t>(found - owners_.begin())].get();
  std::unique_ptr<Passage>& passage = passages_[key];
  if (passage == nullptr) {
    passage = std::make_unique<Passage>();
    passage->part.key = key;
    passage->part.channel = channel;
  }
  return passage->part.channel == channel ? Status()
                                          : Status(Code::kMismatch, "the ranks disagree whether " + name + " owns it");
}

Status Relay::PassOn(uint64_t key, Round& round) {
  const auto found = passages_.find(key);
  if (found == passages_.end()) return Status(Code::kCorrupt, "no rank has said which server owns it");
  Passage& passage = *found->second;
  if (passage.in_flight) {
    passage.part.pending = passage.part.total - round.summed();
    passage.part.channel->Grown(passage.part);
    return {};
  }
  Fill(passage.part, round);
  passage.in_flight = true;
  passage.part.channel->Enqueue(passage.part);
  silence_.Arm();
  return {};
}

// As a worker's request would.
void Relay::Fill(Part& part, Round& round) {
  const Header about = round.Describe();
  context_.in_step.Place(part.channel->index(), int64_t{about.total} - part.bytes);
  part.bytes = part.total = part.weight = about.total;
  part.pending = about.total - round.summed();
  part.round = about.round;
  part.dtype = about.dtype;
  part.op = about.op;
  part.root = about.root;
  part.priority = about.priority;
  part.movable = (about.flags & kMovable) != 0;
  part.absent = !round.has_present();
  part.absentees = part.absent ? 0 : round.absent();
  part.brings = round.BringsAny();
  part.address = round.Relayed();
  part.order = order_++;
}

void Relay::Arrived(Part& part, const Header& result) {
  const bool at_once = (result.flags & (kByReference | kAbsent)) != 0;
  sink_.OnAnswer(part.key, part.round, at_once ? part.total : part.landed, (result.flags & kMovable) != 0);
}

void Relay::Landed(Part& part, const Status&) {
  const auto found = passages_.find(part.key);
  if (found != passages_.end() && &found->second->part == &part) found->second->in_flight = false;
}

void Relay::Forget(uint64_t key) {
  const auto found = passages_.find(key);
  if (found == passages_.end()) return;
  Part& part = found->second->part;
  if (found->second->in_flight) part.channel->GiveUp(part, Status(Code::kClosed, "its ranks have given it up"));
  context_.in_step.Place(part.channel->index(), -int64_t{part.bytes});
  part.channel->Forget(part);
  std::erase_if(forgotten_, [](const auto& passage) { return passage->part.waiting == 0; });
  if (part.waiting > 0) forgotten_.push_back(std::move(found->second));
  passages_.erase(found);
}

void Relay::Goodbye() {
  for (const auto& channel : channels_) channel->Goodbye();
}

void Relay::Abort(const Status& why) {
  for (const auto& channel : channels_) channel->Abort(why);
}

void Relay::LetGo() {
  for (const auto& channel : channels_)
    if (channel->held()) channel->LetGo();
}

// Sums are never encoded.
const std::string& Relay::CodecText(uint32_t) {
  static const std::string none;
  return none;
}

LinkCounters Relay::counters() const {
  LinkCounters sum;
  for (const auto& channel : channels_) sum += channel->counters();
  return sum;
}

}  // namespace byteps_like
