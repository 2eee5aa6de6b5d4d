#include "server/store/saving/shard_asks.h"

#include <utility>

namespace byteps_like {
namespace {

Status Gone(uint32_t server) {
  return Status(Code::kPeerLost, "server " + std::to_string(server) + ", which had it, is gone");
}

}  // namespace

void ShardAsks::Reset(const std::vector<uint32_t>& servers) {
  shards_ = std::vector<Shard>(servers.size());
  for (size_t shard = 0; shard < servers.size(); ++shard) shards_[shard].server = servers[shard];
}

void ShardAsks::Ask(uint32_t shard, std::string text, Then then) {
  if (shard >= shards_.size()) return then(Status(Code::kInvalid, "there is no shard " + std::to_string(shard)));
  Shard& to = shards_[shard];
  if (to.gone) return then(Gone(to.server));
  to.asked.push_back({std::make_shared<const std::string>(std::move(text)), std::move(then)});
}

void ShardAsks::Lose(uint32_t server) {
  for (Shard& to : shards_) {
    if (to.server != server) continue;
    to.gone = true;
    to.sent = 0;
    for (Asked& one : std::exchange(to.asked, {})) one.then(Gone(server));
  }
}

bool ShardAsks::Next(uint32_t shard, Outgoing& next, std::shared_ptr<const void>& keep) {
  if (shard >= shards_.size()) return false;
  Shard& to = shards_[shard];
  if (to.sent == to.asked.size()) return false;
  const auto& text = to.asked[to.sent].text;
  next.header = {};
  next.header.type = FrameType::kState;
  next.header.round = to.first + static_cast<uint32_t>(to.sent++);
  next.header.length = static_cast<uint32_t>(text->size());
  next.payload = reinterpret_cast<const std::byte*>(text->data());
  keep = text;
  return true;
}

void ShardAsks::OnAnswer(uint32_t shard, const Header& header, std::span<const std::byte> payload) {
  Shard& to = shards_[shard];
  if (to.sent == 0 || header.round != to.first) return;
  const Asked one = std::move(to.asked.front());
  to.asked.pop_front();
  ++to.first;
  --to.sent;
  std::string text(reinterpret_cast<const char*>(payload.data()), payload.size());
  if (header.aux == static_cast<uint32_t>(Code::kOk)) return one.then(std::move(text));
  one.then(Status(CodeFrom(header.aux), std::move(text)));
}

}  // namespace byteps_like
