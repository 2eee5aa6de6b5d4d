#include "csrc/transport/tls/tls_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "csrc/transport/tls/negotiation.h"
#include "csrc/transport/tls/traffic_key.h"

namespace byteps_like {
namespace {

using tls::ContentType;
using tls::kOverheadBytes;
using tls::kRecordBytes;
using tls::kRecordHeaderBytes;

// What is sealed, or taken from the kernel, at once: enough to make its calls rare, little enough for the cache.
constexpr size_t kMostRecords = 9;
constexpr size_t kInBytes = 160u << 10;
constexpr size_t kLeastRoom = 64u << 10;
constexpr size_t kNegotiationBytes = 4u << 10;  // read at once before the keys are known
constexpr size_t kMostNegotiation = 64u << 10;  // bytes of a stranger
// Shorter content may be another thing than data, which must not touch the reader's memory.
constexpr size_t kLeastInPlace = 64;

constexpr std::byte kUpdateMessage[] = {std::byte{24}, std::byte{0}, std::byte{0}, std::byte{1}, std::byte{0}};
constexpr std::byte kCloseMessage[] = {std::byte{1}, std::byte{0}};  // warning, close_notify

// "chaos tcp 10.0.0.2:4711" -> "chaos tls+tcp 10.0.0.2:4711", and likewise for addresses.
std::string Named(std::string name, std::string_view wrapper) {
  return name.insert(name.starts_with(wrapper) ? wrapper.size() : 0, "tls+");
}

// A part of a buffer that is in use.
struct Window {
  std::unique_ptr<std::byte[]> bytes;
  size_t begin = 0, end = 0;

  size_t size() const { return end - begin; }
  std::byte* data() { return bytes.get() + begin; }
  void Clear() { begin = end = 0; }
  void ToFront() {
    std::memmove(bytes.get(), data(), size());
    end = size();
    begin = 0;
  }
};

class TlsStream final : public Stream {
 public:
  TlsStream(std::unique_ptr<Stream> inner, bool dials, const TlsOptions& options)
      : inner_(std::move(inner)), peer_(Named(inner_->peer(), "chaos ")), dials_(dials), options_(options) {}
  ~TlsStream() override { TlsStream::Shutdown(); }

  void UseKeys(const StreamKeys& keys) override {
    std::lock_guard lock(mutex_);
    if (negotiation_ != nullptr || established_) return;
    auto negotiation = tls::Negotiation::Begin(keys, dials_);
    if (!negotiation.ok()) {
      end_ = Status(negotiation.status().code(), peer_ + ": " + negotiation.status().message());
    } else {
      negotiation_ = std::move(*negotiation);
    }
  }

  Result<size_t> Read(std::byte* data, size_t size) override {
    if (size == 0) return size_t{0};
    std::lock_guard lock(mutex_);
    auto open = Open();
    if (!open.ok()) return open.status();
    if (!*open) return size_t{0};
    // What the peer has sent can still be read after a failure of this; the next write tells of it.
    if (auto flushed = Flush(); !flushed.ok()) write_failure_ = flushed.status();
    size_t got = 0;
    while (got < size) {
      auto more = plain_.size() > 0 ? TakePlain(data + got, size - got) : OpenRecord(data + got, size - got);
      if (!more.ok()) {
        if (got > 0) break;  // the next call tells
        return more;
      }
      if (*more > 0) {
        got += *more;
      } else if (sealed_.size() < NextRecordSize()) {
        if (got > 0) break;
        auto filled = Fill();
        if (!filled.ok() || *filled == 0) return filled;
      }
    }
    return got;
  }

  Result<size_t> Write(std::span<const iovec> pieces) override {
    std::lock_guard lock(mutex_);
    auto open = Open();
    if (!open.ok()) return open.status();
    if (!*open) return size_t{0};
    if (!write_failure_.ok()) return write_failure_;
    auto flushed = Flush();
    if (flushed.ok() && *flushed && promised_ == 0) {
      if (Status sealed = Seal(pieces); !sealed.ok()) return Fault(sealed);
      flushed = Flush();
    }
    if (!flushed.ok()) return write_failure_ = flushed.status();
    return *flushed ? std::exchange(promised_, 0) : size_t{0};
  }

