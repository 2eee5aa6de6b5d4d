// Agrees with a peer on one connection for one way, until a link is up or there is to be none.
//
// Both ends may dial at once, and bytes that one end has sent must not be lost with a connection that the other drops.
// So the end that dialed sends nothing before the peer's first frame, the welcome: a CREDIT of 0 bytes, which accepts
// the connection. The lower rank sets a connection from the peer aside while its own is on the way; the higher rank
// accepts the lower's.
#pragma once

#include <memory>
#include <optional>

#include "collectives/mesh/mesh_context.h"

namespace byteps_like {

// All calls come on the loop's thread.
class Rendezvous {
 public:
  class Owner {
   public:
    virtual void Try(std::unique_ptr<Stream> stream) = 0;  // makes a link of it, in place of one tried before
    virtual void Met() = 0;                                // the link tried last is up
    virtual void Missed(const Status& why) = 0;            // no link is tried any more

   protected:
    ~Owner() = default;
  };

  Rendezvous(const MeshContext& mesh, WayTo to, Owner& owner) : mesh_(mesh), to_(to), owner_(owner) {}
  Rendezvous(const Rendezvous&) = delete;

  void Begin();                                // dials, if nothing is under way
  void Offer(std::unique_ptr<Stream> stream);  // the peer has dialed us
  // The first frame of a link that we dialed: Met, or why this is not the peer.
  Status TakeWelcome(const Header& header);
  bool NextWelcome(Outgoing& next);  // the first frame of a link that the peer dialed, once
  void Declined(const Status& why);  // the link that was tried is closed before it was up
  void LastTry();                    // connections on their way may still come up; nothing new is tried
  void End();                        // nothing is tried or reported any more

 private:
  // In kLastTry as in kProposed a link that we dialed waits for its welcome. In kAccepted the link is up, and we owe
  // it.
  enum class State { kIdle, kDialing, kProposed, kLastTry, kAccepted, kOver };

  void Dial();
  void DialLater();
  void OnDialed(Result<std::unique_ptr<Stream>> stream);
  void Propose(std::unique_ptr<Stream> stream);
  void Accept(std::unique_ptr<Stream> stream);
  void Meet(State state);

  const MeshContext& mesh_;
  const WayTo to_;
  Owner& owner_;
  State state_ = State::kIdle;
  std::optional<Deadline> deadline_;  // to be up, once its first attempt has had its turn or can't be made
  std::shared_ptr<MeshDial> dial_;
  uint64_t dials_ = 0;              // so that a result of an old one is recognised
  std::unique_ptr<Stream> parked_;  // the peer's, kept aside
  uint64_t timer_ = 0;
};

}  // namespace byteps_like
