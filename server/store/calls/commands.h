// The commands of ours, each made by one of these.
#pragma once

#include "server/store/calls/command.h"

namespace byteps_like {

CommandPointer MakeDot();    // dot = x · y, in fp64
CommandPointer MakeAxpy();   // y += a·x
CommandPointer MakeScale();  // x *= a
CommandPointer MakeCopy();   // y = x

}  // namespace byteps_like
