// The links between a shard and those of other servers: copies, and questions about what they have set aside, go out by
// links that it dials when there is something for them, and come in by those that the others dial. A link that breaks
// is made anew until its server is said to be gone.
//
// They live for one epoch, on their shard's loop; they are destroyed there once no dialler can be left.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/thread.h"
#include "csrc/engine/engine_context.h"
#include "csrc/transport/links/link.h"
#include "csrc/transport/loop/event_loop.h"

namespace byteps_like {

// What they ask of a shard, and tell it. On the loop. Shards of all servers are numbered as workers number them.
class ChainHandler {
 public:
  // The next frame for that shard, and what keeps its payload; false: there is none.
  virtual bool NextForShard(uint32_t shard, Outgoing& next, std::shared_ptr<const void>& keep) = 0;
  virtual void OnNewWay(uint32_t shard) = 0;  // nothing is known to have arrived there
  virtual void OnCopied(uint32_t shard, const Header& header) = 0;
  virtual std::byte* PlaceForCopy(uint32_t shard, const Header& header) = 0;  // nullptr: anywhere
  virtual void OnCopy(uint32_t shard, const Header& header, const std::byte* payload) = 0;
  virtual Result<std::string> OnQuestion(std::span<const std::byte> asked) = 0;
  virtual void OnAnswer(uint32_t shard, const Header& header, std::span<const std::byte> payload) = 0;
  virtual void OnChainFailed(const Status& why) = 0;  // ends the job

 protected:
  ~ChainHandler() = default;
};

class ChainLinks : private LinkHandler {
 public:
  // `options`: of a server's links to others, as those of a relay; its `shard` is this one. `shards`: of all servers.
  ChainLinks(EventLoop& loop, EngineOptions options, std::vector<ShardAddress> shards, ChainHandler& handler);
  ~ChainLinks() override;

  const std::vector<ShardAddress>& shards() const { return shards_; }
  // On the loop, as all that follows.
  void Kick(uint32_t shard);  // there is a frame for it now
  void Confirm(uint32_t shard, Header copied);
  void Install(uint32_t shard, std::unique_ptr<Stream> stream);  // which it has dialled
  void Lose(uint32_t server);
  void End();  // nothing is asked or told any more

 private:
  using Payloads = std::deque<std::shared_ptr<const void>>;
  struct Reply {
    Header header;
    std::shared_ptr<const std::string> payload;
  };
  struct Way {
    std::unique_ptr<Link> out, in;
    Payloads under_way;          // of each frame on `out`,
    Payloads replies_under_way;  // and on `in`
    std::deque<Reply> replies;   // to go by `in`
    Thread dialler;
    bool dials = false;
    std::atomic<bool> over{false};
  };
  struct Closing {
    std::unique_ptr<Link> link;
    Payloads under_way;
  };

  std::byte* PlaceFor(Link& link, const Header& header) override;
  void OnFrame(Link& link, const Header& header, std::byte* payload) override;
  bool NextFrame(Link& link, Outgoing& next) override;
  void OnSent(Link& link, const Header& header) override;
  void OnClosed(Link& link, const Status& why) override;

  void Dial(uint32_t shard);
  void DialUntilLetIn(uint32_t shard);
  void Connected(uint32_t shard, std::unique_ptr<Stream> stream);
  std::unique_ptr<Link> LinkOver(std::unique_ptr<Stream> stream);
  void Close(std::unique_ptr<Link>& link, Payloads& under_way);
  void Say(uint32_t shard, Header header, std::string payload);
  void Answer(uint32_t shard, const Header& question, std::span<const std::byte> asked);
  static bool NextReply(Way& way, Outgoing& next);
  std::optional<uint32_t> ShardOf(const Link& link) const;
  bool IsOurs(uint32_t shard, const Header& header) const;

  EventLoop& loop_;
  const EngineOptions options_;
  const std::vector<ShardAddress> shards_;
  ChainHandler& handler_;
  bool ended_ = false;
  std::vector<std::unique_ptr<Way>> ways_;  // by shard
  std::vector<Closing> closing_;
};

}  // namespace byteps_like
