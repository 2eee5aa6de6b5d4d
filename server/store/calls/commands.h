// The commands of ours, each made by one of these.
#pragma once

#include "server/store/calls/command.h"

namespace byteps_like {

CommandPointer MakeDot();    // dot = x · y, in fp64
CommandPointer MakeAxpy();   // y += a·x
CommandPointer MakeScale();  // x *= a
CommandPointer MakeCopy();   // y = x
CommandPointer MakeMerge();  // u -= x, then x += a·u

// Of a board of portions (portions.cc).
CommandPointer MakeBeginPass();
CommandPointer MakeTakePortion();   // portion: which, or -1
CommandPointer MakeClaimPortion();  // counts: 1 if this is the first
CommandPointer MakeFinishPortion();

}  // namespace byteps_like