  std::vector<int> fds() const override { return inner_->fds(); }
  void OnEvent(int fd) override { inner_->OnEvent(fd); }

  // Tells the peer that this is no accident, if all that was begun has gone out.
  void Shutdown() override {
    std::lock_guard lock(mutex_);
    if (!std::exchange(shut_, true) && end_.ok() && established_ && write_failure_.ok() && out_.size() == 0) {
      if (Append(ContentType::kAlert, kCloseMessage).ok()) (void)Flush().ok();
    }
    inner_->Shutdown();
  }

  std::string peer() const override { return peer_; }
  std::string source() const override { return inner_->source(); }
  bool KeepShort(bool on) override { return inner_->KeepShort(on); }
  size_t Filling(size_t segment) const override { return inner_->Filling(segment); }
  void LimitQueue(uint32_t bytes) override { inner_->LimitQueue(bytes); }
  void LimitSilence(double seconds) override { inner_->LimitSilence(seconds); }
  bool authenticates() const override { return true; }
  std::span<const std::byte> binding() const override {
    return established_ ? std::span<const std::byte>(binding_) : std::span<const std::byte>();
  }

 private:
  // For good. What the inner stream says names the peer already.
  Status End(const Status& why) {
    if (end_.ok()) end_ = why;
    return end_;
  }
  Status End(Code code, const std::string& why) { return End(Status(code, peer_ + ": " + why)); }
  Status Fault(const Status& why) { return End(why.code(), why.message()); }

  // Whether data may flow; goes on with the negotiation if not.
  Result<bool> Open() {
    if (!end_.ok()) return end_;
    if (shut_) return End(Code::kClosed, "it was shut down here");
    if (established_) return true;
    if (negotiation_ == nullptr) return End(Code::kInvalid, "it has no keys");
    return Negotiate();
  }

  Result<bool> Negotiate() {
    std::array<std::byte, kNegotiationBytes> bytes;
    for (std::span<const std::byte> in;;) {
      const Status step = negotiation_->Step(in, greeting_);
      if (step.ok() && negotiation_->done()) {
        if (Status established = Establish(); !established.ok()) return Fault(established);
        return true;
      }
      const Status said = Greet();  // also what is wrong
      if (!step.ok()) return Fault(step);
      if (!said.ok()) return End(said);
      auto got = inner_->Read(bytes.data(), bytes.size());
      if (!got.ok() && got.status().code() != Code::kClosed) return End(got.status());
      if (!got.ok()) return End(Code::kPeerLost, "it closed the connection before TLS was negotiated");
      if (*got == 0) return false;
      negotiated_ += *got;
      if (negotiated_ > kMostNegotiation) return End(Code::kRefused, "it negotiates without end");
      in = std::span(bytes).first(*got);
    }
  }

  Status Greet() {
    while (!greeting_.empty()) {
      const iovec piece{greeting_.data(), greeting_.size()};
      auto written = inner_->Write(std::span(&piece, 1));
      if (!written.ok()) return written.status();
      if (*written == 0) break;
      greeting_.erase(greeting_.begin(), greeting_.begin() + static_cast<ptrdiff_t>(*written));
    }
    return {};
  }

