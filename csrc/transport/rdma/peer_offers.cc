#include "csrc/transport/rdma/peer_offers.h"

namespace byteps_like::rdma {

Status PeerOffers::Take(const PlaceOffer& offer) {
  const OfferId id{offer.type, offer.key, offer.which};
  if (offer.bytes == 0) {
    offers_.erase(id);
    return {};
  }
  if (offer.generation == 0 || offer.address == 0 || offers_.size() >= kMostOffers) {
    return Status(Code::kCorrupt, peer_ + ": its offers are invalid or too many");
  }
  offers_[id] = offer;
  return {};
}

// An honest peer waits for the answer before it makes another offer of that name: no more are due than it may offer.
Status PeerOffers::Withdraw(const PlaceOffer& offer) {
  if (++due_ > kMostOffers / 2) {
    return Status(Code::kCorrupt, peer_ + ": it withdraws more offers than it can have made");
  }
  const PlaceOffer* const found = Find({offer.type, offer.key, offer.which});
  if (found != nullptr && found->generation == offer.generation) Forget({offer.type, offer.key, offer.which});
  answers_.push_back({Kind::kWithdrawn, offer});
  return {};
}

const PlaceOffer* PeerOffers::Find(const OfferId& id) const {
  const auto found = offers_.find(id);
  return found == offers_.end() ? nullptr : &found->second;
}

}  // namespace byteps_like::rdma
