#include "csrc/transport/links/link_rate.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <vector>

#include "csrc/base/thread.h"
#include "csrc/transport/links/link.h"

namespace byteps_like {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);
constexpr size_t kWindow = 8u << 20;  // of memory at each end: more than the caches of a core

void PinTo(size_t which) {
  cpu_set_t allowed, one;
  CPU_ZERO(&one);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  size_t left = which % static_cast<size_t>(std::max(1, CPU_COUNT(&allowed)));
  for (size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || left-- > 0) continue;
    CPU_SET(core, &one);
    ::sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

// One end, with its loop: sends what it has to, and counts what comes.
class End final : public LinkHandler {
 public:
  End(std::unique_ptr<Stream> stream, size_t to_send, size_t to_skip, size_t to_receive)
      : memory_(kWindow, std::byte{1}),
        to_send_(to_send),
        to_skip_(to_skip),
        to_receive_(to_receive),
        link_(MakeLink(loop_, std::move(stream), *this)) {}

  // Until all has been received, here or, if nothing is to be received here, by the peer, who then hangs up.
  Status Run() {
    if (!loop_.made().ok()) return loop_.made();
    loop_.Post([this] {
      link_->Start();
      link_->Kick();
    });
    loop_.CallAt(Clock::now() + kPatience, [this] {
      why_ = Status(Code::kTimeout, "a link carries nothing");
      loop_.Stop();
    });
    loop_.Run();
    link_.reset();
    return why_;
  }
  double seconds() const { return std::chrono::duration<double>(end_ - begin_).count(); }

 private:
  std::byte* PlaceFor(Link&, const Header& header) override { return memory_.data() + header.offset % kWindow; }
  void OnFrame(Link&, const Header& header, std::byte*) override {
    if (received_ < to_skip_) begin_ = Clock::now();
    received_ += header.length;
    if (received_ < to_receive_) return;
    end_ = Clock::now();
    loop_.Stop();
  }
  bool NextFrame(Link&, Outgoing& next) override {
    if (sent_ >= to_send_) return false;
    next.header.type = FrameType::kPush;
    next.header.length = kDefaultSegment;
    next.header.total = kMaxPartition;
    next.header.offset = sent_ % (kMaxPartition / 2);
    next.payload = memory_.data() + sent_ % kWindow;
    sent_ += kDefaultSegment;
    return true;
  }
  void OnSent(Link&, const Header&) override {}
  void OnClosed(Link&, const Status& why) override {
    if (to_receive_ > 0) why_ = why;
    loop_.Stop();
  }

  EventLoop loop_;
  std::vector<std::byte> memory_;
  const size_t to_send_, to_skip_, to_receive_;
  size_t sent_ = 0, received_ = 0;
  Deadline begin_{}, end_{};
  Status why_;
  std::unique_ptr<Link> link_;
};

static_assert(kWindow % kDefaultSegment == 0 && (kMaxPartition / 2) % kWindow == 0);

}  // namespace

Result<double> MeasureLink(const std::string& url, size_t bytes) {
  const Deadline deadline = Clock::now() + kPatience;
  const StreamKeys keys{"the secret of nobody, for a link that only measures", {}};
  auto listener = Listen(url);
  if (!listener.ok()) return listener.status();
  auto client = Connect((*listener)->url(), deadline);
  if (!client.ok()) return client.status();
  auto server = (*listener)->Accept(deadline);
  if (!server.ok()) return server.status();
  (*client)->UseKeys(keys);
  (*server)->UseKeys(keys);
  const size_t warm = bytes / 16 / kDefaultSegment * kDefaultSegment;
  const size_t all = std::max(warm + bytes / kDefaultSegment * kDefaultSegment, kDefaultSegment);
  End sender(std::move(*client), all, 0, 0), receiver(std::move(*server), 0, warm, all);
  auto thread = StartThread("to measure with", [&] {
    PinTo(0);
    const Status ignored = sender.Run();  // the receiver meets what is wrong
    (void)ignored;
  });
  if (!thread.ok()) return thread.status();
  Status received;
  auto other = StartThread("to measure with", [&] {
    PinTo(1);
    received = receiver.Run();
  });
  if (other.ok()) other->join();
  thread->join();
  if (!other.ok()) return other.status();
  if (!received.ok()) return received;
  return static_cast<double>(all - warm) / receiver.seconds();
}

}  // namespace byteps_like
