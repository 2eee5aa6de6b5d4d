// One way to one peer of the mesh: its link, from the first attempt to the goodbye. The link is made by Rendezvous.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/mesh/mesh_context.h"
#include "collectives/mesh/region_channel.h"
#include "collectives/mesh/rendezvous.h"

namespace byteps_like {

class MeshPeer final : private LinkHandler, private Rendezvous::Owner {
 public:
  MeshPeer(const MeshContext& mesh, WayTo to)
      : mesh_(mesh), rank_(to.peer), to_(to), rendezvous_(mesh, to, *this), regions_(mesh, to.peer, [this] {
          if (IsUp()) link_->Kick();
        }) {}

  // On the loop's thread.
  void Kick();
  void Offer(std::unique_ptr<Stream> stream) { rendezvous_.Offer(std::move(stream)); }  // it has dialed us
  void PassRegion(uint32_t id, std::shared_ptr<SharedBuffer> buffer);
  void Cut(const Status& why);
  void Redirect(std::byte* place);
  void Keep();
  bool TakesOffers() const { return IsUp() && link_->takes_offers(); }
  bool OfferPlace(const Header& about, std::byte* place, uint64_t bytes) {
    return IsUp() && link_->Offer(about, place, bytes);
  }
  bool Withdraw(const OfferId& what) { return link_ != nullptr && link_->Withdraw(what); }
  bool KeepShort(bool on) { return IsUp() && link_->KeepShort(on); }
  // The peer is lost by some way: no link is made any more. True: one is open, and on_lost tells its end.
  bool Leave();
  void Goodbye();
  void Abandon();  // closes open links at once
  bool closed() const { return link_ == nullptr && closing_.empty(); }

  LinkCounters counters() const;  // any thread
  std::string transport() const;  // likewise; "" while there is no link

 private:
  // kMeeting: the rendezvous is at work, or nothing was to be sent yet. kEnding: up, and the goodbye follows when
  // nothing else is left to send. kSaidGoodbye: up, but only to receive. kClosing: we closed the link for good.
  enum class State { kMeeting, kUp, kEnding, kSaidGoodbye, kClosing, kLost };

  std::byte* PlaceFor(Link& link, const Header& header) override;
  void OnFrame(Link& link, const Header& header, std::byte* payload) override;
  bool NextFrame(Link& link, Outgoing& next) override;
  void OnSent(Link& link, const Header& header) override;
  void OnWithdrawn(Link& link, const OfferId& what) override;
  void OnClosed(Link& link, const Status& why) override;

  void Try(std::unique_ptr<Stream> stream) override;
  void Met() override;
  void Missed(const Status& why) override { Lose(why); }

  bool IsUp() const { return state_ == State::kUp || state_ == State::kEnding || state_ == State::kSaidGoodbye; }
  std::string name() const;
  void Drop(const Status& why);  // of the link in use
  void Lose(const Status& why);
  void SetLink(std::unique_ptr<Link> link);

  const MeshContext& mesh_;
  const uint32_t rank_;
  const WayTo to_;
  State state_ = State::kMeeting;
  Rendezvous rendezvous_;
  RegionChannel regions_;
  std::unique_ptr<Link> link_;
  std::vector<std::unique_ptr<Link>> closing_;

  mutable std::mutex counters_mutex_;  // guards which link is in use, for counters, and:
  LinkCounters past_;                  // of links that are gone
};

}  // namespace byteps_like
