// The places where the peer of an RdmaLink has offered to receive payloads, and the offers it has withdrawn, which are
// to be acknowledged once no piece goes there any more. Both are bounded, whatever the peer says. Knows nothing of
// devices.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/transport/rdma/link_receiver.h"

namespace byteps_like::rdma {

class PeerOffers {
 public:
  explicit PeerOffers(std::string peer) : peer_(std::move(peer)) {}  // for messages: "rdma 10.0.0.2:4711"

  // An offer, or with 0 bytes its end. kCorrupt: it makes no sense, or there are too many.
  Status Take(const PlaceOffer& offer);
  // It takes an offer back: an answer is owed. kCorrupt: more are due than it can have made offers.
  Status Withdraw(const PlaceOffer& offer);
  const PlaceOffer* Find(const OfferId& id) const;  // nullptr: none
  void Forget(const OfferId& id) { offers_.erase(id); }

  bool owes() const { return !answers_.empty(); }
  // Answers that are owed, to be sent after the current payload. Call Answered once for each that was sent.
  std::vector<Notice> TakeAnswers() { return std::exchange(answers_, {}); }
  void Answered() { --due_; }

 private:
  const std::string peer_;
  std::unordered_map<OfferId, PlaceOffer, OfferHash> offers_;
  std::vector<Notice> answers_;
  size_t due_ = 0;  // these, and those that were taken and not sent
};

}  // namespace byteps_like::rdma
