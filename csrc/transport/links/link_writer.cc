#include "csrc/transport/links/link_writer.h"

#include <cstring>

#include "csrc/kernels/kernels.h"

namespace byteps_like {
namespace {

constexpr size_t kBatchBytes = 64u << 10;

size_t SizeOf(const Header& header) { return kHeaderBytes + header.length; }

// The part of [data, data + size) after the first `skip` bytes. Reduces `skip` by the bytes that were skipped.
iovec Rest(const std::byte* data, size_t size, size_t* skip) {
  const size_t skipped = std::min(size, *skip);
  *skip -= skipped;
  return iovec{const_cast<std::byte*>(data) + skipped, size - skipped};
}

}  // namespace

Result<bool> LinkWriter::Send(size_t budget, const bool& stop) {
  const uint64_t limit = traffic_.bytes.get() + budget;
  copied_ = 0;
  blocked_ = false;
  while (!stop) {
    if (first_ == count_) Gather(stop);
    if (first_ == count_ || stop) return false;
    std::array<iovec, 2 * kBatch> pieces;
    const size_t count = Pieces(pieces);
    auto written = stream_.Write(std::span(pieces.data(), count));
    if (!written.ok()) return written.status();
    blocked_ = *written == 0;
    if (blocked_) return false;
    traffic_.bytes.Add(*written);
    Sent(*written);
    if (traffic_.bytes.get() + copied_ >= limit) return true;
  }
  return false;
}

// A large frame goes alone: the next one is decided when it is gone.
void LinkWriter::Gather(const bool& stop) {
  first_ = count_ = 0;
  for (size_t bytes = 0; count_ < kBatch && bytes < kBatchBytes && !stop;) {
    Pending& pending = batch_[count_];
    pending.frame = Outgoing{};
    pending.kept.reset();
    if (!handler_.NextFrame(link_, pending.frame)) return;
    Header& header = pending.frame.header;
    header.payload_crc = stream_.authenticates() ? 0 : kernels::Crc32c(0, pending.frame.payload, header.length);
    EncodeHeader(header, pending.header);
    bytes += SizeOf(header) + pending.frame.copied;
    copied_ += pending.frame.copied;
    ++count_;
  }
}

void LinkWriter::Keep() {
  for (size_t i = first_; i < count_; ++i) {
    Pending& pending = batch_[i];
    const size_t length = pending.frame.header.length;
    if (length == 0 || pending.kept) continue;
    pending.kept = std::make_unique_for_overwrite<std::byte[]>(length);
    std::memcpy(pending.kept.get(), pending.frame.payload, length);
    pending.frame.payload = pending.kept.get();
  }
}

size_t LinkWriter::Pieces(std::array<iovec, 2 * kBatch>& pieces) {
  size_t count = 0;
  size_t skip = sent_of_first_;
  for (size_t i = first_; i < count_; ++i) {
    const Pending& pending = batch_[i];
    const iovec parts[] = {Rest(pending.header.data(), kHeaderBytes, &skip),
                           Rest(pending.frame.payload, pending.frame.header.length, &skip)};
    for (const iovec& part : parts) {
      if (part.iov_len > 0) pieces[count++] = part;
    }
  }
  return count;
}

void LinkWriter::Sent(size_t bytes) {
  sent_of_first_ += bytes;
  while (first_ < count_ && sent_of_first_ >= SizeOf(batch_[first_].frame.header)) {
    const Header header = batch_[first_].frame.header;
    sent_of_first_ -= SizeOf(header);
    ++first_;
    traffic_.frames.Add(1);
    traffic_.payload.Add(header.length);
    sent_goodbye_ = header.type == FrameType::kGoodbye;
    handler_.OnSent(link_, header);
  }
}

}  // namespace byteps_like
