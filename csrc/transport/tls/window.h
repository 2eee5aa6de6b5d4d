// A buffer whose bytes are appended at the end and taken from the beginning.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace byteps_like::tls {

class Window {
 public:
  size_t size() const { return end_ - begin_; }
  const std::byte* data() const { return bytes_.data() + begin_; }

  // Room for at least `least` more, all that is there; Filled says how many came.
  std::span<std::byte> Room(size_t least) {
    if (size() == 0) begin_ = end_ = 0;
    if (bytes_.size() - end_ < least && begin_ > 0) {
      std::memmove(bytes_.data(), data(), size());
      end_ -= begin_;
      begin_ = 0;
    }
    if (bytes_.size() - end_ < least) bytes_.resize(end_ + least);
    return std::span(bytes_).subspan(end_);
  }
  void Filled(size_t bytes) { end_ += bytes; }

  void Append(const void* from, size_t bytes) {
    std::memcpy(Room(bytes).data(), from, bytes);
    Filled(bytes);
  }
  void Drop(size_t bytes) { begin_ += bytes; }

 private:
  std::vector<std::byte> bytes_;
  size_t begin_ = 0, end_ = 0;
};

}  // namespace byteps_like::tls
