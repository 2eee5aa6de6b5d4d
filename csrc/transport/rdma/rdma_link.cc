#include "csrc/transport/rdma/rdma_link.h"

#include "csrc/transport/rdma/link_receiver.h"
#include "csrc/transport/rdma/link_sender.h"
#include "csrc/transport/rdma/patience.h"
#include "csrc/transport/rdma/undertaker.h"
#include "csrc/transport/shared_buffer.h"

namespace byteps_like::rdma {
namespace {

// What one link may handle before the others of its loop have their turn, each way.
constexpr size_t kTurnBytes = 1u << 20;
// How often a link that has nothing under way sees whether its paths are there.
constexpr auto kProbeEvery = std::chrono::seconds(2);

class RdmaLink final : public Link, private EventLoop::Deferred {
 public:
  RdmaLink(EventLoop& loop, std::unique_ptr<Endpoint> endpoint, LinkHandler& handler)
      : loop_(loop),
        endpoint_(std::move(endpoint)),
        handler_(handler),
        peer_(endpoint_->peer()),
        fds_(endpoint_->fds()),
        keys_(endpoint_->devices()),
        receiver_(*this, *endpoint_, keys_, handler),
        sender_(*this, *endpoint_, keys_, handler) {}
  ~RdmaLink() override { Leave(); }

  void Start() override {
    if (stopping_) return;
    started_ = true;
    for (const int fd : fds_) {
      loop_.Watch(fd, [this] {
        endpoint_->TakeEvents();
        Turn();
      });
    }
    auto slots = endpoint_->Open();
    if (!slots.ok()) return Close(slots.status());
    sender_.Announce({Kind::kOpen, *slots});
    ProbeLater();
    Kick();
  }

  void Kick() override {
    wants_to_send_ = true;
    if (started_) loop_.Defer(*this);
  }

  bool Redirect(std::byte* place) override { return receiver_.Redirect(place); }

  bool Offer(const Header& about, std::byte* place, uint64_t bytes) override {
    if (stopping_) return false;
    std::optional<Notice> told;
    const bool offered = receiver_.Offer(about, place, bytes, &told);
    if (told) Tell(*told);
    return offered;
  }

  bool takes_offers() const override { return true; }

  bool Withdraw(const OfferId& what) override {
    if (stopping_) return false;
    std::optional<Notice> told;
    const bool pending = receiver_.Withdraw(what, &told);
    if (told) Tell(*told);
    return pending;
  }

  void Keep() override {
    if (stopping_) return;
    if (!sender_.Keep()) {
      return Close(Status(Code::kPeerLost, peer_ + ": what was sent is not acknowledged, and its memory is needed"));
    }
    Kick();  // completions were taken
  }

  bool KeepShort(bool) override { return false; }

  // The device stops at once: what the handler owns may go when this returns.
  void Close(const Status& why) override {
    if (stopping_) return;
    why_ = why;
    stopping_ = true;
    endpoint_->Fail();
    loop_.Defer(*this);
  }

  LinkCounters counters() const override {
    const Traffic& out = sender_.traffic();
    const Traffic& in = receiver_.traffic();
    LinkCounters counters;
    counters.frames_sent = out.frames.get();
    counters.frames_received = in.frames.get();
    counters.bytes_sent = out.bytes.get();
    counters.bytes_received = in.bytes.get();
    counters.payload_sent = out.payload.get();
    counters.payload_received = in.payload.get();
    counters.offers_sent = sender_.offers_sent();
    counters.payload_placed = receiver_.payload_placed();
    return counters;
  }

  std::string peer() const override { return peer_; }
  bool shares_memory() const override { return false; }
  Status PassBuffer(const SharedBuffer&) override { return NoSharedMemory(); }
  Result<std::shared_ptr<SharedBuffer>> TakeBuffer() override { return NoSharedMemory(); }

 private:
  void RunDeferred() override { Turn(); }

  // One turn of work both ways. Ends with OnClosed if the link is over: nothing may follow, `this` may be gone.
  void Turn() {
    bool busy = !stopping_ && endpoint_->Poll() > 0;
    if (!stopping_) sender_.Report(stopping_);
    if (!stopping_) busy = ReceiveSome() || busy;
    if (!stopping_) busy = SendSome() || busy;
    if (stopping_) return Finish();
    if (busy) patience_.OnBusy(Clock::now());
    if (busy || !Rest()) loop_.Defer(*this);
  }

