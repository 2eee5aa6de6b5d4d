// The receiving half of an RdmaLink: messages to frames, and the places that were offered to the peer.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "csrc/transport/counter.h"
#include "csrc/transport/links/link.h"
#include "csrc/transport/rdma/endpoint.h"
#include "csrc/transport/rdma/verbs/memory_keys.h"

namespace byteps_like::rdma {

struct OfferHash {
  size_t operator()(const OfferId& id) const {
    return std::hash<uint64_t>()(id.key * 0x9E3779B97F4A7C15u ^ id.which * 0xC2B2AE3D27D4EB4Fu ^
                                 static_cast<uint64_t>(id.type));
  }
};

struct Notice {  // a message about places
  Kind kind{};
  PlaceOffer place;
};

class LinkReceiver {
 public:
  LinkReceiver(Link& link, Endpoint& endpoint, MemoryKeys& keys, LinkHandler& handler)
      : link_(link), endpoint_(endpoint), keys_(keys), handler_(handler) {}

  // Handles about `budget` bytes at most. True: there may be more right now; false: there is nothing more. A failure is
  // final. Setting `stop` to true ends the call after the current frame. The peer's notices about places are put into
  // `notices`.
  Result<bool> Receive(size_t budget, const bool& stop, std::vector<Notice>* notices);

  bool Redirect(std::byte* place);
  // True if the place may be offered; `told`: the notice for the peer, if any.
  bool Offer(const Header& about, std::byte* place, uint64_t bytes, std::optional<Notice>* told);
  bool Withdraw(const OfferId& what, std::optional<Notice>* told);  // likewise
  Status OnWithdrawn(const PlaceOffer& offer);                      // the peer's answer
  // Notices for the peer since Receive: offers that have ended without its knowledge.
  std::vector<Notice>& lapsed() { return lapsed_; }

  bool saw_goodbye() const { return saw_goodbye_; }
  const Traffic& traffic() const { return traffic_; }        // any thread
  uint64_t payload_placed() const { return placed_.get(); }  // likewise

 private:
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  struct Offered {
    std::byte* place;
    uint64_t bytes;
    uint32_t generation;
    bool encoded;
    DeviceKeys keys;
    bool withdrawn = false;  // the peer has not answered yet
  };

  Status OnMessage(const Arrival& arrival, const bool& stop, std::vector<Notice>* notices);
  Status OnFrames(const Arrival& arrival, const bool& stop);
  Status OnFrame(std::byte* header, uint32_t bytes, const Envelope& envelope);
  Status OnPiece(const Arrival& arrival);
  Status OnSlot(std::byte* slot, uint32_t bytes);
  Status Locate(uint32_t generation);
  Status FindPlace();
  Status Whole(std::byte* landed);
  void Lapse();
  void Finish(std::byte* payload);
  Status Corrupt(const std::string& what) const;
  std::byte* Scratch();

  Link& link_;
  Endpoint& endpoint_;
  MemoryKeys& keys_;
  LinkHandler& handler_;
  std::unordered_map<OfferId, Offered, OfferHash> offered_;
  uint32_t generation_ = 0;
  std::vector<Notice> lapsed_;

  Header header_;
  bool in_payload_ = false;
  std::byte* written_ = nullptr;  // where the peer writes the payload; nullptr: into slots
  std::byte* place_ = nullptr;    // where the pieces of slots go
  uint32_t landed_ = 0;           // bytes
  std::vector<CacheLine> scratch_;
  bool saw_goodbye_ = false;
  Traffic traffic_;
  Counter placed_;
};

}  // namespace byteps_like::rdma
