// The loops of the codecs that send a bit, the sign, of each element.
#pragma once

#include "compression/loops.h"
#include "compression/loops/onebit.h"

namespace byteps_like {

BYTEPS_LIKE_DECLARE_LOOPS(OnebitLoops, kOnebit)

}  // namespace byteps_like
