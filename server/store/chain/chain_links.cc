#include "server/store/chain/chain_links.h"

#include <algorithm>
#include <string>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/transport/entrance/dial.h"

namespace byteps_like {
namespace {

// How many answers a shard may leave unread.
constexpr size_t kMostReplies = 1u << 16;

}  // namespace

ChainLinks::ChainLinks(EventLoop& loop, EngineOptions options, std::vector<ShardAddress> shards, ChainHandler& handler)
    : loop_(loop), options_(std::move(options)), shards_(std::move(shards)), handler_(handler) {
  for (size_t shard = 0; shard < shards_.size(); ++shard) ways_.push_back(std::make_unique<Way>());
}

ChainLinks::~ChainLinks() {
  for (const auto& way : ways_) way->over = true;
  for (const auto& way : ways_)
    if (way->dialler.joinable()) way->dialler.join();
}

void ChainLinks::Kick(uint32_t shard) {
  Way& way = *ways_[shard];
  if (way.out) return way.out->Kick();
  if (!way.dials && !way.over) Dial(shard);
}

void ChainLinks::Confirm(uint32_t shard, Header copied) { Say(shard, copied, {}); }

void ChainLinks::Say(uint32_t shard, Header header, std::string payload) {
  Way& way = *ways_[shard];
  if (!way.in) return;  // what isn't confirmed, or answered, comes again
  header.view = options_.credentials.view;
  header.member = options_.member;
  header.length = static_cast<uint32_t>(payload.size());
  way.replies.push_back({header, std::make_shared<const std::string>(std::move(payload))});
  way.in->Kick();
}

void ChainLinks::Answer(uint32_t shard, const Header& question, std::span<const std::byte> asked) {
  Result<std::string> answer = handler_.OnQuestion(asked);
  Header header;
  header.type = question.type;
  header.round = question.round;
  header.aux = static_cast<uint32_t>(answer.status().code());
  if (!answer.ok()) return Say(shard, header, answer.status().message());
  Say(shard, header, std::move(*answer));
}

void ChainLinks::Lose(uint32_t server) {
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (shards_[shard].server != server) continue;
    Way& way = *ways_[shard];
    way.over = true;
    Close(way.out, way.under_way);
    Close(way.in, way.replies_under_way);
    way.replies.clear();
  }
}

void ChainLinks::End() {
  ended_ = true;
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) Lose(shards_[shard].server);
}

// Links -----------------------------------------------------------------------------------------------------------

void ChainLinks::Dial(uint32_t shard) {
  Way& way = *ways_[shard];
  if (way.dialler.joinable()) way.dialler.join();  // which has ended
  way.dials = true;
  auto dialler = StartThread("to connect to another server with", [this, shard] { DialUntilLetIn(shard); });
  if (!dialler.ok()) return handler_.OnChainFailed(dialler.status());
  way.dialler = std::move(*dialler);
}

// On a thread of its own. It may be that the other server hasn't heard of this epoch yet, or never will.
void ChainLinks::DialUntilLetIn(uint32_t shard) {
  const ShardAddress& address = shards_[shard];
  const Introduction who{
      {Role::kServer, options_.member}, {Role::kServer, address.member}, address.shard, options_.shard};
  Clock::duration pause = kFirstPause;
  for (size_t url = 0; !ways_[shard]->over; url = (url + 1) % address.urls.size()) {
    Dialled dialled =
        byteps_like::Dial(address.urls[url], options_.credentials, who, Clock::now() + std::chrono::seconds(60));
    if (dialled.stream != nullptr) {
      auto shared = std::make_shared<std::unique_ptr<Stream>>(std::move(dialled.stream));
      return loop_.Post([this, shard, shared] { Connected(shard, std::move(*shared)); });
    }
    Log(LogLevel::kDebug, address.urls[url] + ", of a copy, is out of reach: " + dialled.status.message());
    SleepFor(pause);
    pause = std::min<Clock::duration>(pause * 2, kLongestPause);
  }
}

void ChainLinks::Connected(uint32_t shard, std::unique_ptr<Stream> stream) {
  Way& way = *ways_[shard];
  way.dials = false;
  if (way.over) return;
  way.out = LinkOver(std::move(stream));
  handler_.OnNewWay(shard);
  way.out->Start();
  way.out->Kick();
}

