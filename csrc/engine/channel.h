// The way to one shard of one server: its link, the partitions that wait for it, and those in flight on it. Lives on
// the engine's I/O thread. When the link breaks, a connector thread makes a new one, and everything in flight is
// resumed on it: the server says how much of each contribution it has counted, and we say how much of each result has
// landed.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/base/thread.h"
#include "csrc/base/trace.h"
#include "csrc/engine/engine_context.h"
#include "csrc/engine/keeping/kept_keys.h"
#include "csrc/engine/losses/absences.h"
#include "csrc/engine/operation.h"

namespace byteps_like {

class Channel : private LinkHandler {
 public:
  Channel(EngineContext& context, ChannelOwner& owner, ShardAddress address, size_t index);
  ~Channel() override;

  Status Connect(Deadline deadline);  // before the loop runs; blocks. kCapacity: this process lacks descriptors
  bool shares_memory() const { return first_stream_->shares_memory(); }  // after that, before Start
  void GiveUp() { ending_ = true; }  // any thread: a Connect under way ends with its next try

  // I/O thread.
  void Start();
  void Enqueue(Part& part);
  void Abort(const Status& why);            // every part in flight ends with this, the link is closed
  void Grown(Part& part);                   // in flight: more of its contribution is there
  void GiveUp(const Operation& operation);  // its parts in flight here end with its `given_up`
  void GiveUp(Part& part, const Status& why);
  void Forget(const Part& part);  // which is not in flight, and will not be again
  // Its server has died: the link is closed. What it has of a part, which it then lets go of; whether that was in
  // flight.
  void Leave();
  bool Release(Part& part);
  // A part of such a channel comes here: goes on once all ranks have said how far they have come with it.
  void Adopt(Part& part, bool in_flight);
  bool left() const { return left_; }
  void KeepFor(Part& part);  // a part that is retired, and may have what others lack
  void LetGoOf(Part& part);  // it no longer has

  void Withdraw(uint32_t region);  // which is gone
  void Goodbye();                  // tells the server; parts in flight end with the link, once that is sent
  bool closed() const { return link_ == nullptr; }
  bool busy() const { return !in_flight_.empty() || kept_.busy(); }
  KeptKeys& kept() { return kept_; }  // the values that its shard keeps
  uint32_t server() const { return address_.server; }
  size_t index() const { return index_; }          // among the engine's channels
  bool held() const { return held_; }              // it has something to send, but is ahead of the others
  void LetGo();                                    // if it no longer is
  bool lacks_room() const { return lacks_room_; }  // for a partition that goes by way of a bounce buffer
  void OnRoom();                                   // there is some
  Deadline last_heard() const { return last_heard_; }
  void Heard() { last_heard_ = Clock::now(); }
  uint32_t warnings = 0;  // since it was last heard of

  // Any thread.
  LinkCounters counters() const;
  uint64_t bounced() const { return bounced_; }  // bytes copied into bounce buffers and out of them
  std::string name() const;                      // "server 0 shard 1 (tcp://10.0.0.2:4711)"
  std::string transport() const;                 // "tcp"

 private:
  struct Waiting {
    int32_t priority;
    uint64_t order;
    Part* part;
    bool operator<(const Waiting& other) const {
      return priority != other.priority ? priority < other.priority : order > other.order;
    }
  };

  std::byte* PlaceFor(Link& link, const Header& header) override;
  void OnFrame(Link& link, const Header& header, std::byte* payload) override;
  bool NextFrame(Link& link, Outgoing& next) override;
  void OnSent(Link& link, const Header& header) override;
  void OnClosed(Link& link, const Status& why) override;

