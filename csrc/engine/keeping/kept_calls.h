// What a worker asks of the values of one shard, calls of functions or requests about what is saved: one after the
// other, each behind the contributions to its values that were made before it, and again on a new link until it is
// answered. On the I/O thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/keeping/keep_operation.h"
#include "csrc/transport/links/link.h"
#include "csrc/wire/frame.h"

namespace byteps_like {

struct KeepCall {
  FrameType type = FrameType::kCall;  // or kCut, kState, which have numbers of their own
  std::vector<uint64_t> keys;         // of all its tensors at this shard, at least one; the first names it
  uint32_t here = 0;                  // partitions of each tensor at this shard,
  uint32_t parts = 0;                 // and in all
  std::string text;                   // csrc/wire/call.h
  uint64_t order = 0;                 // of calls, over all keys
  KeepTicket ticket;                  // of an operation whose `answers` has a place for this one
};

class KeptCalls {
 public:
  // Whether all contributions to a key from calls before `order` have been sent on this link.
  using HasSent = std::function<bool(uint64_t key, uint64_t order)>;
  KeptCalls(HasSent has_sent, KeepSink& sink) : has_sent_(std::move(has_sent)), sink_(sink) {}

  void Call(KeepCall call) { calls_.push_back(std::move(call)); }
  void OnNewLink();
  bool waits() const { return !calls_.empty() && !sent_; }
  bool due();  // there is a frame for it now
  void Next(Outgoing& next);
  Status OnAnswer(const Header& header, std::string payload);  // kCorrupt: it makes no sense
  void End(const Status& why);

 private:
  const HasSent has_sent_;
  KeepSink& sink_;
  std::deque<KeepCall> calls_;  // the first is asked for, or goes next
  uint32_t number_ = 0;         // its own
  bool sent_ = false;           // on this link
  size_t passed_ = 0;           // of its keys, those whose contributions have been sent on it
};

}  // namespace byteps_like
