// What the libFuzzer targets share: what must hold, inputs that are rows of actions, seeds, and for those with links
// the other ends of them and frames that are valid one by one.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/base/fd.h"
#include "csrc/kernels/kernels.h"
#include "csrc/transport/memory/shared_buffer.h"
#include "csrc/transport/stream.h"
#include "csrc/wire/frame.h"

namespace byteps_like::fuzzing {

using Buffer = std::vector<std::byte>;

inline constexpr uint32_t kRanks = 3;  // of targets with links
inline constexpr uint32_t kMostPayload = 128u << 10;

inline void Require(bool holds, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (holds) return;
  std::fprintf(stderr, "%s:%d does not hold\n", file, line);
  std::abort();
}

// LLVMFuzzerInitialize of a target that writes its first inputs itself when called with --seeds=FOLDER.
inline int WriteSeedsIfAsked(int count, char** arguments, void (*write)(const std::string& folder)) {
  constexpr std::string_view kSeeds = "--seeds=";
  if (count != 2 || !std::string_view(arguments[1]).starts_with(kSeeds)) return 0;
  write(arguments[1] + kSeeds.size());
  std::exit(0);
}

inline void WriteFile(const std::string& path, const void* data, size_t size) {
  std::ofstream file(path, std::ios::binary);
  Require(static_cast<bool>(file.write(static_cast<const char*>(data), static_cast<std::streamsize>(size))));
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  uint32_t Byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  uint32_t Word() { return Byte() | Byte() << 8 | Byte() << 16 | Byte() << 24; }

 private:
  const uint8_t* data_;
  size_t left_;
};

// An input as it is written by hand: each action is a byte that names it and its rank, one byte more, and what it asks
// for.
class Play {
 public:
  explicit Play(std::vector<uint8_t> first = {}) : bytes_(std::move(first)) {}
  template <typename Action>
  Play& One(Action action, uint32_t rank, uint32_t second = 0, const std::vector<uint8_t>& more = {}) {
    bytes_.push_back(static_cast<uint8_t>(static_cast<uint32_t>(action) * kRanks + rank));
    bytes_.push_back(static_cast<uint8_t>(second));
    bytes_.insert(bytes_.end(), more.begin(), more.end());
    return *this;
  }
  template <typename Action>
  Play& All(Action action, uint32_t second = 0, const std::vector<uint8_t>& more = {}) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) One(action, rank, second, more);
    return *this;
  }
  void Write(const std::string& file) const { WriteFile(file, bytes_.data(), bytes_.size()); }

 private:
  std::vector<uint8_t> bytes_;
};

// The far end of a link, which the near end takes for a stream.
struct Wire {
  std::mutex mutex;
  std::condition_variable changed;
  Buffer in;
  size_t taken = 0;
  size_t withheld = 0;  // bytes at the end of `in` that are still on their way
  bool drained = false, closed = false, reads = true, full = false;
  Buffer out;
  std::deque<int> passed;  // descriptors; -1: this process has no more
  Fd event{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};

  ~Wire() {
    for (const int fd : passed)
      if (fd >= 0) ::close(fd);
  }
  void Ring() const {
    const uint64_t one = 1;
    Require(::write(event.get(), &one, sizeof(one)) == sizeof(one));
  }
  void Put(const Buffer& frame, size_t late = 0) {
    std::lock_guard lock(mutex);
    in.insert(in.end(), frame.begin(), frame.end());
    withheld = std::min(late, frame.size());
    drained = false;
    Ring();
  }
  // Calls on_frame(header, payload) for each whole frame that was written, and forgets it.
  template <typename OnFrame>
  void Take(OnFrame on_frame) {
    std::lock_guard lock(mutex);
    size_t at = 0;
    while (out.size() - at >= kHeaderBytes) {
      auto header = DecodeHeader(std::span<const std::byte, kHeaderBytes>(out.data() + at, kHeaderBytes));
      Require(header.ok());
      if (out.size() - at - kHeaderBytes < header->length) break;
      const std::byte* const payload = out.data() + at + kHeaderBytes;
      Require(header->payload_crc == kernels::Crc32c(0, payload, header->length));
      on_frame(*header, payload);
      at += kHeaderBytes + header->length;
    }
    out.erase(out.begin(), out.begin() + static_cast<ptrdiff_t>(at));
  }
};

