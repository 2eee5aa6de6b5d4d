#include "csrc/engine/channel.h"

#include <algorithm>
#include <chrono>

#include "csrc/base/log.h"

namespace byteps_like {
namespace {

constexpr auto kFirstPause = std::chrono::milliseconds(2);  // between tries to connect, doubled up to:
constexpr auto kOneTry = std::chrono::seconds(2);
constexpr auto kLendAfter = std::chrono::milliseconds(50);
constexpr auto kLongestPause = std::chrono::milliseconds(100);

Clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

Status ShutDown() { return Status(Code::kClosed, "this rank was shut down while the operation was in flight"); }

}  // namespace

Channel::Channel(Engine& engine, ShardAddress address) : engine_(engine), address_(std::move(address)) {}

Channel::~Channel() {
  ending_ = true;
  if (connector_.joinable()) connector_.join();
}

std::string Channel::name() const {
  return "server " + std::to_string(address_.server) + " shard " + std::to_string(address_.shard) + " (" +
         address_.urls[url_] + ")";
}

LinkCounters Channel::counters() const {
  LinkCounters sum;
  sum.frames_sent = counters_.frames_sent;
  sum.frames_received = counters_.frames_received;
  sum.payload_sent = counters_.payload_sent;
  sum.payload_received = counters_.payload_received;
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
  return Status(last.code() == Code::kRefused ? last.code() : Code::kPeerLost,
                "can't connect to " + name() + ": " + last.message());
}

// One try after the other until the deadline: a server may be restarting its listener.
Result<std::unique_ptr<Stream>> Channel::Dial(Deadline deadline) {
  const PeerIdentity self{Role::kWorker, engine_.options_.rank, address_.shard};
  for (auto pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    auto stream = byteps_like::Connect(address_.urls[url_], std::min(deadline, Clock::now() + kOneTry));
    Status status = stream.status();
    if (stream.ok()) {
      status =
          ClientHandshake(**stream, engine_.options_.credentials, self, std::min(deadline, Clock::now() + kOneTry));
      if (status.ok()) return stream;
      if (status.code() == Code::kRefused) return status;
    }
    const bool other_way = !established_ && url_ + 1 < address_.urls.size();
    if (ending_ || other_way || Clock::now() + pause > deadline) return status;
    std::this_thread::sleep_for(pause);
  }
}

void Channel::Start() { Install(std::move(first_stream_)); }

void Channel::Install(std::unique_ptr<Stream> stream) {
  shared_regions_.clear();
  control_.clear();
  link_ = MakeStreamLink(engine_.loop_, std::move(stream), *this);
  for (Part* part : in_flight_) Resume(*part);
  link_->Start();
  link_->Kick();
}

void Channel::Reconnect(const Status& why) {
  Log(LogLevel::kInfo, name() + ": link lost (" + why.message() + "), connecting again");
  if (connector_.joinable()) connector_.join();
  const Deadline deadline = Clock::now() + Seconds(engine_.options_.connect_timeout);
  connector_ = std::thread([this, deadline, why] {
    auto stream = Dial(deadline);
    if (ending_) return;
    if (stream.ok()) {
      auto shared = std::make_shared<std::unique_ptr<Stream>>(std::move(*stream));
      engine_.loop_.Post([this, shared] {
        if (!ending_) Install(std::move(*shared));
      });
      return;
    }
    const Status lost(Code::kPeerLost, name() + " is gone: " + why.message() + "; " + stream.status().message());
    engine_.loop_.Post([this, lost] { engine_.FailOnLoop(lost); });
  });
}

void Channel::OnClosed(Link& link, const Status& why) {
  if (&link != link_.get()) {
    std::erase_if(closing_, [&link](const auto& closing) { return closing.get() == &link; });
    return;
  }
  link_.reset();
  if (!ending_) return Reconnect(why);
  FinishAll(ShutDown());
  engine_.OnChannelClosed();
}

// Out -----------------------------------------------------------------------------------------------------------------

void Channel::Enqueue(Part& part) {
  parts_.emplace(part.key, &part);
  part.sent = part.landed = 0;
  part.begun = part.resuming = part.streamed = false;
  part.slot = in_flight_.size();
  if (in_flight_.empty()) Heard();
  in_flight_.push_back(&part);
  Queue(part);
}

void Channel::Queue(Part& part) {
  if (part.queued) return;
  part.queued = true;
  queue_.push({part.priority, part.order, &part});
  if (link_) link_->Kick();
}

// After a new link: what went over the old one may or may not have been counted.
void Channel::Resume(Part& part) {
  if (!part.begun) return;
  if (!part.streamed) {  // by reference: saying it again does no harm
    part.sent = 0;
    return Queue(part);
  }
  part.resuming = true;
  Header header = HeaderFor(part, FrameType::kResume);
  header.offset = part.landed;
  control_.push_back(header);
}

Header Channel::HeaderFor(const Part& part, FrameType type) const {
  Header header;
  header.type = type;
  header.dtype = part.dtype;
  header.op = part.op;
  header.epoch = engine_.options_.credentials.epoch;
  header.rank = engine_.options_.rank;
  header.key = part.key;
  header.round = part.round;
  header.priority = part.priority;
  header.total = part.total;
  header.root = part.root;
  return header;
}

bool Channel::NextFrame(Link& link, Outgoing& next) {
  if (&link != link_.get()) return false;
  if (!control_.empty()) {
    next.header = control_.front();
    control_.pop_front();
    return true;
  }
  return NextPush(next);
}

// Credit keeps the links of one worker, and the workers of one job, in step: who is ahead of the others by so much
// waits, and leaves the wire to what the others are waiting for.
bool Channel::HasCredit() {
  if (ahead_ < static_cast<int64_t>(engine_.options_.credit_bytes) + lent_) return true;
  if (!lending_armed_) {
    lending_armed_ = true;
    engine_.loop_.CallAt(Clock::now() + kLendAfter, [this] { LendCredit(); });
  }
  return false;
}

// Ranks that push in different orders would wait for each other for ever: when nothing comes, credit is given.
void Channel::LendCredit() {
  lending_armed_ = false;
  if (queue_.empty()) return;
  if (Clock::now() - last_landing_ >= kLendAfter) lent_ = std::max(2 * lent_, ahead_);
  if (link_) link_->Kick();
}

bool Channel::Contributes(const Part& part) const {
  return part.op != Op::kBroadcast || part.root == engine_.options_.rank;
}

bool Channel::NextPush(Outgoing& next) {
  while (!queue_.empty() && (!queue_.top().part->queued || queue_.top().part->resuming)) {
    queue_.top().part->queued = false;
    queue_.pop();
  }
  if (queue_.empty()) return false;
  Part& part = *queue_.top().part;
  if (Refer(part, next)) return true;
  if (!HasCredit()) return false;
  part.streamed = true;
  next.header = HeaderFor(part, FrameType::kPush);
  if (!Contributes(part)) {
    part.sent = part.total;  // takes part, has nothing to say
  } else {
    next.header.offset = part.sent;
    next.header.length =
        static_cast<uint32_t>(std::min<size_t>(part.total - part.sent, engine_.options_.segment_bytes));
    next.payload = part.address + part.sent;
    part.sent += next.header.length;
    ahead_ += next.header.length;
  }
  part.begun = true;
  if (part.sent == part.total) {
    part.queued = false;
    queue_.pop();
  }
  return true;
}

// A contribution in memory that the server maps: says where, moves nothing.
bool Channel::Refer(Part& part, Outgoing& next) {
  if (!link_->shares_memory() || part.streamed) return false;
  const SharedRegion* const region = engine_.RegionOf(part.address, part.total);
  if (region == nullptr) return false;
  if (!shared_regions_.contains(region->id)) {
    if (!link_->PassBuffer(*region->buffer).ok()) return false;  // out of descriptors, say: goes as a stream
    shared_regions_.insert(region->id);
    next.header = HeaderFor(part, FrameType::kRegion);
    next.header.aux = region->id;
    next.header.offset = region->buffer->size();
    return true;
  }
  next.header = HeaderFor(part, FrameType::kPush);
  next.header.flags = kByReference;
  next.header.aux = region->id;
  next.header.offset = static_cast<uint64_t>(part.address - region->buffer->data());
  part.sent = part.total;
  part.begun = true;
  part.queued = false;
  queue_.pop();
  return true;
}

void Channel::OnSent(Link& link, const Header& header) {
  ++counters_.frames_sent;
  counters_.payload_sent += header.length;
  if (header.type == FrameType::kGoodbye) link.Close(Status(Code::kClosed, ""));
}

// In ------------------------------------------------------------------------------------------------------------------

Part* Channel::Expected(const Header& header) {
  if (header.epoch != engine_.options_.credentials.epoch) return nullptr;
  const auto found = parts_.find(header.key);
  if (found == parts_.end()) return nullptr;
  Part& part = *found->second;
  const bool awaited = part.begun && part.round == header.round && part.total == header.total;
  return awaited ? &part : nullptr;
}

std::byte* Channel::PlaceFor(Link& link, const Header& header) {
  if (&link != link_.get()) return nullptr;
  if (header.type == FrameType::kResult) {
    Part* const part = Expected(header);
    if (part != nullptr && header.offset == part->landed) return part->address + header.offset;
  }
  if (scratch_.size() < header.length) scratch_.resize(header.length);
  return scratch_.data();
}

void Channel::OnFrame(Link& link, const Header& header, std::byte* payload) {
  ++counters_.frames_received;
  counters_.payload_received += header.length;
  Heard();
  warnings = 0;
  if (&link != link_.get()) return;
  const auto text = [&] { return std::string(reinterpret_cast<const char*>(payload), header.length); };
  switch (header.type) {
    case FrameType::kResult:
      if (Part* const part = Expected(header)) OnResult(*part, header);
      return;
    case FrameType::kResumed:
      if (Part* const part = Expected(header)) OnResumed(*part, header);
      return;
    case FrameType::kWarning:
      return engine_.options_.on_event(static_cast<Code>(header.aux), text(), false);
    case FrameType::kError:
      return engine_.FailOnLoop(Status(static_cast<Code>(header.aux), text()));
    default:
      return link.Close(Status(Code::kCorrupt, "a server sent a frame that only workers send"));
  }
}

void Channel::OnResult(Part& part, const Header& header) {
  const bool in_place = (header.flags & kByReference) != 0;
  if (!in_place && header.offset == part.landed) {
    part.landed += header.length;
    if (Contributes(part)) ahead_ -= header.length;
    if (ahead_ <= static_cast<int64_t>(engine_.options_.credit_bytes)) lent_ = 0;  // in step again
    last_landing_ = Clock::now();
  }
  if (in_place || part.landed == part.total) Finish(part, Status());
  if (link_ && !queue_.empty()) link_->Kick();
}

void Channel::OnResumed(Part& part, const Header& header) {
  if (!part.resuming) return;
  if (header.offset < part.landed)
    return engine_.FailOnLoop(Status(Code::kPeerLost, name() + " has forgotten what it had summed"));
  part.resuming = false;
  const auto counted = static_cast<uint32_t>(std::min<uint64_t>(header.offset, part.total));
  if (Contributes(part)) ahead_ += static_cast<int64_t>(counted) - part.sent;
  part.sent = counted;
  if (part.sent < part.total) Queue(part);
}

void Channel::Finish(Part& part, const Status& status) {
  in_flight_.back()->slot = part.slot;
  std::swap(in_flight_[part.slot], in_flight_.back());
  in_flight_.pop_back();
  if (part.streamed && Contributes(part)) ahead_ -= static_cast<int64_t>(part.sent) - part.landed;
  part.streamed = part.begun = part.queued = false;
  ++part.round;
  engine_.Complete(part, status);
}

// The end -------------------------------------------------------------------------------------------------------------

void Channel::FinishAll(const Status& status) {
  queue_ = {};
  while (!in_flight_.empty()) Finish(*in_flight_.back(), status);
}

void Channel::Abort(const Status& why) {
  ending_ = true;
  if (link_) {
    link_->Close(why);
    closing_.push_back(std::move(link_));
  }
  FinishAll(why);
}

// The link may be in the middle of a frame to or from the memory of what is in flight: that ends with the link.
void Channel::Goodbye() {
  ending_ = true;
  queue_ = {};
  if (!link_) return FinishAll(ShutDown());
  Header header;
  header.type = FrameType::kGoodbye;
  header.epoch = engine_.options_.credentials.epoch;
  header.rank = engine_.options_.rank;
  control_.push_back(header);
  link_->Kick();
}

}  // namespace byteps_like
