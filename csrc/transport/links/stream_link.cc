// Frames over any stream: LinkReader and LinkWriter on one event loop.
#include "csrc/transport/links/link_reader.h"
#include "csrc/transport/links/link_writer.h"
#include "csrc/transport/links/loop_link.h"

namespace byteps_like {
namespace {

class StreamLink final : public LoopLink {
 public:
  StreamLink(EventLoop& loop, std::unique_ptr<Stream> stream, LinkHandler& handler)
      : LoopLink(loop, handler, stream->peer(), stream->fds()),
        stream_(std::move(stream)),
        reader_(*this, *stream_, handler),
        writer_(*this, *stream_, handler) {}
  ~StreamLink() override { Leave(); }

  bool Redirect(std::byte* place) override { return reader_.Redirect(place); }

  void Keep() override { writer_.Keep(); }

  bool KeepShort(bool on) override { return stream_->KeepShort(on); }

  size_t Filling(size_t segment) const override { return stream_->Filling(segment); }
  bool shares_memory() const override { return stream_->shares_memory(); }
  Status PassBuffer(const SharedBuffer& buffer) override { return stream_->PassBuffer(buffer); }
  Result<std::shared_ptr<SharedBuffer>> TakeBuffer() override { return stream_->TakeBuffer(); }

 private:
  void OnEvent(int fd) override {
    stream_->OnEvent(fd);
    readable_ = writable_ = true;
  }
  bool may_send() const override { return writable_; }
  void Disconnect() override { stream_->Shutdown(); }
  const Traffic& sent() const override { return writer_.traffic(); }
  const Traffic& received() const override { return reader_.traffic(); }
  bool said_goodbye() const override { return reader_.saw_goodbye() || writer_.sent_goodbye(); }

  bool Turn() override {
    ReceiveSome();
    if (!stopping_) SendSome();
    return readable_ || (wants_to_send_ && writable_);
  }

  void ReceiveSome() {
    if (!readable_) return;
    auto more = reader_.Receive(kTurnBytes, stopping_);
    if (!more.ok()) return End(more.status());
    readable_ = *more;
    // The peer takes nothing more, and all that it had sent is handled now.
    if (!readable_ && !write_failure_.ok()) End(write_failure_);
  }

  void SendSome() {
    if (!wants_to_send_ || !writable_ || !write_failure_.ok()) return;
    wants_to_send_ = false;  // a Kick from inside the handler sets it again
    auto more = writer_.Send(kTurnBytes, stopping_);
    if (!more.ok()) {
      // The peer's last bytes, perhaps its reason for leaving, must still be read.
      write_failure_ = more.status();
      readable_ = true;
      return;
    }
    writable_ = !writer_.blocked();
    wants_to_send_ = wants_to_send_ || *more || writer_.blocked();
  }

  void End(const Status& why) { Fail(why, why.code() == Code::kClosed, peer_ + " closed the link without a goodbye"); }

  const std::unique_ptr<Stream> stream_;
  LinkReader reader_;
  LinkWriter writer_;
  bool readable_ = true;  // the stream has not said "nothing now" since its last event
  bool writable_ = true;  // likewise
  Status write_failure_;
};

}  // namespace

Result<size_t> Stream::Peek(std::span<std::byte>) { return Status(Code::kInvalid, peer() + " can't be looked into"); }
Status Stream::PassBuffer(const SharedBuffer&) { return Status(Code::kInvalid, peer() + " shares no memory"); }

Result<std::shared_ptr<SharedBuffer>> Stream::TakeBuffer() {
  return Status(Code::kInvalid, peer() + " shares no memory");
}

std::unique_ptr<Link> Stream::BringLink(EventLoop&, LinkHandler&) { return nullptr; }

std::unique_ptr<Link> MakeLink(EventLoop& loop, std::unique_ptr<Stream> stream, LinkHandler& handler) {
  if (auto own = stream->BringLink(loop, handler)) return own;
  return std::make_unique<StreamLink>(loop, std::move(stream), handler);
}

}  // namespace byteps_like