class WireStream final : public Stream {
 public:
  explicit WireStream(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  ~WireStream() override { Shutdown(); }

  Result<size_t> Read(std::byte* data, size_t size) override {
    std::lock_guard lock(wire_->mutex);
    if (wire_->closed) return Status(Code::kClosed, "the end");
    const size_t bytes = std::min(size, wire_->in.size() - wire_->withheld - wire_->taken);
    if (bytes > 0) std::memcpy(data, wire_->in.data() + wire_->taken, bytes);
    wire_->taken += bytes;
    wire_->drained = bytes == 0;
    wire_->changed.notify_all();
    return bytes;
  }
  Result<size_t> Write(std::span<const iovec> pieces) override {
    std::lock_guard lock(wire_->mutex);
    if (wire_->closed) return Status(Code::kClosed, "the end");
    wire_->full = !wire_->reads;
    if (wire_->full) return size_t{0};
    size_t written = 0;
    for (const iovec& piece : pieces) {
      const auto* const from = static_cast<const std::byte*>(piece.iov_base);
      wire_->out.insert(wire_->out.end(), from, from + piece.iov_len);
      written += piece.iov_len;
    }
    return written;
  }
  std::vector<int> fds() const override { return {wire_->event.get()}; }
  void Shutdown() override {
    std::lock_guard lock(wire_->mutex);
    wire_->closed = true;
    wire_->changed.notify_all();
    wire_->Ring();
  }
  std::string peer() const override { return "fuzzer"; }
  bool shares_memory() const override { return true; }
  Status PassBuffer(const SharedBuffer&) override { return {}; }
  Result<std::shared_ptr<SharedBuffer>> TakeBuffer() override {
    std::lock_guard lock(wire_->mutex);
    if (wire_->passed.empty()) return Status(Code::kCorrupt, "nothing was passed");
    const int fd = wire_->passed.front();
    wire_->passed.pop_front();
    if (fd < 0) return Status(Code::kCapacity, "no descriptor is free");
    return SharedBuffer::Map(fd);
  }

 private:
  const std::shared_ptr<Wire> wire_;
};

// A frame with its checksums; nothing if no receiver would take its header for one.
inline Buffer FrameOf(Header header, const Buffer& payload) {
  if (header.length != payload.size()) return {};
  header.payload_crc = kernels::Crc32c(0, payload.data(), payload.size());
  Buffer frame(kHeaderBytes);
  const std::span<std::byte, kHeaderBytes> bytes(frame.data(), kHeaderBytes);
  EncodeHeader(header, bytes);
  if (!DecodeHeader(bytes).ok()) return {};
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

// One field changes.
inline void Mutate(Header& header, Input& input) {
  const uint32_t field = input.Byte(), change = input.Word();
  switch (field % 12) {
    case 0:
      header.type = static_cast<FrameType>(1 + change % (kFrameTypeCount - 1));
      break;
    case 1:
      header.dtype = static_cast<DType>(change % kDTypeCount);
      break;
    case 2:
      header.op = static_cast<Op>(change % kOpCount);
      break;
    case 3:
      header.flags ^= change % 16;
      break;
    case 4:
      header.rank ^= change % 4;
      break;
    case 5:
      header.key ^= change % 64;
      break;
    case 6:
      header.round ^= change;
      break;
    case 7:
      header.offset ^= change;
      break;
    case 8:
      header.length = std::min(header.length ^ change, kMostPayload);
      break;
    case 9:
      header.total ^= change;
      break;
    case 10:
      header.aux ^= change;
      break;
    default:
      header.root ^= change;
      break;
  }
}

}  // namespace byteps_like::fuzzing
