// A transport "late" for tests, within the process: links that hear of what they have sent only after the peer has
// answered it, as a device may that is told late of what has arrived.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/transport/links/link.h"
#include "tests/native/transport/links/inproc.h"

namespace byteps_like::testing {

struct LateNews {  // of all these links
  std::atomic<bool> held{false};
  std::atomic<uint64_t> kept{0};  // how often a handler had payloads copied
};
inline LateNews late;

class LateLink final : public Link, private LinkHandler {
 public:
  LateLink(EventLoop& loop, std::unique_ptr<Stream> stream, LinkHandler& handler)
      : handler_(handler), inner_(MakeLink(loop, std::move(stream), *this)) {}

  void Start() override { inner_->Start(); }
  void Kick() override { inner_->Kick(); }
  bool Redirect(std::byte* place) override { return inner_->Redirect(place); }
  void Keep() override {
    ++late.kept;
    inner_->Keep();
  }
  bool hears_late() const override { return true; }
  bool KeepShort(bool on) override { return inner_->KeepShort(on); }
  void Close(const Status& why) override { inner_->Close(why); }
  LinkCounters counters() const override { return inner_->counters(); }
  std::string peer() const override { return "late " + inner_->peer(); }
  bool shares_memory() const override { return false; }
  Status PassBuffer(const SharedBuffer&) override { return Status(Code::kInvalid, "shares no memory"); }
  Result<std::shared_ptr<SharedBuffer>> TakeBuffer() override { return Status(Code::kInvalid, "shares no memory"); }

 private:
  bool NextFrame(Link&, Outgoing& next) override { return handler_.NextFrame(*this, next); }
  std::byte* PlaceFor(Link&, const Header& header) override { return handler_.PlaceFor(*this, header); }
  void OnFrame(Link&, const Header& header, std::byte* payload) override {
    if (!late.held) Tell();
    handler_.OnFrame(*this, header, payload);
  }
  void OnSent(Link&, const Header& header) override {
    sent_.push_back(header);
    if (!late.held) Tell();
  }
  void Tell() {
    for (; !sent_.empty(); sent_.pop_front()) handler_.OnSent(*this, sent_.front());
  }
  void OnClosed(Link&, const Status& why) override { handler_.OnClosed(*this, why); }

  LinkHandler& handler_;
  std::deque<Header> sent_;  // and not told
  const std::unique_ptr<Link> inner_;
};

class LateStream final : public Stream {
 public:
  explicit LateStream(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}
  Result<size_t> Read(std::byte* data, size_t size) override { return inner_->Read(data, size); }
  Result<size_t> Write(std::span<const iovec> pieces) override { return inner_->Write(pieces); }
  std::vector<int> fds() const override { return inner_->fds(); }
  void Shutdown() override { inner_->Shutdown(); }
  std::string peer() const override { return "late"; }
  std::string source() const override { return inner_->source(); }
  std::unique_ptr<Link> BringLink(EventLoop& loop, LinkHandler& handler) override {
    return std::make_unique<LateLink>(loop, std::move(inner_), handler);
  }

 private:
  std::unique_ptr<Stream> inner_;
};

class LateListener final : public Listener {
 public:
  explicit LateListener(std::unique_ptr<Listener> inner) : inner_(std::move(inner)) {}
  Result<std::unique_ptr<Stream>> Accept(Deadline deadline) override {
    auto stream = inner_->Accept(deadline);
    if (!stream.ok()) return stream;
    return std::unique_ptr<Stream>(std::make_unique<LateStream>(std::move(*stream)));
  }
  std::string url() const override { return inner_->url(); }
  void Close() override { inner_->Close(); }

 private:
  const std::unique_ptr<Listener> inner_;
};

// Before its first address. Links of the accepting end are late.
inline void UseLate() {
  const auto listen = [](const std::string& url) -> Result<std::unique_ptr<Listener>> {
    auto listener = Inproc().listen(url);
    if (!listener.ok()) return listener;
    return std::unique_ptr<Listener>(std::make_unique<LateListener>(std::move(*listener)));
  };
  static const Transport transport{"late", [] { return Status(); }, Inproc().connect, +listen};
  AddTransport(transport);
}

}  // namespace byteps_like::testing
