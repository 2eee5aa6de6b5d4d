// A transport "placing" for tests, within the process: links whose sender writes payloads by itself to where the other
// end has offered a place, as rdma does, at the worst moments. Bytes are there as soon as the frame is begun, and are
// compared when it is told; offers are heard as late as they may be; a test can break a link between the two.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/transport/links/link.h"
#include "csrc/transport/memory/registered_memory.h"
#include "tests/native/transport/links/inproc.h"

namespace byteps_like::testing {

struct PlacingCounters {              // of all these links
  std::atomic<int64_t> break_at{-1};  // breaks the link that writes the how-manieth payload from now on; < 0: none
  std::atomic<uint64_t> written{0};   // payloads, unseen
  std::atomic<uint64_t> torn{0};      // of which something was changed before they were told
};
inline PlacingCounters placing;

// What the two ends share. Under the mutex.
struct PlacingCable {
  struct Offer {
    Header about;
    std::byte* place;
    uint64_t bytes;
    uint64_t frames;  // that the end which made it had begun before
  };
  struct End {
    bool open = true;                // its memory may be written
    uint64_t begun = 0, heard = 0;   // frames
    std::deque<Offer> told;          // what the other end has not heard yet
    std::deque<std::byte*> written;  // where payloads of this end lie, in order; nullptr: with their frames
  };
  std::mutex mutex;
  std::array<End, 2> ends;
};

class PlacingLink final : public Link, private LinkHandler {
 public:
  PlacingLink(EventLoop& loop, std::unique_ptr<Stream> stream, LinkHandler& handler,
              std::shared_ptr<PlacingCable> cable, int end)
      : handler_(handler), cable_(std::move(cable)), end_(end), inner_(MakeLink(loop, std::move(stream), *this)) {}
  ~PlacingLink() override { Shut(); }

  void Start() override { inner_->Start(); }
  void Kick() override { inner_->Kick(); }
  bool Redirect(std::byte* place) override { return inner_->Redirect(place); }
  void Keep() override { inner_->Keep(); }
  bool KeepShort(bool on) override { return inner_->KeepShort(on); }
  void Close(const Status& why) override {
    Shut();
    inner_->Close(why);
  }
  LinkCounters counters() const override {
    LinkCounters counters = inner_->counters();
    counters.payload_placed = placed_;
    counters.offers_sent = offers_;
    return counters;
  }
  std::string peer() const override { return "placing " + inner_->peer(); }
  bool shares_memory() const override { return false; }
  Status PassBuffer(const SharedBuffer&) override { return Status(Code::kInvalid, "shares no memory"); }
  Result<std::shared_ptr<SharedBuffer>> TakeBuffer() override { return Status(Code::kInvalid, "shares no memory"); }

  bool Offer(const Header& about, std::byte* place, uint64_t bytes) override {
    if (place != nullptr && !FindMemory(place, bytes)) place = nullptr;
    auto& old = offered_[Key(OfferIdOf(about))];
    const Offered now{place, place == nullptr ? 0 : bytes, (about.flags & kEncoded) != 0};
    if (old == now || (old.place == nullptr && place == nullptr)) return place != nullptr;
    old = now;
    ++offers_;
    std::lock_guard lock(cable_->mutex);
    mine().told.push_back({about, place, now.bytes, mine().begun});
    return place != nullptr;
  }

 private:
  struct Offered {
    std::byte* place = nullptr;
    uint64_t bytes = 0;
    bool encoded = false;
    bool operator==(const Offered&) const = default;
  };
  using Id = std::string;
  static Id Key(const OfferId& id) {
    return std::to_string(int(id.type)) + " " + std::to_string(id.key) + " " + std::to_string(id.which);
  }
  PlacingCable::End& mine() { return cable_->ends[end_]; }
  PlacingCable::End& other() { return cable_->ends[1 - end_]; }
  void Shut() {
    std::lock_guard lock(cable_->mutex);
    mine().open = false;
  }

  bool NextFrame(Link&, Outgoing& next) override {
    if (!handler_.NextFrame(*this, next)) return false;
    if (Write(next)) inner_->Close(Status(Code::kPeerLost, "the test has broken this link"));
    return true;
  }
  // True: and that is all that is to come of it.
  bool Write(const Outgoing& next) {
    const Header& header = next.header;
    std::lock_guard lock(cable_->mutex);
    ++mine().begun;
    if (header.type == FrameType::kForget)
      for (const uint64_t parity : {0, 1}) heard_.erase(Key({FrameType::kPush, header.key, parity}));
    if (header.length == 0) return false;
    const auto found = heard_.find(Key(OfferIdOf(header)));
    const bool fits = found != heard_.end() && found->second.place != nullptr &&
                      header.offset + header.length <= found->second.bytes &&
                      ((header.flags & kEncoded) != 0) == found->second.encoded;
    mine().written.push_back(fits ? found->second.place + header.offset : nullptr);
    if (!fits || !other().open) return false;
    std::memcpy(mine().written.back(), next.payload, header.length);
    ++placing.written;
    return placing.break_at >= 0 && placing.break_at-- == 0;
  }

