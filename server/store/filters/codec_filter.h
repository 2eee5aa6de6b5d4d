// A codec of compression/ as a payload filter: it encodes contributions of single ranks, and servers decode each as it
// comes, whatever its trait.
//
// A payload: a number, from which all random numbers derive (8 bytes, little-endian); the codec's prelude, this
// sender's own, filled up with zeros to a multiple of 8 bytes; what the codec makes of the rows. Rows of float64 are
// rounded to float32 first. Twin of byteps_like/store/filters/codec_filter.py, to the last bit.
#pragma once

#include <string_view>

#include "server/store/filters/filter.h"

namespace byteps_like {

// Of a canonical text. nullptr: there is no codec of this name. kInvalid.
Result<FilterPointer> MakeCodecFilter(std::string_view text);

}  // namespace byteps_like
