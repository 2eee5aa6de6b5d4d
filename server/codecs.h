// The codecs that workers have announced to a shard, by their text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "compression/registry.h"

namespace byteps_like {

inline constexpr uint32_t kMaxCodecs = 1024;  // texts in a world, and numbers on a link

struct ServerCodec {
  std::string text;  // as announced: equal texts are the same codec, and the same object
  CodecPointer codec;
  bool two_way = false;  // error feedback for sums that the server encodes again
  uint32_t crc = 0;      // of the spec, as payload headers bear it
};

class ServerCodecs {
 public:
  // Forgets all: pointers that Find gave end here.
  void Reset(uint32_t world) {
    codecs_.clear();
    world_ = world;
  }
  // kInvalid says why rounds can't be summed with it; kCapacity: there are too many.
  Result<const ServerCodec*> Find(std::string_view text);

 private:
  Status Make(std::string_view text, ServerCodec& codec) const;

  uint32_t world_ = 0;
  std::unordered_map<std::string, std::unique_ptr<ServerCodec>> codecs_;
};

}  // namespace byteps_like
