#include "csrc/transport/links/link_reader.h"

#include <algorithm>
#include <cstring>

#include "csrc/kernels/kernels.h"

namespace byteps_like {
namespace {

constexpr size_t kBufferBytes = 64u << 10;
// Among large frames only the header is read ahead, so that payloads are not copied twice.
constexpr size_t kAheadOfLarge = 2 * kHeaderBytes;
constexpr uint32_t kLargePayload = 16u << 10;
// A payload is read straight into place while at least this much of it is missing. A shorter rest comes through the
// buffer, together with the bytes after it.
constexpr uint32_t kDirectBytes = 4u << 10;
// One read of payload at most: its checksum is then computed while it is still in the cache.
constexpr size_t kReadBytes = 256u << 10;

}  // namespace

LinkReader::LinkReader(Link& link, Stream& stream, LinkHandler& handler)
    : link_(link),
      stream_(stream),
      handler_(handler),
      checks_(!stream.authenticates()),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(kBufferBytes)),
      read_ahead_(kBufferBytes) {}

Result<bool> LinkReader::Receive(size_t budget, const bool& stop) {
  const uint64_t limit = traffic_.bytes.get() + budget;
  while (!stop) {
    if (traffic_.bytes.get() >= limit) return true;
    if (in_payload_) {
      auto landed = ReadPayload();
      if (!landed.ok()) return landed.status();
      if (*landed == 0) return false;
      if (landed_ < header_.length) continue;
      if (Status ended = EndFrame(); !ended.ok()) return ended;
    } else if (buffered() >= kHeaderBytes) {
      if (Status begun = BeginFrame(); !begun.ok()) return begun;
    } else {
      auto filled = Fill();
      if (!filled.ok()) return filled.status();
      if (*filled == 0) return false;
    }
  }
  return true;
}

// Moves the remaining bytes to the front of the buffer and reads more behind them.
Result<size_t> LinkReader::Fill() {
  std::memmove(buffer_.get(), buffer_.get() + begin_, buffered());
  end_ -= begin_;
  begin_ = 0;
  const size_t wanted = std::max(read_ahead_, end_ + kHeaderBytes);
  auto got = stream_.Read(buffer_.get() + end_, std::min(wanted, kBufferBytes) - end_);
  if (!got.ok()) return got;
  end_ += *got;
  traffic_.bytes.Add(*got);
  return got;
}

Result<size_t> LinkReader::ReadPayload() {
  const uint32_t missing = header_.length - landed_;
  if (buffered() > 0) return TakeBuffered();
  if (missing < kDirectBytes) {
    auto filled = Fill();
    if (!filled.ok() || *filled == 0) return filled;
    return TakeBuffered();
  }
  auto got = ReadDirectly(std::min<size_t>(missing, kReadBytes), missing <= kReadBytes ? read_ahead_ : 0);
  if (!got.ok() || *got == 0) return got;
  Landed(*got);
  return got;
}

// Payload into place, and if that is all of it, the next header along with it. The buffer is empty. Returns how much of
// the payload has come.
Result<size_t> LinkReader::ReadDirectly(size_t payload, size_t ahead) {
  auto got = stream_.ReadAhead(place_ + landed_, payload, std::span(buffer_.get(), ahead));
  if (!got.ok()) return got;
  traffic_.bytes.Add(*got);
  begin_ = 0;
  end_ = *got - std::min(*got, payload);
  return *got - end_;
}

size_t LinkReader::TakeBuffered() {
  const size_t bytes = std::min<size_t>(buffered(), header_.length - landed_);
  std::memcpy(place_ + landed_, buffer_.get() + begin_, bytes);
  begin_ += bytes;
  Landed(bytes);
  return bytes;
}

void LinkReader::Landed(size_t bytes) {
  if (checks_) crc_ = kernels::Crc32c(crc_, place_ + landed_, bytes);
  landed_ += static_cast<uint32_t>(bytes);
}

Status LinkReader::BeginFrame() {
  auto header = DecodeHeader(std::span<const std::byte, kHeaderBytes>(buffer_.get() + begin_, kHeaderBytes));
  if (!header.ok()) return Status(header.status().code(), link_.peer() + ": " + header.status().message());
  begin_ += kHeaderBytes;
  header_ = *header;
  landed_ = 0;
  crc_ = 0;
  read_ahead_ = header_.length >= kLargePayload ? kAheadOfLarge : kBufferBytes;
  if (header_.length == 0) {
    place_ = nullptr;
    return EndFrame();
  }
  place_ = handler_.PlaceFor(link_, header_);
  if (place_ == nullptr) {
    return Status(Code::kCorrupt, link_.peer() + ": a frame of type " + std::to_string(static_cast<int>(header_.type)) +
                                      " for key " + std::to_string(header_.key) + " was not expected");
  }
  if (place_ == kAnywhere) place_ = Scratch();
  in_payload_ = true;
  return {};
}

Status LinkReader::EndFrame() {
  in_payload_ = false;
  if (crc_ != header_.payload_crc) {
    return Status(Code::kCorrupt, link_.peer() + ": the payload of a frame for key " + std::to_string(header_.key) +
                                      ", round " + std::to_string(header_.round) + " failed its checksum");
  }
  saw_goodbye_ = header_.type == FrameType::kGoodbye;
  traffic_.frames.Add(1);
  traffic_.payload.Add(header_.length);
  handler_.OnFrame(link_, header_, place_);
  return {};
}

// For the payload at hand.
std::byte* LinkReader::Scratch() {
  const size_t lines = (header_.length + sizeof(CacheLine) - 1) / sizeof(CacheLine);
  if (scratch_.size() < lines) scratch_.resize(lines);
  return scratch_.data()->bytes;
}

bool LinkReader::Redirect(std::byte* place) {
  if (!in_payload_) return false;
  if (place == kAnywhere) place = Scratch();
  if (place == place_) return true;
  std::memmove(place, place_, landed_);
  place_ = place;
  return true;
}

}  // namespace byteps_like
