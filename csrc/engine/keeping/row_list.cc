#include "csrc/engine/keeping/row_list.h"

#include "csrc/kernels/kernels.h"

namespace byteps_like {

RowList::RowList(std::span<const uint64_t> ascending)
    : ids(ascending.begin(), ascending.end()), crc(kernels::Crc32c(0, ids.data(), bytes())) {}

}  // namespace byteps_like
