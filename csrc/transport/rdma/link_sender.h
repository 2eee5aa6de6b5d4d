// The sending half of an RdmaLink: frames to messages. Small frames go in eager messages, several in one if there are;
// of a large one the header goes so, and its payload in pieces, straight from registered memory (else copied), straight
// to where the peer has offered a place for it (else to its slots).
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "csrc/transport/counter.h"
#include "csrc/transport/links/link.h"
#include "csrc/transport/rdma/link_receiver.h"
#include "csrc/transport/rdma/peer_offers.h"

namespace byteps_like::rdma {

class LinkSender final : private Endpoint::User {
 public:
  LinkSender(Link& link, Endpoint& endpoint, MemoryKeys& keys, LinkHandler& handler);

  // Sends about `budget` bytes at most. True: there may be more, and room for it; false: the handler said "nothing
  // now", or there is no room (blocked()), which a completion or a message of the peer will change.
  Result<bool> Send(size_t budget, const bool& stop);
  // Tells the handler of the frames that have arrived, in order.
  void Report(const bool& stop);

  void Announce(const Notice& notice) { to_announce_.push_back(notice); }  // before all frames sent from now on
  // The link's first: the peer writes nowhere before it.
  void Open(const PlaceOffer& slots) { to_announce_.insert(to_announce_.begin(), {Kind::kOpen, slots}); }
  Status Take(const PlaceOffer& offer) { return peer_offers_.Take(offer); }
  // It is answered once no piece goes by it any more.
  Status Withdraw(const PlaceOffer& offer) { return peer_offers_.Withdraw(offer); }

  // Copies the unsent parts of payloads, and waits briefly for those that the device is reading; false if that takes
  // too long.
  [[nodiscard]] bool Keep();

  bool unfinished() const { return has_header_ || in_pieces_ || has_notices() || peer_offers_.owes(); }
  bool blocked() const { return blocked_; }
  bool sent_goodbye() const { return sent_goodbye_; }
  const Traffic& traffic() const { return traffic_; }          // any thread
  uint64_t offers_sent() const { return offers_sent_.get(); }  // likewise

 private:
  static constexpr uint32_t kFrames = 128;  // that may be under way
  static constexpr uint32_t kPacked = 16;   // frames in one message at most

  struct Frame {
    Header header;
    uint32_t under_way = 0;  // messages
    bool whole = false;      // all of them were sent
    bool in_place = false;   // the device reads the handler's memory
    std::unique_ptr<std::byte[]> kept;
  };

  void OnDelivered(uint32_t tag) override;
  Result<bool> Step();
  Status SendNotice();
  bool has_notices() const { return announced_ < to_announce_.size(); }
  bool Begin();
  Result<bool> SendHeaders();
  uint32_t Pack(std::byte* to, uint32_t room);
  void Aim();
  void FindOffer();
  Status SendPiece();
  bool CopyRest();
  uint32_t MostPerPiece() const;
  Frame& current() { return frames_[(begun_ - 1) % kFrames]; }

  Link& link_;
  Endpoint& endpoint_;
  MemoryKeys& keys_;
  LinkHandler& handler_;

  std::array<Frame, kFrames> frames_;
  uint32_t begun_ = 0, reported_ = 0;  // frames; those between the two are under way
  Outgoing next_;                      // the frame at hand
  bool has_header_ = false;            // its header is not sent
  uint32_t at_ = 0;                    // bytes of its payload that are sent, if it goes in pieces
  bool in_pieces_ = false;
  Piece piece_;
  DeviceKeys piece_keys_;
  uint32_t generation_ = 0;
  uint64_t target_ = 0;  // where its payload goes at the peer; 0: to slots

  PeerOffers peer_offers_;
  std::array<uint32_t, kMaxQueuePairs> peer_keys_;
  std::vector<Notice> to_announce_;
  size_t announced_ = 0;
  bool blocked_ = false;
  bool sent_goodbye_ = false;
  Traffic traffic_;
  Counter offers_sent_;
};

}  // namespace byteps_like::rdma
