// How often a link asks its stream for bytes: each time is a system call.
#include <doctest/doctest.h>

#include <array>

#include "csrc/kernels/kernels.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {
namespace {

// Has all of its bytes from the start, so no event follows, and counts the calls that ask for some. `most` are given at
// a time.
class CountedStream final : public Stream {
 public:
  CountedStream(Bytes bytes, size_t most, std::atomic<int>& reads)
      : bytes_(std::move(bytes)), most_(most), reads_(reads) {}

  Result<size_t> Read(std::byte* data, size_t size) override { return ReadAhead(data, size, {}); }
  Result<size_t> ReadAhead(std::byte* data, size_t size, std::span<std::byte> ahead) override {
    ++reads_;
    const size_t bytes = std::min({size + ahead.size(), most_, bytes_.size() - at_});
    const size_t first = std::min(bytes, size);
    std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(at_), first, data);
    std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(at_ + first), bytes - first, ahead.begin());
    at_ += bytes;
    return bytes;
  }
  Result<size_t> Write(std::span<const iovec>) override { return size_t{0}; }
  std::vector<int> fds() const override { return {}; }
  void Shutdown() override {}
  std::string peer() const override { return "counted"; }

 private:
  const Bytes bytes_;
  const size_t most_;
  std::atomic<int>& reads_;
  size_t at_ = 0;
};

void AppendFrame(Bytes& wire, Message message) {
  message.header.payload_crc = kernels::Crc32c(0, message.payload.data(), message.payload.size());
  std::array<std::byte, kHeaderBytes> header;
  EncodeHeader(message.header, header);
  wire.insert(wire.end(), header.begin(), header.end());
  wire.insert(wire.end(), message.payload.begin(), message.payload.end());
}

// The reads in which a link takes frames of these sizes, which it must do whole.
int ReadsFor(const std::vector<size_t>& sizes, size_t most = SIZE_MAX) {
  Bytes wire;
  for (size_t i = 0; i < sizes.size(); ++i) AppendFrame(wire, Push(i, Pattern(sizes[i], static_cast<uint32_t>(i))));
  std::atomic<int> reads{0};
  LoopThread thread;
  Peer peer(thread, std::make_unique<CountedStream>(std::move(wire), most, reads));
  REQUIRE(peer.WaitFrames(sizes.size()));
  thread.Do([] {});  // the read that finds nothing has been
  for (size_t i = 0; i < sizes.size(); ++i)
    CHECK(peer.received[i].payload == Pattern(sizes[i], static_cast<uint32_t>(i)));
  return reads;
}

}  // namespace

TEST_CASE("link: a large frame costs one read, and the next header comes along with it") {
  // One for the first header, and one that finds nothing.
  CHECK(ReadsFor(std::vector<size_t>(1, 120u << 10)) == 1 + 1 + 1);
  CHECK(ReadsFor(std::vector<size_t>(20, 120u << 10)) == 1 + 20 + 1);
  CHECK(ReadsFor({120u << 10, 64u << 10, 16u << 10, 120u << 10}) == 1 + 4 + 1);
  CHECK(ReadsFor({120u << 10, 0, 0, 120u << 10}) == 1 + 3 + 1);  // two headers come ahead, no more
}

TEST_CASE("link: small frames share reads") { CHECK(ReadsFor(std::vector<size_t>(200, 100)) == 1 + 1); }

TEST_CASE("link: frames that come in pieces are whole all the same") {
  for (const size_t most : {size_t{1000}, size_t{4097}, size_t{65'483}, size_t{120u << 10}})
    ReadsFor({120u << 10, 5000, 0, 64u << 10, 63, 4096, 300'000, 1, 16u << 10, 120u << 10}, most);
}

}  // namespace byteps_like::testing
