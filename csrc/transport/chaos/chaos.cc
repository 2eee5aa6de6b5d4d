#include "csrc/transport/chaos/chaos.h"

#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>

#include "csrc/base/fd.h"
#include "csrc/transport/chaos/chaos_plan.h"
#include "csrc/transport/loop/delay_line.h"

namespace byteps_like {
namespace {

class ChaosStream final : public Stream {
 public:
  ChaosStream(std::unique_ptr<Stream> inner, const ChaosOptions& options, uint64_t seed, Fd timer)
      : inner_(std::move(inner)), timer_(std::move(timer)), in_(options, 2 * seed), out_(options, 2 * seed + 1) {
    if (options.delay_ms > 0) {
      delay_.emplace(std::chrono::nanoseconds(static_cast<int64_t>(options.delay_ms * 1e6)));
    }
  }

  Result<size_t> Read(std::byte* data, size_t size) override {
    if (size == 0) return size_t{0};
    read_at_.reset();
    const auto now = Clock::now();
    if (delay_) delay_->FillFrom(*inner_, now);
    const size_t allowed = in_.Allow(size, now);
    if (in_.drops()) return Drop();
    if (allowed == 0) return Later(&read_at_, in_.wake_at());
    auto got = delay_ ? delay_->Read(data, allowed, now) : inner_->Read(data, allowed);
    if (!got.ok()) return got;
    if (*got == 0) return Later(&read_at_, delay_ ? delay_->wake_at() : std::nullopt);
    if (in_.corrupts()) data[0] = in_.Flip(data[0]);
    in_.Moved(*got);
    return got;
  }

  Result<size_t> Write(std::span<const iovec> pieces) override {
    size_t wanted = 0;
    for (const iovec& piece : pieces) wanted += piece.iov_len;
    if (wanted == 0) return size_t{0};
    write_at_.reset();
    const size_t allowed = out_.Allow(wanted, Clock::now());
    if (out_.drops()) return Drop();
    if (allowed == 0) return Later(&write_at_, out_.wake_at());
    auto written = out_.corrupts() ? WriteFlipped(pieces) : WriteFirst(pieces, allowed);
    if (written.ok()) out_.Moved(*written);
    return written;
  }

  void OnEvent(int fd) override { inner_->OnEvent(fd); }
  std::vector<int> fds() const override {
    std::vector<int> fds = inner_->fds();
    fds.push_back(timer_.get());
    return fds;
  }
  void Shutdown() override { inner_->Shutdown(); }
  bool KeepShort(bool on) override { return inner_->KeepShort(on); }
  size_t Filling(size_t segment) const override { return inner_->Filling(segment); }
  void LimitQueue(uint32_t bytes) override { inner_->LimitQueue(bytes); }
  void LimitSilence(double seconds) override { inner_->LimitSilence(seconds); }
  std::string peer() const override { return "chaos " + inner_->peer(); }
  std::string source() const override { return inner_->source(); }
  bool shares_memory() const override { return inner_->shares_memory(); }
  Status PassBuffer(const SharedBuffer& buffer) override { return inner_->PassBuffer(buffer); }
  Result<std::shared_ptr<SharedBuffer>> TakeBuffer() override { return inner_->TakeBuffer(); }

 private:
  Status Drop() {
    inner_->Shutdown();
    return Status(Code::kPeerLost, peer() + ": the connection was dropped on purpose");
  }

  // "Nothing now", and if time alone will change that, an event then.
  size_t Later(std::optional<Deadline>* slot, std::optional<Deadline> when) {
    *slot = when;
    if (!when) return 0;
    // One timer for both: arming it for one direction must not forget the other, even when that one is due already.
    const auto first = std::min(read_at_.value_or(*when), write_at_.value_or(*when));
    const auto left = std::max<int64_t>(1, std::chrono::nanoseconds(first - Clock::now()).count());
    itimerspec spec{};
    spec.it_value.tv_sec = left / 1'000'000'000;
    spec.it_value.tv_nsec = left % 1'000'000'000;
    ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
    return 0;
  }

  Result<size_t> WriteFirst(std::span<const iovec> pieces, size_t bytes) {
    std::array<iovec, 64> first;
    size_t count = 0;
    for (const iovec& piece : pieces.first(std::min(pieces.size(), first.size()))) {
      if (bytes == 0) break;
      first[count] = iovec{piece.iov_base, std::min(piece.iov_len, bytes)};
      bytes -= first[count++].iov_len;
    }
    return inner_->Write(std::span(first.data(), count));
  }

  Result<size_t> WriteFlipped(std::span<const iovec> pieces) {
    const auto filled =
        std::find_if(pieces.begin(), pieces.end(), [](const iovec& piece) { return piece.iov_len > 0; });
    std::byte flipped = out_.Flip(*static_cast<const std::byte*>(filled->iov_base));
    const iovec piece{&flipped, 1};
    return inner_->Write(std::span(&piece, 1));
  }

  const std::unique_ptr<Stream> inner_;
  const Fd timer_;
  ChaosPlan in_, out_;
  std::optional<DelayLine> delay_;
  std::optional<Deadline> read_at_, write_at_;  // when each direction may go on, if time decides it
};

// Which connection of this address it is, from 1: a reconnected link meets other faults than the one before.
uint64_t ConnectionNumber(const std::string& url) {
  static std::mutex mutex;
  static auto* counts = new std::map<std::string, uint64_t>();
  std::lock_guard lock(mutex);
  return ++(*counts)[url];
}

std::string WithQuery(const std::string& url, const std::string& more) {
  if (more.empty()) return url;
  return url + (url.find('?') == std::string::npos ? "?" : "&") + more;
}

class ChaosListener final : public Listener {
 public:
  ChaosListener(std::unique_ptr<Listener> inner, const ChaosOptions& options, const std::string& query)
      : inner_(std::move(inner)), options_(options), url_("chaos+" + WithQuery(inner_->url(), query)) {}

  Result<std::unique_ptr<Stream>> Accept(Deadline deadline) override {
    auto stream = inner_->Accept(deadline);
    if (!stream.ok()) return stream;
    return WrapInChaos(std::move(*stream), options_, "accepted by " + url_);
  }
  std::string url() const override { return url_; }
  void Close() override { inner_->Close(); }

 private:
  const std::unique_ptr<Listener> inner_;
  const ChaosOptions options_;
  const std::string url_;
};

}  // namespace

Result<std::unique_ptr<Stream>> WrapInChaos(std::unique_ptr<Stream> inner, const ChaosOptions& options,
                                            const std::string& url) {
  Fd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer) return SystemError("timerfd_create", errno);
  const uint64_t seed = options.seed * 1'000'003 + ConnectionNumber(url);
  return std::unique_ptr<Stream>(std::make_unique<ChaosStream>(std::move(inner), options, seed, std::move(timer)));
}

std::unique_ptr<Listener> WrapListenerInChaos(std::unique_ptr<Listener> inner, const ChaosOptions& options,
                                              const std::string& query) {
  return std::make_unique<ChaosListener>(std::move(inner), options, query);
}

}  // namespace byteps_like