  // Called when there was nothing to do. True: an event follows once there is; false: to be looked for again.
  bool Rest() {
    const Deadline now = Clock::now();
    if (patience_.Lasts(now)) return false;
    patience_.OnSleep();
    return endpoint_->Sleep();
  }

  void ProbeLater() {
    probe_timer_ = loop_.CallAt(Clock::now() + kProbeEvery, [this] {
      if (stopping_) return;
      endpoint_->Probe();
      ProbeLater();
      loop_.Defer(*this);
    });
  }

  // True if there may be more right now.
  bool ReceiveSome() {
    auto more = receiver_.Receive(kTurnBytes, stopping_, &notices_);
    for (const Notice& notice : notices_) {
      if (!stopping_) OnNotice(notice);
    }
    notices_.clear();
    for (const Notice& lapsed : receiver_.lapsed()) sender_.Announce(lapsed);
    receiver_.lapsed().clear();
    if (stopping_) return false;
    if (!more.ok()) return Fail(more.status()), false;
    if (Status given = endpoint_->GiveCredit(); !given.ok() && !*more) return Fail(given), false;
    // All that the peer had sent is handled now.
    if (!*more && !endpoint_->failure().ok()) Fail(endpoint_->failure());
    return *more;
  }

  void OnNotice(const Notice& notice) {
    switch (notice.kind) {
      case Kind::kOpen:
        return endpoint_->OnOpen(notice.place);
      case Kind::kWithdraw:
        return sender_.Withdraw(notice.place);
      case Kind::kWithdrawn:
        if (Status known = receiver_.OnWithdrawn(notice.place); !known.ok()) Fail(known);
        return;
      default:
        if (Status taken = sender_.Take(notice.place); !taken.ok()) Fail(taken);
    }
  }

  void Tell(const Notice& notice) {
    sender_.Announce(notice);
    Kick();
  }

  bool SendSome() {
    if (!wants_to_send_ && !sender_.unfinished()) return false;
    wants_to_send_ = false;  // a Kick from inside the handler sets it again
    auto more = sender_.Send(kTurnBytes, stopping_);
    if (!more.ok()) return true;  // the endpoint has failed: what it had received comes first
    wants_to_send_ = wants_to_send_ || *more || sender_.blocked();
    return *more;
  }

  void Fail(const Status& why) {
    if (stopping_) return;
    stopping_ = true;
    why_ = why;
    endpoint_->Fail();
    const bool gone = why.code() == Code::kClosed || why.code() == Code::kPeerLost;
    if (gone && (receiver_.saw_goodbye() || sender_.sent_goodbye())) {
      why_ = Status(Code::kClosed, peer_ + " closed the link after a goodbye");
    } else if (gone) {
      why_ = Status(Code::kPeerLost, why.message() + " (without a goodbye)");
    }
  }

  void Finish() {
    Leave();
    handler_.OnClosed(*this, Status(why_));
  }

  void Leave() {
    loop_.Forget(*this);
    if (started_) {
      for (const int fd : fds_) loop_.Unwatch(fd);
    }
    started_ = false;
    loop_.CancelTimer(probe_timer_);
    if (endpoint_ == nullptr) return;
    endpoint_->Fail();
    Bury(std::move(endpoint_), false);
  }

  Status NoSharedMemory() const { return Status(Code::kInvalid, peer_ + " shares no memory"); }

  EventLoop& loop_;
  std::unique_ptr<Endpoint> endpoint_;
  LinkHandler& handler_;
  const std::string peer_;
  const std::vector<int> fds_;
  MemoryKeys keys_;
  LinkReceiver receiver_;
  LinkSender sender_;
  std::vector<Notice> notices_;  // of the peer, at hand
  Patience patience_;
  uint64_t probe_timer_ = 0;
  bool started_ = false;
  bool wants_to_send_ = false;  // the handler has not said "nothing now" since the last Kick
  bool stopping_ = false;
  Status why_;
};

}  // namespace

std::unique_ptr<Link> MakeRdmaLink(EventLoop& loop, std::unique_ptr<Endpoint> endpoint, LinkHandler& handler) {
  return std::make_unique<RdmaLink>(loop, std::move(endpoint), handler);
}

}  // namespace byteps_like::rdma
