// A copy of a partition's newest result, in jobs that go on when a server has died: some ranks may lack it then. All of
// them have it once anything of the next result has come, since that has a contribution of each in it; from then on the
// next one takes its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "csrc/wire/frame.h"

namespace byteps_like {

class HeldResult {
 public:
  explicit HeldResult(size_t most) { Room(most); }  // bytes that a result usually has at most

  std::byte* Room(size_t bytes);  // for the next result; the one before is there until it is written to
  std::byte* data() { return data_.get(); }
  void Drop() { whole_ = false; }
  void Hold(const Header& result) {  // it is there: round, form and `total` as in its RESULT frames
    result_ = result;
    whole_ = true;
  }
  bool Has(uint32_t round) const { return whole_ && result_.round == round; }
  const Header& result() const { return result_; }

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t bytes_ = 0;
  bool whole_ = false;
  Header result_;
};

}  // namespace byteps_like
