// All of a store key as it is now, for a copy of it.
#pragma once

#include "server/memory.h"
#include "server/store/chain/record.h"
#include "server/store/store_key.h"

namespace byteps_like {

// `about`: its terms, its place in the chain, and who has forgotten it; the rest is found here. The value is shared,
// states and rows are copied. kCapacity.
Result<CopyRecord> SnapshotOf(const StoreKey& key, WholeCopy about, ShardMemory& memory);

}  // namespace byteps_like
