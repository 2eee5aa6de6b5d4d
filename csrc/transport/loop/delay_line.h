// Bytes that wait until their time has come, in a ring of fixed size.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "csrc/transport/stream.h"

namespace byteps_like {

class DelayLine {
 public:
  explicit DelayLine(std::chrono::nanoseconds delay);

  // Takes the bytes that `stream` has now, as far as there is room. Its end or failure comes out after its last byte.
  void FillFrom(Stream& stream, Deadline now);
  // Reads what is due: bytes, the stream's end, or 0 (see wake_at()).
  Result<size_t> Read(std::byte* data, size_t size, Deadline now);
  std::optional<Deadline> wake_at() const;

 private:
  static constexpr size_t kBytes = 4u << 20;

  struct Batch {
    size_t bytes;
    Deadline due;
  };

  const std::chrono::nanoseconds delay_;
  const std::unique_ptr<std::byte[]> bytes_;
  uint64_t head_ = 0, tail_ = 0;  // ever put in, ever taken out
  std::deque<Batch> batches_;
  Status end_;
};

}  // namespace byteps_like
