#include "csrc/sim/frames.h"

#include <algorithm>

#include "csrc/transport/entrance/handshake_wire.h"

namespace byteps_like::sim {

FrameScanner::FrameScanner(bool back)
    : handshake_(back ? 2 * handshake::kAnswerBytes : handshake::kHelloBytes + handshake::kMacBytes) {}

void FrameScanner::Feed(std::span<const std::byte> bytes, const OnBytes& on_bytes, const OnFrame& on_frame) {
  const size_t first = std::min(handshake_, bytes.size());
  if (first > 0) on_bytes(bytes.first(first));
  handshake_ -= first;
  held_.insert(held_.end(), bytes.begin() + static_cast<ptrdiff_t>(first), bytes.end());
  while (TakeFrame(on_bytes, on_frame)) {
  }
}

// A peer that is refused gets other bytes, and no frames.
bool FrameScanner::TakeFrame(const OnBytes& on_bytes, const OnFrame& on_frame) {
  if (held_.size() < kHeaderBytes) return false;
  auto header = DecodeHeader(std::span<const std::byte, kHeaderBytes>(held_.data(), kHeaderBytes));
  if (!header.ok() || garbled_) {
    garbled_ = true;
    on_bytes(held_);
    held_.clear();
    return false;
  }
  const size_t size = kHeaderBytes + header->length;
  if (held_.size() < size) return false;
  on_frame(*header, std::span(held_).first(size));
  held_.erase(held_.begin(), held_.begin() + static_cast<ptrdiff_t>(size));
  return true;
}

}  // namespace byteps_like::sim
