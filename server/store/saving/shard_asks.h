// What a shard asks those of other servers, each one question after the other: a question is asked again over a new
// link until it is answered, or the other server is gone. On the shard's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/transport/links/link.h"
#include "csrc/wire/frame.h"

namespace byteps_like {

class ShardAsks {
 public:
  using Then = std::function<void(Result<std::string>)>;

  // Of shards of these servers. What was asked before is not answered any more.
  void Reset(const std::vector<uint32_t>& servers);
  // There is a frame for that shard then. kPeerLost: its server is gone; kInvalid: there is no such shard.
  void Ask(uint32_t shard, std::string text, Then then);
  void Lose(uint32_t server);

  // From and to the link to it.
  bool Next(uint32_t shard, Outgoing& next, std::shared_ptr<const void>& keep);
  void OnNewWay(uint32_t shard) { shards_[shard].sent = 0; }
  void OnAnswer(uint32_t shard, const Header& header, std::span<const std::byte> payload);

 private:
  struct Asked {
    std::shared_ptr<const std::string> text;
    Then then;
  };
  struct Shard {
    uint32_t server = 0;
    bool gone = false;
    uint32_t first = 0;       // number of the first that isn't answered
    std::deque<Asked> asked;  // not answered
    size_t sent = 0;          // of these, on the link there is
  };

  std::vector<Shard> shards_;
};

}  // namespace byteps_like
