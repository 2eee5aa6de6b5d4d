#include "csrc/engine/channel.h"

#include <algorithm>
#include <chrono>

#include "csrc/base/log.h"
#include "csrc/base/thread.h"
#include "csrc/transport/entrance/dial.h"
#include "csrc/transport/url.h"

namespace byteps_like {
namespace {

constexpr double kUntilTold = 10;  // seconds until a scheduler that has just been replaced says that a server has died

Clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// A peer that can't be reached is lost, unless it refuses us, or this process has no descriptor left.
Code CodeOfLoss(const Status& why) {
  return why.code() == Code::kRefused || why.code() == Code::kCapacity ? why.code() : Code::kPeerLost;
}

Status ShutDown() { return Status(Code::kClosed, "this rank was shut down while the operation was in flight"); }

}  // namespace

Channel::Channel(EngineContext& context, ChannelOwner& owner, ShardAddress address, size_t index)
    : context_(context), owner_(owner), address_(std::move(address)), index_(index), kept_(context, owner, [this] {
        if (link_) link_->Kick();
      }) {}

Channel::~Channel() {
  ending_ = true;
  if (connector_.joinable()) connector_.join();
}

std::string Channel::name() const {
  return "server " + std::to_string(address_.server) + " shard " + std::to_string(address_.shard) + " (" +
         address_.urls[url_] + ")";
}

std::string Channel::transport() const {
  auto url = ParseUrl(address_.urls[url_]);
  return url.ok() ? url->scheme : "";
}

LinkCounters Channel::counters() const {
  LinkCounters sum;
  sum.frames_sent = counters_.frames_sent;
  sum.frames_received = counters_.frames_received;
  sum.payload_sent = counters_.payload_sent;
  sum.payload_received = counters_.payload_received;
  sum.payload_placed = counters_.payload_placed;
  sum.bytes_sent = sum.payload_sent + kHeaderBytes * sum.frames_sent;
  sum.bytes_received = sum.payload_received + kHeaderBytes * sum.frames_received;
  return sum;
}

// Connecting ----------------------------------------------------------------------------------------------------------

Status Channel::Connect(Deadline deadline) {
  Status last(Code::kInvalid, "no address of " + name());
  for (url_ = 0; url_ < address_.urls.size(); ++url_) {
    auto stream = Dial(deadline);
    if (stream.ok()) {
      first_stream_ = std::move(*stream);
      established_ = true;
      return Status();
    }
    last = stream.status();
    if (last.code() == Code::kRefused) break;
    Log(LogLevel::kInfo, address_.urls[url_] + " is out of reach: " + last.message());
  }
  url_ = std::min(url_.load(), address_.urls.size() - 1);
  return Status(CodeOfLoss(last), "can't connect to " + name() + ": " + last.message());
}

// One try after the other until the deadline: a server may be restarting its listener. The last one, which the deadline
// cuts short, says less than one that was refused before.
Result<std::unique_ptr<Stream>> Channel::Dial(Deadline deadline) {
  const EngineOptions& own = context_.options;
  const Introduction who{{own.role, own.member}, {Role::kServer, address_.member}, address_.shard, own.shard};
  Status refused;
  for (Clock::duration pause = kFirstPause;; pause = std::min<Clock::duration>(pause * 2, kLongestPause)) {
    Dialled dialled = byteps_like::Dial(address_.urls[url_], own.credentials, who, deadline);
    if (dialled.stream != nullptr) return std::move(dialled.stream);
    if (dialled.status.code() == Code::kRefused) refused = dialled.status;
    const bool other_way = !established_ && url_ + 1 < address_.urls.size();
    if (dialled.is_final || ending_ || other_way || Clock::now() + pause > deadline)
      return dialled.status.code() == Code::kTimeout && !refused.ok() ? refused : dialled.status;
    SleepFor(pause);
  }
}

void Channel::Start() { Install(std::move(first_stream_)); }

void Channel::Install(std::unique_ptr<Stream> stream) {
  shared_regions_.clear();
  named_codecs_.clear();
  for (const auto& [key, part] : parts_) part->told_owner = false;
  std::erase_if(control_, [](const Header& one) { return one.type != FrameType::kForget; });
  gifts_.clear();  // asked for again
  gifts_under_way_ = 0;
  placed_before_ = counters_.payload_placed;
  stream->LimitQueue(context_.options.kernel_queue_bytes);
  stream->LimitSilence(SilenceLimit(context_.options.stall_warning, context_.options.stall_timeout));
  link_ = MakeLink(context_.loop, std::move(stream), *this);
  for (const auto& [key, part] : parts_)
    if (part->adoption == AdoptionStage::kAsked) AskToAdopt(*part, IsInFlight(*part));
  for (Part* part : in_flight_) Resume(*part);
  kept_.OnNewLink();
  Announce();
  link_->Start();
  link_->Kick();
}

void Channel::Reconnect(const Status& why) {
  Log(LogLevel::kInfo, name() + ": link lost (" + why.message() + "), connecting again");
  if (connector_.joinable()) connector_.join();
  const double patience = context_.options.outlives_servers ? kUntilTold : 0;
  const Deadline deadline = Clock::now() + Seconds(context_.options.connect_timeout + patience);
  auto connector = StartThread("to connect again with", [this, deadline, why] {
    auto stream = Dial(deadline);
    if (ending_) return;
    if (stream.ok()) {
      auto shared = std::make_shared<std::unique_ptr<Stream>>(std::move(*stream));
      context_.loop.Post([this, shared] {
        if (!ending_) Install(std::move(*shared));
      });
      return;
    }
    const Status lost(CodeOfLoss(stream.status()),
                      name() + " is gone: " + why.message() + "; " + stream.status().message());
    context_.loop.Post([this, lost] {
      if (!ending_) owner_.FailOnLoop(lost);
    });
  });
  if (connector.ok()) {
    connector_ = std::move(*connector);
  } else {
    owner_.FailOnLoop(Status(connector.status().code(),
                             name() + ": link lost (" + why.message() + "), and " + connector.status().message()));
  }
}

void Channel::OnClosed(Link& link, const Status& why) {
  if (&link != link_.get()) {
    std::erase_if(closing_, [&link](const auto& closing) { return closing.get() == &link; });
    return;
  }
  link_.reset();
  Announce();
  if (!ending_) return Reconnect(why);
  FinishAll(ShutDown());
  owner_.OnChannelClosed();
}

// The end -------------------------------------------------------------------------------------------------------------

void Channel::FinishAll(const Status& status) {
  queue_ = {};
  Announce();
  while (!in_flight_.empty()) Finish(*in_flight_.back(), status);
  kept_.End(status);
}

void Channel::Abort(const Status& why) {
  const Status failure = Failure(why);
  ending_ = true;
  if (link_) {
    link_->Close(failure);
    closing_.push_back(std::move(link_));
  }
  FinishAll(failure);
}

// No result will come for it, because the round can't become complete. Bytes that the link still holds by reference are
// copied first.
void Channel::GiveUp(const Operation& operation) {
  if (link_) link_->Keep();
  for (size_t i = in_flight_.size(); i-- > 0;) {
    Part& part = *in_flight_[i];
    if (OperationOf(part) == &operation) Finish(part, operation.given_up);
  }
  Announce();
}

void Channel::GiveUp(Part& part, const Status& why) {
  if (link_) link_->Keep();
  Finish(part, why);
  Announce();
}

// If the link breaks meanwhile, the message is lost, and the server keeps the key until the epoch ends.
void Channel::Forget(const Part& part) {
  absences_.Forget(part.key);
  if (parts_.erase(part.key) == 0 && !kept_.Forget(part.key)) return;
  if (link_ && gifts_under_way_ > 0) link_->Keep();
  Next();  // passes over it, where it was given up and is still the first in the queue
  Header header = HeaderFor(part, FrameType::kForget);
  header.total = 0;
  control_.push_back(header);
  if (!link_) return;
  link_->Offer(HeaderFor(part, FrameType::kResult), nullptr, 0);
  link_->Kick();
}

void Channel::Withdraw(uint32_t region) {
  if (shared_regions_.erase(region) == 0 || !link_ || ending_) return;
  control_.push_back(RegionHeader(region, 0));
  link_->Kick();
}

// The link may be in the middle of a frame to or from the memory of partitions in flight, so these end with the link.
void Channel::Goodbye() {
  ending_ = true;
  queue_ = {};
  Announce();
  if (!link_) return FinishAll(ShutDown());
  Header header;
  header.type = FrameType::kGoodbye;
  header.view = context_.options.credentials.view;
  header.member = context_.options.member;
  control_.push_back(header);
  link_->Kick();
}

}  // namespace byteps_like