  Status Establish() {
    auto outcome = negotiation_->Finish();
    if (!outcome.ok()) return outcome.status();
    auto seal = tls::TrafficKey::Of(outcome->send, true);
    auto open = tls::TrafficKey::Of(outcome->receive, false);
    if (!seal.ok()) return seal.status();
    if (!open.ok()) return open.status();
    seal_ = std::move(*seal);
    open_ = std::move(*open);
    binding_ = outcome->binding;
    out_.bytes = std::make_unique_for_overwrite<std::byte[]>(kOutBytes);
    sealed_.bytes = std::make_unique_for_overwrite<std::byte[]>(kInBytes);
    plain_.bytes = std::make_unique_for_overwrite<std::byte[]>(tls::kMostSealedBytes);
    std::copy(outcome->rest.begin(), outcome->rest.end(), sealed_.bytes.get());
    sealed_.end = outcome->rest.size();
    std::copy(greeting_.begin(), greeting_.end(), out_.bytes.get());
    out_.end = greeting_.size();
    greeting_.clear();
    negotiation_.reset();
    established_ = true;
    return {};
  }

  // Receiving ---------------------------------------------------------------------------------------------------------

  size_t NextRecordSize() const { return record_ > 0 ? record_ : kRecordHeaderBytes; }

  // More sealed bytes; 0: nothing now.
  Result<size_t> Fill() {
    if (sealed_.size() == 0) sealed_.Clear();
    if (kInBytes - sealed_.end < kLeastRoom) sealed_.ToFront();
    auto got = inner_->Read(sealed_.bytes.get() + sealed_.end, kInBytes - sealed_.end);
    if (got.ok()) sealed_.end += *got;
    if (got.ok() || got.status().code() != Code::kClosed) return got;
    return End(Code::kPeerLost, "the connection was cut off: TLS was not closed");
  }

  Result<size_t> TakePlain(std::byte* data, size_t size) {
    const size_t bytes = std::min(size, plain_.size());
    std::memcpy(data, plain_.data(), bytes);
    plain_.begin += bytes;
    return bytes;
  }

  // Opens the next record, to `data` if it fits there. 0: it is not whole yet, or had nothing for the reader.
  Result<size_t> OpenRecord(std::byte* data, size_t size) {
    auto record = tls::RecordSize({sealed_.data(), sealed_.size()});
    if (!record.ok()) return Fault(record.status());
    record_ = *record;
    if (sealed_.size() < NextRecordSize()) return size_t{0};
    const size_t content = record_ - kOverheadBytes;
    const bool in_place = content >= kLeastInPlace && content <= size;
    auto opened = open_.Open({sealed_.data(), record_}, in_place ? data : plain_.bytes.get());
    if (!opened.ok()) return Fault(opened.status());
    sealed_.begin += record_;
    record_ = 0;
    if (opened->type != ContentType::kData) return Obey(*opened, in_place);
    if (in_place) return content;
    plain_.begin = 0;
    plain_.end = content;
    return TakePlain(data, size);
  }

  Result<size_t> Obey(const tls::TrafficKey::Opened& opened, bool in_place) {
    const std::span<const std::byte> message(plain_.bytes.get(), in_place ? 0 : opened.content);
    if (opened.type == ContentType::kAlert && message.size() == sizeof(kCloseMessage)) {
      if (message[1] == kCloseMessage[1]) return End(Code::kClosed, "it closed the connection");
      return End(Code::kPeerLost, "it ended TLS by alert " + std::to_string(std::to_integer<int>(message[1])));
    }
    if (opened.type == ContentType::kHandshake && message.size() == sizeof(kUpdateMessage) &&
        std::equal(message.begin(), message.end() - 1, std::begin(kUpdateMessage))) {
      must_update_ = must_update_ || message.back() == std::byte{1};
      if (Status updated = open_.Update(); !updated.ok()) return Fault(updated);
      return size_t{0};
    }
    return End(Code::kCorrupt, "a record of TLS has content that was not expected");
  }

  // Sending -----------------------------------------------------------------------------------------------------------

