// The next server in the chain of a store key, which has a copy of it, as the one before sees it: what was sent there
// and isn't confirmed, and what may not be said before that is. On the shard's thread.
//
// While a copy is made nothing waits for it, once what was there before, of an earlier chain perhaps, is no more: the
// key has one copy fewer until it is whole, and is told that it counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "csrc/transport/links/link.h"
#include "csrc/wire/frame.h"
#include "server/store/chain/record.h"

namespace byteps_like {

class Successor {
 public:
  explicit Successor(uint64_t key) : key_(key) {}

  void Begin(uint32_t shard, CopyRecord whole);  // at another shard, or the same anew
  void Update(CopyRecord update);
  void SetAside();  // nothing goes on before the next world; also for a copy that is yet to count
  void Discard();   // the copy is to be no more, which somebody waits for
  void End();       // there is nobody to have one any more
  // Says it once all that was sent so far is in the copy; at once, if there is nothing to wait for. `rank`: who waits.
  void After(uint32_t rank, double now, std::function<void()> say);

  std::optional<uint32_t> shard() const { return shard_; }
  bool is_held() const { return held_; }  // the copy knows that it counts
  // Whether After would wait.
  bool defers() const { return shard_ && (!begun_ || (whole_ && !frames_.empty())); }
  bool has_unconfirmed() const { return !frames_.empty(); }
  struct Wait {
    uint32_t rank = 0;
    double since = 0;
  };
  std::optional<Wait> LongestWait() const;

  // Of the link to it.
  bool has_next() const { return sent_ < frames_.size(); }
  std::shared_ptr<const void> Next(Outgoing& next);  // which there is; what keeps its payload until it is sent
  void OnNewLink() { sent_ = 0; }
  bool Confirm(uint32_t number);  // false: nothing of that number was sent

 private:
  struct Frame {
    Header header;
    CopyPiece payload;
  };
  struct Waiting {
    uint32_t number = 0;
    Wait wait;
    std::function<void()> say;
  };

  void Renew();
  void Add(CopyPart part, CopyRecord record);
  void AddFrame(CopyPart part, uint64_t offset, CopyPiece payload);
  void SayUpTo(uint32_t number);

  const uint64_t key_;
  std::optional<uint32_t> shard_;
  uint32_t next_ = 1;  // number of the next frame: they go on over all successors
  // Of a copy: which frame does away with the one before, which is the last that makes it, and which says that it
  // counts; and whether these are confirmed.
  uint32_t begun_at_ = 0, held_at_ = 0;
  std::optional<uint32_t> whole_at_;
  bool begun_ = false, whole_ = false, held_ = false;
  bool set_aside_ = false;
  std::deque<Frame> frames_;     // not confirmed
  size_t sent_ = 0;              // of these, on the link there is
  std::deque<Waiting> waiting_;  // in the order in which they are said
};

}  // namespace byteps_like
