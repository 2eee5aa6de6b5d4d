// All codecs by name. A new one is a file pair (compression/NAME.cc and byteps_like/compression/NAME.py; its loops,
// where speed matters, in compression/loops/NAME.cc) and a row in registry.cc and in
// byteps_like/compression/registry.py.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "compression/spec.h"
#include "csrc/codec/codec.h"

namespace byteps_like {

using CodecPointer = std::shared_ptr<const Codec>;

// The codec that `spec` (canonical: all keys) describes, for rounds of `world` contributions (1 to 65535). kInvalid
// says what is wrong with it.
Result<CodecPointer> MakeCodec(std::string_view spec, uint32_t world);

std::vector<std::string> CodecNames();

// Each codec's file defines one of these; it takes its keys from the spec and ends with `spec.Done()`.
using CodecMaker = Result<CodecPointer> (*)(CodecSpec& spec, uint32_t world);

}  // namespace byteps_like
