// One way to one peer of the mesh: idle, dialing, proposed (dialed, and not yet taken by the peer), up, lost.
//
// Both ends may dial at once, and bytes that one end has sent must not be lost with a connection that the other drops.
// So whoever dialed sends nothing before the peer's first frame, a CREDIT of 0 bytes, by which it takes the connection.
// The lower rank keeps a connection from the peer aside while its own is on the way; the higher takes the lower's.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/mesh/mesh.h"
#include "collectives/mesh/mesh_dial.h"

namespace byteps_like {

struct MeshContext {  // what all peers of a mesh share
  EventLoop& loop;
  MeshHandler& handler;
  const MeshOptions& options;
  const MeshWorld& world;
  MeshDialers& dialers;
  std::function<void(uint32_t rank, const Status& why)> on_lost;  // by one of its ways, each at most once
  std::function<void()> on_closed;                                // a link is closed, after Goodbye
};

class MeshPeer final : private LinkHandler {
 public:
  MeshPeer(const MeshContext& mesh, WayTo to) : mesh_(mesh), rank_(to.peer), to_(to) {}

  // On the loop's thread.
  void Kick();
  void Offer(std::unique_ptr<Stream> stream);  // it has dialed us
  void PassRegion(uint32_t id, std::shared_ptr<SharedBuffer> buffer);
  void Cut(const Status& why);
  void Redirect(std::byte* place);
  void Keep();
  bool TakesOffers() const { return state_ == State::kUp && link_->takes_offers(); }
  bool OfferPlace(const Header& about, std::byte* place, uint64_t bytes) {
    return state_ == State::kUp && link_->Offer(about, place, bytes);
  }
  bool Withdraw(const OfferId& what) { return link_ != nullptr && link_->Withdraw(what); }
  bool KeepShort(bool on) { return state_ == State::kUp && link_->KeepShort(on); }
  // The peer is lost by some way: no link is made any more. True: one is open, and on_lost tells its end.
  bool Leave();
  void Goodbye();
  void Abandon();  // closes what is open, at once
  bool closed() const { return link_ == nullptr && closing_.empty(); }

  LinkCounters counters() const;  // any thread
  std::string transport() const;  // likewise; "" while there is no link

 private:
  enum class State { kIdle, kDialing, kProposed, kUp, kLost };

  std::byte* PlaceFor(Link& link, const Header& header) override;
  void OnFrame(Link& link, const Header& header, std::byte* payload) override;
  bool NextFrame(Link& link, Outgoing& next) override;
  void OnSent(Link& link, const Header& header) override;
  void OnWithdrawn(Link& link, const OfferId& what) override;
  void OnClosed(Link& link, const Status& why) override;

  std::string name() const;
  void Dial();
  void DialLater();
  void OnDialed(Result<std::unique_ptr<Stream>> stream);
  void Install(std::unique_ptr<Stream> stream, bool accepted);
  void OnWelcome(const Header& header);
  void OnDeclined(const Status& why);
  void Up();
  void Drop(const Status& why);  // of the link in use
  void Lose(const Status& why);
  void SetLink(std::unique_ptr<Link> link);
  Header HeaderOf(FrameType type) const;
  bool NextRegion(Outgoing& next);
  void RetryRegions();
  void TakeRegion(Link& link, const Header& header);

  struct Region {
    uint32_t id;
    std::shared_ptr<SharedBuffer> buffer;
  };

  const MeshContext& mesh_;
  const uint32_t rank_;
  const WayTo to_;
  State state_ = State::kIdle;
  std::optional<Deadline> deadline_;  // to be up, once its first attempt has had its turn or can't be made
  std::shared_ptr<MeshDial> dial_;
  uint64_t dials_ = 0;  // so that a result of an old one is recognised
  std::unique_ptr<Link> link_;
  std::unique_ptr<Stream> parked_;
  std::vector<std::unique_ptr<Link>> closing_;
  bool welcome_ = false, leaving_ = false, ending_ = false, said_goodbye_ = false;
  std::deque<Region> regions_;
  bool retries_regions_ = false;
  uint64_t timer_ = 0;

  mutable std::mutex counters_mutex_;  // guards which link is in use, for counters, and:
  LinkCounters past_;                  // of links that are gone
};

}  // namespace byteps_like
