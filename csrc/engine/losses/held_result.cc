#include "csrc/engine/losses/held_result.h"

#include <memory>

namespace byteps_like {

std::byte* HeldResult::Room(size_t bytes) {
  if (bytes > bytes_) {
    whole_ = false;
    data_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    bytes_ = bytes;
  }
  return data_.get();
}

}  // namespace byteps_like
