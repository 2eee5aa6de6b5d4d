// The sending half of a StreamLink: asks the handler for frames when the stream has room, and writes each with its
// header in one call.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "csrc/transport/counter.h"
#include "csrc/transport/links/link.h"

namespace byteps_like {

class LinkWriter {
 public:
  LinkWriter(Link& link, Stream& stream, LinkHandler& handler) : link_(link), stream_(stream), handler_(handler) {}

  // Writes about `budget` bytes at most. True: the handler may have more and the stream may have room; false: one of
  // them said "nothing now" (see blocked()). Ends early when `stop` turns true.
  Result<bool> Send(size_t budget, const bool& stop);

  void Keep();  // of frames that are not completely sent: payloads are copied

  bool blocked() const { return blocked_; }  // the stream was full: an event follows when it has room
  bool sent_goodbye() const { return sent_goodbye_; }

  const Traffic& traffic() const { return traffic_; }  // any thread

 private:
  static constexpr size_t kBatch = 16;  // small frames that share one write

  struct Pending {
    Outgoing frame;
    std::array<std::byte, kHeaderBytes> header;
    std::unique_ptr<std::byte[]> kept;
  };

  void Gather(const bool& stop);
  size_t Pieces(std::array<iovec, 2 * kBatch>& pieces);
  void Sent(size_t bytes);

  Link& link_;
  Stream& stream_;
  LinkHandler& handler_;
  std::array<Pending, kBatch> batch_;
  size_t first_ = 0, count_ = 0;  // batch_[first_ .. count_) is not sent whole
  size_t sent_of_first_ = 0;      // bytes, header included
  uint64_t copied_ = 0;           // bytes, in this turn
  bool blocked_ = false;
  bool sent_goodbye_ = false;
  Traffic traffic_;
};

}  // namespace byteps_like
