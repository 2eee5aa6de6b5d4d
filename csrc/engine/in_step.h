// Keeps the links of one worker in step. All traffic of a worker to its servers shares one network card, and TCP gives
// every connection the same share of it. The servers, however, have different shares of the sum: a spare server has
// more than one beside a worker. Links with little to carry would finish early, and links with much to carry, for which
// every rank waits, would have had too little until then. So a link that is ahead of the others, by the fraction sent
// of what it has to carry, waits. Meanwhile the card belongs to the links behind it.
//
// This is start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM '96) across links instead of packets. A link's weight is
// the bytes of all partitions placed on it, so rates need not be known, and tensors that move bring their weight along.
// Pure; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace byteps_like {

class InStep {
 public:
  size_t Add();                            // a link; returns its number
  void Place(size_t link, int64_t bytes);  // so many more (fewer: negative) of all bytes are to go over it

  void Wants(size_t link, int32_t priority);  // it has something of this urgency to send
  void Rests(size_t link);                    // it has nothing to send, or can't: no link waits for it

  // Whether it may send now: it is not ahead of any link that wants to send something as urgent, but for its part of
  // `lead` bytes. The one farthest behind always may.
  bool MayGo(size_t link, int64_t lead) const;
  void Sent(size_t link, int64_t bytes);

 private:
  struct Link {
    int64_t weight = 0;  // bytes placed on it
    double done = 0;     // bytes sent, in units of weight; idle time counts as time in step
    int32_t priority = 0;
    bool wants = false;
  };
  double Behind() const;  // `done` of the one farthest behind; of the last that was while none wants to send

  std::vector<Link> links_;
  int64_t weight_ = 0;  // of all
  double now_ = 0;
};

}  // namespace byteps_like
