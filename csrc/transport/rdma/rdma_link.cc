#include "csrc/transport/rdma/rdma_link.h"

#include "csrc/transport/links/loop_link.h"
#include "csrc/transport/memory/shared_buffer.h"
#include "csrc/transport/rdma/link_receiver.h"
#include "csrc/transport/rdma/link_sender.h"
#include "csrc/transport/rdma/undertaker.h"
#include "csrc/transport/rdma/verbs/patience.h"

namespace byteps_like::rdma {
namespace {

// How often an idle link checks that its paths still work.
constexpr auto kProbeEvery = std::chrono::seconds(2);

class RdmaLink final : public LoopLink {
 public:
  RdmaLink(EventLoop& loop, std::unique_ptr<Endpoint> endpoint, LinkHandler& handler)
      : LoopLink(loop, handler, endpoint->peer(), endpoint->fds()),
        endpoint_(std::move(endpoint)),
        keys_(endpoint_->devices()),
        receiver_(*this, *endpoint_, keys_, handler),
        sender_(*this, *endpoint_, keys_, handler) {}
  ~RdmaLink() override {
    Leave();
    Disconnect();
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
  bool hears_late() const override { return true; }

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
      return Close(Status(Code::kPeerLost, peer_ + ": sent messages are not acknowledged, and their memory is needed"));
    }
    Kick();  // completions were taken
  }

  bool KeepShort(bool) override { return false; }

  LinkCounters counters() const override {
    LinkCounters counters = LoopLink::counters();
    counters.offers_sent = sender_.offers_sent();
    counters.payload_placed = receiver_.payload_placed();
    return counters;
  }

  bool shares_memory() const override { return false; }
  Status PassBuffer(const SharedBuffer&) override { return NoSharedMemory(); }
  Result<std::shared_ptr<SharedBuffer>> TakeBuffer() override { return NoSharedMemory(); }

 private:
  Status Begin() override {
    auto slots = endpoint_->Open();
    if (!slots.ok()) return slots.status();
    sender_.Open(*slots);
    ProbeLater();
    return {};
  }

  void OnEvent(int) override { endpoint_->TakeEvents(); }
  void Stop() override { endpoint_->Fail(); }
  const Traffic& sent() const override { return sender_.traffic(); }
  const Traffic& received() const override { return receiver_.traffic(); }
  bool said_goodbye() const override { return receiver_.saw_goodbye() || sender_.sent_goodbye(); }

  bool Turn() override {
    bool busy = endpoint_->Poll() > 0;
    sender_.Report(stopping_);
    if (!stopping_) busy = ReceiveSome() || busy;
    if (!stopping_) busy = SendSome() || busy;
    if (stopping_) return false;
    if (busy) patience_.OnBusy(Clock::now());
    return busy || !Rest();
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
      Again();
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
    if (!more.ok()) return End(more.status()), false;
    if (Status given = endpoint_->GiveCredit(); !given.ok() && !*more) return End(given), false;
    // All that the peer had sent is handled now.
    if (!*more && !endpoint_->failure().ok()) End(endpoint_->failure());
    return *more;
  }

  void OnNotice(const Notice& notice) {
    switch (notice.kind) {
      case Kind::kOpen:
        return endpoint_->OnOpen(notice.place);
      case Kind::kWithdraw:
        if (Status taken = sender_.Withdraw(notice.place); !taken.ok()) End(taken);
        return;
      case Kind::kWithdrawn:
        if (Status known = receiver_.OnWithdrawn(notice.place); !known.ok()) End(known);
        return;
      default:
        if (Status taken = sender_.Take(notice.place); !taken.ok()) End(taken);
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
    if (!more.ok()) return true;  // the endpoint has failed: messages that it had received come first
    wants_to_send_ = wants_to_send_ || *more || sender_.blocked();
    return *more;
  }

  void End(const Status& why) {
    const bool gone = why.code() == Code::kClosed || why.code() == Code::kPeerLost;
    Fail(why, gone, why.message() + " (without a goodbye)");
  }

  void Disconnect() override {
    loop_.CancelTimer(probe_timer_);
    if (endpoint_ == nullptr) return;
    endpoint_->Fail();
    Bury(std::move(endpoint_), false);
  }

  Status NoSharedMemory() const { return Status(Code::kInvalid, peer_ + " shares no memory"); }

  std::unique_ptr<Endpoint> endpoint_;
  MemoryKeys keys_;
  LinkReceiver receiver_;
  LinkSender sender_;
  std::vector<Notice> notices_;  // of the peer, at hand
  Patience patience_;
  uint64_t probe_timer_ = 0;
};

}  // namespace

std::unique_ptr<Link> MakeRdmaLink(EventLoop& loop, std::unique_ptr<Endpoint> endpoint, LinkHandler& handler) {
  return std::make_unique<RdmaLink>(loop, std::move(endpoint), handler);
}

}  // namespace byteps_like::rdma
