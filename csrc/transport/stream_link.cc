// Frames over any stream: LinkReader and LinkWriter on one event loop.
#include "csrc/transport/link.h"
#include "csrc/transport/link_reader.h"
#include "csrc/transport/link_writer.h"

namespace byteps_like {
namespace {

// What one link may handle before the others of its loop have their turn, each way.
constexpr size_t kTurnBytes = 1u << 20;

class StreamLink final : public Link, private EventLoop::Deferred {
 public:
  StreamLink(EventLoop& loop, std::unique_ptr<Stream> stream, LinkHandler& handler)
      : loop_(loop),
        stream_(std::move(stream)),
        handler_(handler),
        peer_(stream_->peer()),
        fds_(stream_->fds()),
        reader_(*this, *stream_, handler),
        writer_(*this, *stream_, handler) {}
  ~StreamLink() override { Leave(); }

  void Start() override {
    if (stopping_) return;
    started_ = true;
    for (const int fd : fds_) {
      loop_.Watch(fd, [this] {
        readable_ = writable_ = true;
        Turn();
      });
    }
    Kick();
  }

  void Kick() override {
    wants_to_send_ = true;
    if (started_ && writable_) loop_.Defer(*this);
  }

  bool Redirect(std::byte* place) override { return reader_.Redirect(place); }

  void Keep() override { writer_.Keep(); }

  bool KeepShort(bool on) override { return stream_->KeepShort(on); }

  void Close(const Status& why) override {
    if (stopping_) return;
    why_ = why;
    stopping_ = true;
    loop_.Defer(*this);
  }

  LinkCounters counters() const override {
    const Traffic& out = writer_.traffic();
    const Traffic& in = reader_.traffic();
    LinkCounters counters;
    counters.frames_sent = out.frames.get();
    counters.frames_received = in.frames.get();
    counters.bytes_sent = out.bytes.get();
    counters.bytes_received = in.bytes.get();
    counters.payload_sent = out.payload.get();
    counters.payload_received = in.payload.get();
    return counters;
  }

  std::string peer() const override { return peer_; }
  bool shares_memory() const override { return stream_->shares_memory(); }
  Status PassBuffer(const SharedBuffer& buffer) override { return stream_->PassBuffer(buffer); }
  Result<std::shared_ptr<SharedBuffer>> TakeBuffer() override { return stream_->TakeBuffer(); }

 private:
  void RunDeferred() override { Turn(); }

  // One turn of work both ways. Ends with OnClosed if the link is over: nothing may follow, `this` may be gone.
  void Turn() {
    if (!stopping_) ReceiveSome();
    if (!stopping_) SendSome();
    if (stopping_) {
      Finish();
    } else if (readable_ || (wants_to_send_ && writable_)) {
      loop_.Defer(*this);
    }
  }

  void ReceiveSome() {
    if (!readable_) return;
    auto more = reader_.Receive(kTurnBytes, stopping_);
    if (!more.ok()) return Fail(more.status());
    readable_ = *more;
    // The peer takes nothing more, and all that it had sent is handled now.
    if (!readable_ && !write_failure_.ok()) Fail(write_failure_);
  }

  void SendSome() {
    if (!wants_to_send_ || !writable_ || !write_failure_.ok()) return;
    wants_to_send_ = false;  // a Kick from inside the handler sets it again
    auto more = writer_.Send(kTurnBytes, stopping_);
    if (!more.ok()) {
      // What the peer wrote before it went, perhaps the reason, is still to be read.
      write_failure_ = more.status();
      readable_ = true;
      return;
    }
    writable_ = !writer_.blocked();
    wants_to_send_ = wants_to_send_ || *more || writer_.blocked();
  }

  void Fail(const Status& why) {
    if (stopping_) return;
    stopping_ = true;
    why_ = why;
    if (why.code() != Code::kClosed) return;
    const bool goodbye = reader_.saw_goodbye() || writer_.sent_goodbye();
    why_ = goodbye ? Status(Code::kClosed, peer_ + " closed the link after a goodbye")
                   : Status(Code::kPeerLost, peer_ + " closed the link without a goodbye");
  }

  void Finish() {
    Leave();
    stream_->Shutdown();
    handler_.OnClosed(*this, Status(why_));
  }

  void Leave() {
    loop_.Forget(*this);
    if (started_) {
      for (const int fd : fds_) loop_.Unwatch(fd);
    }
    started_ = false;
  }

  EventLoop& loop_;
  const std::unique_ptr<Stream> stream_;
  LinkHandler& handler_;
  const std::string peer_;
  const std::vector<int> fds_;
  LinkReader reader_;
  LinkWriter writer_;
  bool started_ = false;
  bool readable_ = true;        // the stream has not said "nothing now" since its last event
  bool writable_ = true;        // likewise
  bool wants_to_send_ = false;  // the handler has not said "nothing now" since the last Kick
  bool stopping_ = false;
  Status why_;
  Status write_failure_;
};

}  // namespace

std::unique_ptr<Link> Stream::BringLink(EventLoop&, LinkHandler&) { return nullptr; }

std::unique_ptr<Link> MakeLink(EventLoop& loop, std::unique_ptr<Stream> stream, LinkHandler& handler) {
  if (auto own = stream->BringLink(loop, handler)) return own;
  return std::make_unique<StreamLink>(loop, std::move(stream), handler);
}

}  // namespace byteps_like
