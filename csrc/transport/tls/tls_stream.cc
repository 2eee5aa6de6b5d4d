#include "csrc/transport/tls/tls_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc/transport/tls/connection.h"

namespace byteps_like {
namespace {

using tls::kRecordBytes;

// What is sealed, or taken from the kernel, at once: enough to make its calls rare, little enough for the cache.
constexpr size_t kMostRecords = 9;
constexpr size_t kInBytes = 160u << 10;
constexpr size_t kLeastRoom = 64u << 10;
constexpr size_t kNegotiationBytes = 4u << 10;  // read at once before the keys are known
constexpr size_t kMostNegotiation = 64u << 10;  // bytes of a stranger

// "chaos tcp 10.0.0.2:4711" -> "chaos tls+tcp 10.0.0.2:4711", and likewise for addresses.
std::string Named(std::string name, std::string_view wrapper) {
  return name.insert(name.starts_with(wrapper) ? wrapper.size() : 0, "tls+");
}

class TlsStream final : public Stream {
 public:
  TlsStream(std::unique_ptr<Stream> inner, bool dials, const TlsOptions& options)
      : inner_(std::move(inner)), peer_(Named(inner_->peer(), "chaos ")), dials_(dials), options_(options) {}
  ~TlsStream() override { TlsStream::Shutdown(); }

  void UseKeys(const StreamKeys& keys) override {
    std::lock_guard lock(mutex_);
    if (connection_ != nullptr) return;
    auto connection = tls::Connection::Begin(keys, dials_);
    if (!connection.ok()) {
      (void)Fault(connection.status());
    } else {
      connection_ = std::move(*connection);
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
      auto more = connection_->Read({data + got, size - got});
      if (!more.ok()) {
        (void)Fault(more.status());
        if (got > 0) break;  // the next call tells
        return end_;
      }
      got += *more;
      if (*more > 0) continue;
      if (got > 0) break;
      auto filled = Fill();
      if (!filled.ok() || *filled == 0) return filled;
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

  bool peeks() const override { return inner_->peeks(); }
  Result<size_t> Peek(std::span<std::byte> room) override { return inner_->Peek(room); }
  std::unique_ptr<Stream> TakeInner() override { return std::move(inner_); }

  std::vector<int> fds() const override { return inner_->fds(); }
  void OnEvent(int fd) override { inner_->OnEvent(fd); }

  // Tells the peer that this is no accident, if all that was begun has gone out.
  void Shutdown() override {
    std::lock_guard lock(mutex_);
    if (inner_ == nullptr) return;
    if (!std::exchange(shut_, true) && end_.ok() && established_ && write_failure_.ok() &&
        connection_->outgoing().size() == 0) {
      connection_->Close();
      (void)Flush().ok();
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
    if (connection_ == nullptr) return End(Code::kInvalid, "it has no keys");
    return Negotiate();
  }

  Result<bool> Negotiate() {
    for (;;) {
      const Status step = connection_->Step();
      if (step.ok() && connection_->done()) {
        if (Status established = Establish(); !established.ok()) return Fault(established);
        return true;
      }
      auto said = Flush();  // also what is wrong
      if (!step.ok()) return Fault(step);
      if (!said.ok()) return End(said.status());
      const std::span<std::byte> room = connection_->incoming().Room(kNegotiationBytes);
      auto got = inner_->Read(room.data(), room.size());
      if (!got.ok() && got.status().code() != Code::kClosed) return End(got.status());
      if (!got.ok()) return End(Code::kPeerLost, "it closed the connection before TLS was negotiated");
      if (*got == 0) return false;
      negotiated_ += *got;
      if (negotiated_ > kMostNegotiation) return End(Code::kRefused, "it negotiates without end");
      connection_->incoming().Filled(*got);
    }
  }

  Status Establish() {
    auto binding = connection_->Export();
    if (!binding.ok()) return binding.status();
    binding_ = *binding;
    record_ = std::make_unique_for_overwrite<std::byte[]>(kRecordBytes);
    connection_->incoming().Room(kInBytes);
    established_ = true;
    return {};
  }

  // More sealed bytes; 0: nothing now.
  Result<size_t> Fill() {
    tls::Window& in = connection_->incoming();
    const std::span<std::byte> room = in.Room(kLeastRoom);
    auto got = inner_->Read(room.data(), room.size());
    if (got.ok()) in.Filled(*got);
    if (got.ok() || got.status().code() != Code::kClosed) return got;
    return End(Code::kPeerLost, "the connection was cut off: TLS was not closed");
  }

  // Sending -----------------------------------------------------------------------------------------------------------

  Status Seal(std::span<const iovec> pieces) {
    size_t skip = 0;  // of the first piece
    for (size_t records = 0; records < kMostRecords; ++records) {
      const std::span<const std::byte> content = NextContent(pieces, skip);
      if (content.empty()) break;
      if (records_++ >= options_.records_per_key) {
        records_ = 1;
        if (Status updated = connection_->UpdateKey(); !updated.ok()) return updated;
      }
      if (Status sealed = connection_->Write(content); !sealed.ok()) return sealed;
      promised_ += content.size();
    }
    return {};
  }

  // What the next record has: as it lies if the first piece fills a record, else gathered.
  std::span<const std::byte> NextContent(std::span<const iovec>& pieces, size_t& skip) {
    size_t content = 0;
    while (!pieces.empty() && content < kRecordBytes) {
      const iovec& piece = pieces.front();
      const auto* const from = static_cast<const std::byte*>(piece.iov_base) + skip;
      const size_t bytes = std::min(piece.iov_len - skip, kRecordBytes - content);
      skip += bytes;
      if (bytes == kRecordBytes) return {from, bytes};
      if (bytes > 0) std::memcpy(record_.get() + content, from, bytes);
      content += bytes;
      if (skip < piece.iov_len) break;
      pieces = pieces.subspan(1);
      skip = 0;
    }
    return {record_.get(), content};
  }

  // Whether all that was sealed has gone out.
  Result<bool> Flush() {
    tls::Window& out = connection_->outgoing();
    while (out.size() > 0) {
      const iovec piece{const_cast<std::byte*>(out.data()), out.size()};
      auto written = inner_->Write(std::span(&piece, 1));
      if (!written.ok()) return written.status();
      if (*written == 0) return false;
      out.Drop(*written);
    }
    return true;
  }

  std::unique_ptr<Stream> inner_;
  const std::string peer_;
  const bool dials_;
  const TlsOptions options_;
  std::mutex mutex_;  // for Shutdown, which any thread may call
  std::unique_ptr<tls::Connection> connection_;
  size_t negotiated_ = 0;
  bool established_ = false;
  bool shut_ = false;
  Status end_;  // nothing more is read or written
  Status write_failure_;
  tls::Connection::Binding binding_{};
  std::unique_ptr<std::byte[]> record_;  // where small pieces are gathered
  uint64_t records_ = 0;                 // sealed under this key
  size_t promised_ = 0;                  // bytes of the writer's that were sealed, and it does not know to be gone
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
