// The payload filters of a store key, one after the other, and the table of all that there are, beside all codecs. To
// add one, write a .cc in this folder, and a row in filters.cc.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compression/spec.h"
#include "server/memory.h"
#include "server/store/filters/filter.h"

namespace byteps_like {

// Rows, or a payload that stands for them.
struct Filtered {
  ShardBuffer buffer;
  size_t bytes = 0;
};

class Filters {
 public:
  // Of canonical texts with a space between each two; none at all, of an empty one. kInvalid.
  static Result<std::shared_ptr<const Filters>> Parse(std::string_view texts);

  Status Check(DType dtype) const;  // kInvalid if they can do nothing with rows of this type
  bool empty() const { return filters_.empty(); }
  // Whether a payload of `total` bytes may stand for rows of so many. Without filters it is those rows.
  bool Fits(DType dtype, size_t rows, size_t total) const;

  // As ranks do it. No rows are no bytes. kCapacity. kInvalid: what has come of it is more than `most` bytes.
  Result<Filtered> Encode(DType dtype, const Draw& draw, std::span<const std::byte> rows, size_t most,
                          ShardMemory& memory) const;
  // Whether values and rows are read through some, and what these make of them. Otherwise as Encode.
  bool of_values() const { return !of_values_.empty(); }
  Result<Filtered> EncodeValue(DType dtype, const Draw& draw, std::span<const std::byte> value, size_t most,
                               ShardMemory& memory) const;
  // kCorrupt: it doesn't stand for rows of so many bytes; what it takes to find that out is bounded by them. kCapacity.
  Result<Filtered> Decode(DType dtype, Filtered payload, size_t rows, ShardMemory& memory) const;

 private:
  using Chain = std::vector<const PayloadFilter*>;

  std::vector<size_t> MostOfEach(DType dtype, size_t rows) const;
  static Result<Filtered> EncodeBy(const Chain& chain, DType dtype, const Draw& draw, std::span<const std::byte> rows,
                                   size_t most, ShardMemory& memory);

  std::vector<FilterPointer> filters_;  // as rows go out
  Chain all_, of_values_;               // of these
};

// Filters of users, by their canonical texts; nullptr: there is none of that name. kInvalid. Any thread.
using FilterFinder = std::function<Result<FilterPointer>(const std::string& text)>;
void SetFilterFinder(FilterFinder finder);

// Each filter's file defines one of these. Kind's constructor takes the keys from the spec.
using FilterMaker = Result<FilterPointer> (*)(CodecSpec& spec);

template <typename Kind>
Result<FilterPointer> MadeFilter(CodecSpec& spec) {
  auto filter = std::make_unique<const Kind>(spec);
  const Status done = spec.Done();
  if (!done.ok()) return done;
  return FilterPointer(std::move(filter));
}

}  // namespace byteps_like