  std::byte* PlaceFor(Link&, const Header& header) override {
    {
      std::lock_guard lock(cable_->mutex);
      if (other().written.front() != nullptr) return kAnywhere;
    }
    return handler_.PlaceFor(*this, header);
  }
  void OnFrame(Link&, const Header& header, std::byte* payload) override {
    if (std::byte* const written = Hear(header)) {
      if (std::memcmp(written, payload, header.length) != 0) ++placing.torn;
      std::byte* const place = handler_.PlaceFor(*this, header);
      if (place == nullptr) return inner_->Close(Status(Code::kCorrupt, "refused"));
      if (place == kAnywhere || place == written) {
        placed_ += header.length;
        payload = written;
      } else {
        payload = static_cast<std::byte*>(std::memcpy(place, written, header.length));
      }
    }
    handler_.OnFrame(*this, header, payload);
  }
  // Where its payload was written; offers that went before it hold from here on.
  std::byte* Hear(const Header& header) {
    std::lock_guard lock(cable_->mutex);
    for (; !other().told.empty() && other().told.front().frames <= other().heard; other().told.pop_front()) {
      const PlacingCable::Offer& offer = other().told.front();
      heard_[Key(OfferIdOf(offer.about))] = {offer.place, offer.bytes, (offer.about.flags & kEncoded) != 0};
    }
    ++other().heard;
    if (header.length == 0) return nullptr;
    std::byte* const written = other().written.front();
    other().written.pop_front();
    return written;
  }
  void OnSent(Link&, const Header& header) override { handler_.OnSent(*this, header); }
  void OnClosed(Link&, const Status& why) override {
    Shut();
    handler_.OnClosed(*this, why);
  }

  LinkHandler& handler_;
  const std::shared_ptr<PlacingCable> cable_;
  const int end_;
  std::unordered_map<Id, Offered> offered_, heard_;  // ours, and the other end's
  std::atomic<uint64_t> placed_{0}, offers_{0};
  const std::unique_ptr<Link> inner_;
};

class PlacingStream final : public Stream {
 public:
  PlacingStream(std::unique_ptr<Stream> inner, std::shared_ptr<PlacingCable> cable, int end)
      : inner_(std::move(inner)), cable_(std::move(cable)), end_(end) {}
  Result<size_t> Read(std::byte* data, size_t size) override { return inner_->Read(data, size); }
  Result<size_t> Write(std::span<const iovec> pieces) override { return inner_->Write(pieces); }
  std::vector<int> fds() const override { return inner_->fds(); }
  void Shutdown() override { inner_->Shutdown(); }
  std::string peer() const override { return "placing"; }
  std::unique_ptr<Link> BringLink(EventLoop& loop, LinkHandler& handler) override {
    return std::make_unique<PlacingLink>(loop, std::move(inner_), handler, cable_, end_);
  }

 private:
  std::unique_ptr<Stream> inner_;
  const std::shared_ptr<PlacingCable> cable_;
  const int end_;
};

// The connecting end makes the cable and hands the other one its share, as the first bytes of the stream.
inline Result<std::unique_ptr<Stream>> ConnectPlacing(const std::string& url, Deadline deadline) {
  auto stream = Inproc().connect(url, deadline);
  if (!stream.ok()) return stream;
  auto cable = std::make_shared<PlacingCable>();
  auto* const share = new std::shared_ptr<PlacingCable>(cable);
  const Status sent = WriteFull(**stream, std::as_bytes(std::span(&share, 1)), deadline);
  if (!sent.ok()) return sent;
  return std::unique_ptr<Stream>(std::make_unique<PlacingStream>(std::move(*stream), std::move(cable), 0));
}

class PlacingListener final : public Listener {
 public:
  explicit PlacingListener(std::unique_ptr<Listener> inner) : inner_(std::move(inner)) {}
  Result<std::unique_ptr<Stream>> Accept(Deadline deadline) override {
    auto stream = inner_->Accept(deadline);
    if (!stream.ok()) return stream;
    std::shared_ptr<PlacingCable>* share = nullptr;
    const Status read = ReadFull(**stream, std::as_writable_bytes(std::span(&share, 1)), deadline);
    if (!read.ok()) return read;
    const std::unique_ptr<std::shared_ptr<PlacingCable>> cable(share);
    return std::unique_ptr<Stream>(std::make_unique<PlacingStream>(std::move(*stream), *cable, 1));
  }
  std::string url() const override { return inner_->url(); }
  void Close() override { inner_->Close(); }

 private:
  const std::unique_ptr<Listener> inner_;
};

inline Result<std::unique_ptr<Listener>> ListenPlacing(const std::string& url) {
  auto listener = Inproc().listen(url);
  if (!listener.ok()) return listener;
  return std::unique_ptr<Listener>(std::make_unique<PlacingListener>(std::move(*listener)));
}

// Before its first address.
inline void UsePlacing() {
  static const Transport transport{"placing", [] { return Status(); }, ConnectPlacing, ListenPlacing};
  AddTransport(transport);
}

}  // namespace byteps_like::testing