void ChainLinks::Install(uint32_t shard, std::unique_ptr<Stream> stream) {
  if (shard >= ways_.size() || ways_[shard]->over) return stream->Shutdown();
  Way& way = *ways_[shard];
  Close(way.in, way.replies_under_way);
  way.replies.clear();
  way.in = LinkOver(std::move(stream));
  way.in->Start();
}

std::unique_ptr<Link> ChainLinks::LinkOver(std::unique_ptr<Stream> stream) {
  stream->LimitQueue(options_.kernel_queue_bytes);
  stream->LimitSilence(SilenceLimit(options_.stall_warning, options_.stall_timeout));
  return MakeLink(loop_, std::move(stream), *this);
}

void ChainLinks::Close(std::unique_ptr<Link>& link, Payloads& under_way) {
  if (!link) return;
  link->Close(Status(Code::kClosed, "this server has no use for it any more"));
  closing_.push_back({std::move(link), std::exchange(under_way, {})});
}

void ChainLinks::OnClosed(Link& link, const Status&) {
  const auto shard = ShardOf(link);
  if (!shard) {
    std::erase_if(closing_, [&link](const Closing& one) { return one.link.get() == &link; });
    return;
  }
  Way& way = *ways_[*shard];
  if (way.in.get() == &link) {
    way.in.reset();
    way.replies_under_way.clear();
    return;
  }
  way.out.reset();
  way.under_way.clear();
  if (!way.over) Dial(*shard);
}

// Frames ----------------------------------------------------------------------------------------------------------

std::optional<uint32_t> ChainLinks::ShardOf(const Link& link) const {
  for (uint32_t shard = 0; shard < ways_.size(); ++shard)
    if (ways_[shard]->out.get() == &link || ways_[shard]->in.get() == &link) return shard;
  return std::nullopt;
}

bool ChainLinks::IsOurs(uint32_t shard, const Header& header) const {
  return !ended_ && header.view == options_.credentials.view && header.member == shards_[shard].member;
}

std::byte* ChainLinks::PlaceFor(Link& link, const Header& header) {
  const auto shard = ShardOf(link);
  if (!shard || !IsOurs(*shard, header) || header.type != FrameType::kCopy) return kAnywhere;
  std::byte* const place = handler_.PlaceForCopy(*shard, header);
  return place == nullptr ? kAnywhere : place;
}

void ChainLinks::OnFrame(Link& link, const Header& header, std::byte* payload) {
  const auto shard = ShardOf(link);
  if (!shard || !IsOurs(*shard, header)) return;
  const Way& way = *ways_[*shard];
  const bool comes_in = way.in.get() == &link;
  const bool is_read = way.replies.size() < kMostReplies;
  if (comes_in && header.type == FrameType::kCopy && is_read) return handler_.OnCopy(*shard, header, payload);
  if (comes_in && header.type == FrameType::kState && is_read) return Answer(*shard, header, {payload, header.length});
  if (!comes_in && header.type == FrameType::kCopied) return handler_.OnCopied(*shard, header);
  if (!comes_in && header.type == FrameType::kState) return handler_.OnAnswer(*shard, header, {payload, header.length});
  handler_.OnChainFailed(Status(Code::kCorrupt, "server " + std::to_string(shards_[*shard].server) +
                                                    " broke the protocol: a frame that doesn't belong on its link"));
}

bool ChainLinks::NextFrame(Link& link, Outgoing& next) {
  const auto shard = ShardOf(link);
  if (!shard || ended_) return false;
  Way& way = *ways_[*shard];
  if (way.in.get() == &link) return NextReply(way, next);
  std::shared_ptr<const void> keep;
  if (!handler_.NextForShard(*shard, next, keep)) return false;
  next.header.view = options_.credentials.view;
  next.header.member = options_.member;
  way.under_way.push_back(std::move(keep));
  return true;
}

bool ChainLinks::NextReply(Way& way, Outgoing& next) {
  if (way.replies.empty()) return false;
  Reply reply = std::move(way.replies.front());
  way.replies.pop_front();
  next.header = reply.header;
  next.payload = reinterpret_cast<const std::byte*>(reply.payload->data());
  way.replies_under_way.push_back(std::move(reply.payload));
  return true;
}

void ChainLinks::OnSent(Link& link, const Header&) {
  const auto shard = ShardOf(link);
  if (!shard) return;
  Way& way = *ways_[*shard];
  (way.in.get() == &link ? way.replies_under_way : way.under_way).pop_front();
}

}  // namespace byteps_like