  Result<std::unique_ptr<Stream>> Dial(Deadline deadline);
  void Reconnect(const Status& why);
  void Install(std::unique_ptr<Stream> stream);
  void Resume(Part& part);
  void Queue(Part& part);
  void Dequeue();  // its first part
  static const Operation* OperationOf(const Part& part);
  Part* Next();     // the part it would send next; nullptr: none
  void Announce();  // to the others, whether it has something to send
  bool NextControl(Outgoing& next);
  bool NextData(Outgoing& next);
  bool NextPush(Outgoing& next);
  void OnKept(Link& link, const Header& header, const std::byte* payload);
  bool NameCodec(uint32_t number, Outgoing& next);
  bool NameOwner(Part& part, Outgoing& next);
  enum class Way { kReferred, kWaits, kStreamed };
  Way ByReference(Part& part, Outgoing& next);
  bool NextSegment(Part& part, Outgoing& next);
  bool MayRefer(const Part& part);
  bool Share(Part& part, Outgoing& next);
  bool AwaitsRoom();
  void LeaveBounce(Part& part, const Status& status);
  std::byte* SharedPlace(const Part& part) const;
  bool Refer(Part& part, Outgoing& next);
  Header RegionHeader(uint32_t region, uint64_t bytes) const;
  void OnNoRegion(uint32_t region);
  bool Excuse(Part& part, Outgoing& next);
  Part* Awaited(const Header& header);
  Part* Expected(const Header& header);
  void FailMisfit(const Header& header);
  void OnResult(Part& part, const Header& header);
  void OnResumed(Part& part, const Header& header);
  void Finish(Part& part, const Status& status);
  void TakeOff(Part& part);

  // channel_adopting.cc
  struct Gift {  // a result that this rank has, on its way to another
    uint64_t key;
    uint32_t round, to;
    uint32_t offset;
    size_t told = 0;  // absences in it of which the other has been told
  };
  void Enter(Part& part);
  bool IsInFlight(const Part& part) const;
  void Hold(Part& part, const Header& result);
  Header About(const Part& part, FrameType type) const;
  void AskToAdopt(const Part& part, bool waits);
  void AskForResult(Part& part);
  void OnAdopted(const Header& header);
  void OnTake(const Header& header);
  bool NextGift(Outgoing& next);
  void DropHeld(Part& part);
  Part* GivenBy(const Gift& gift);
  void OnGive(Part& part, const Header& header, const std::byte* payload);

  void TraceStage(TraceKind kind, const Part& part, int64_t begin) const;
  void TraceReady(const Part& part) const;
  void TraceFirst(Part& part) const;  // before each frame of a contribution
  void TraceSent(const Header& header) const;
  void FinishAll(const Status& status);
  SharedRegion RegionOf(const Part& part);
  Header HeaderFor(const Part& part, FrameType type) const;
  void OfferLanding(const Part& part);
  size_t SegmentOf(const Part& part) const;
  bool HasCredit(const Part& part);
  bool IsInStep();
  int64_t AheadFrom(int32_t priority) const;
  void LendCredit();

  EngineContext& context_;
  ChannelOwner& owner_;
  const ShardAddress address_;
  const size_t index_;
  std::atomic<size_t> url_{0};            // the one in use
  std::unique_ptr<Stream> first_stream_;  // connected, not on the loop yet
  bool established_ = false;              // there was a link: from now on only this address will do
  std::unique_ptr<Link> link_;
  std::vector<std::unique_ptr<Link>> closing_;
  Thread connector_;
  std::atomic<bool> ending_{false};
  bool left_ = false;
  std::unordered_map<uint64_t, Part*> parts_;  // by key: all that were ever in flight here
  std::vector<Part*> in_flight_;
  std::priority_queue<Waiting> queue_;
  std::deque<Header> control_;
  std::deque<Gift> gifts_;
  size_t gifts_under_way_ = 0;  // frames of gifts that the link may yet read from what is held
  KeptKeys kept_;
  Absences absences_;
  std::map<uint32_t, bool> shared_regions_;  // passed to the server over this link; false: it could not map them
  std::set<uint32_t> named_codecs_;          // told to the server over this link
  int64_t ahead_ = 0;                        // bytes of contributions that went out and whose results have not come
  int64_t lent_ = 0;                         // credit beyond the limit, while nothing comes
  bool lending_armed_ = false;
  bool held_ = false;
  bool lacks_room_ = false;
  Deadline lacking_since_{};
  Deadline last_landing_{};
  Deadline last_heard_{};

  struct {
    std::atomic<uint64_t> frames_sent{0}, frames_received{0}, payload_sent{0}, payload_received{0};
    std::atomic<uint64_t> payload_placed{0};
  } counters_;
  uint64_t placed_before_ = 0;  // by links that have ended
  std::atomic<uint64_t> bounced_{0};
};

}  // namespace byteps_like