  Status Seal(std::span<const iovec> pieces) {
    if (must_update_ || seal_.records() >= options_.records_per_key) {
      if (Status updated = UpdateKey(); !updated.ok()) return updated;
    }
    size_t skip = 0;  // of the first piece
    for (size_t records = 0; records < kMostRecords; ++records) {
      std::array<iovec, kMostPieces> part;
      size_t count = 0, content = 0;
      while (!pieces.empty() && count < part.size() && content < kRecordBytes) {
        const iovec& piece = pieces.front();
        const size_t bytes = std::min(piece.iov_len - skip, kRecordBytes - content);
        if (bytes > 0) part[count++] = iovec{static_cast<std::byte*>(piece.iov_base) + skip, bytes};
        content += bytes;
        skip += bytes;
        if (skip < piece.iov_len) break;
        pieces = pieces.subspan(1);
        skip = 0;
      }
      if (content == 0) break;
      auto sealed = seal_.Seal(ContentType::kData, std::span(part.data(), count), content, out_.bytes.get() + out_.end);
      if (!sealed.ok()) return sealed.status();
      out_.end += *sealed;
      promised_ += content;
    }
    return {};
  }

  Status UpdateKey() {
    if (Status told = Append(ContentType::kHandshake, kUpdateMessage); !told.ok()) return told;
    must_update_ = false;
    return seal_.Update();
  }

  Status Append(ContentType type, std::span<const std::byte> message) {
    const iovec piece{const_cast<std::byte*>(message.data()), message.size()};
    auto sealed = seal_.Seal(type, std::span(&piece, 1), message.size(), out_.bytes.get() + out_.end);
    if (sealed.ok()) out_.end += *sealed;
    return sealed.status();
  }

  // Whether all that was sealed has gone out.
  Result<bool> Flush() {
    while (out_.size() > 0) {
      const iovec piece{out_.data(), out_.size()};
      auto written = inner_->Write(std::span(&piece, 1));
      if (!written.ok()) return written.status();
      if (*written == 0) return false;
      out_.begin += *written;
    }
    out_.Clear();
    return true;
  }

  static constexpr size_t kMostPieces = 64;
  // A batch, a change of keys and the last word.
  static constexpr size_t kOutBytes = kMostRecords * (kRecordBytes + kOverheadBytes) + 1024;

  const std::unique_ptr<Stream> inner_;
  const std::string peer_;
  const bool dials_;
  const TlsOptions options_;
  std::mutex mutex_;  // for Shutdown, which any thread may call
  std::unique_ptr<tls::Negotiation> negotiation_;
  std::vector<std::byte> greeting_;  // to be sent before there are keys
  size_t negotiated_ = 0;
  bool established_ = false;
  bool shut_ = false;
  bool must_update_ = false;  // the peer asks for a new key
  Status end_;                // nothing more is read or written
  Status write_failure_;
  tls::TrafficKey seal_, open_;
  std::array<std::byte, 32> binding_{};
  Window sealed_;        // has come
  size_t record_ = 0;    // size of the record at its beginning, if known
  Window plain_;         // opened, but not taken yet
  Window out_;           // sealed, but not gone out yet
  size_t promised_ = 0;  // bytes of the writer's in out_, and before, that it does not know to be gone
};

class TlsListener final : public Listener {
 public:
  explicit TlsListener(std::unique_ptr<Listener> inner)
      : inner_(std::move(inner)), url_(Named(inner_->url(), "chaos+")) {}

  Result<std::unique_ptr<Stream>> Accept(Deadline deadline) override {
    auto stream = inner_->Accept(deadline);
    if (!stream.ok()) return stream;
    return WrapInTls(std::move(*stream), false);
  }
  std::string url() const override { return url_; }
  void Close() override { inner_->Close(); }

 private:
  const std::unique_ptr<Listener> inner_;
  const std::string url_;
};

}  // namespace

std::unique_ptr<Stream> WrapInTls(std::unique_ptr<Stream> inner, bool dials, const TlsOptions& options) {
  return std::make_unique<TlsStream>(std::move(inner), dials, options);
}

std::unique_ptr<Listener> WrapListenerInTls(std::unique_ptr<Listener> inner) {
  return std::make_unique<TlsListener>(std::move(inner));
}

}  // namespace byteps_like
