// Which calls of a lane are over, compactly: calls end out of order, but never far apart.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace byteps_like {

class LaneHistory {
 public:
  bool Over(uint32_t call) const {
    const auto next = ranges_.upper_bound(call);
    return next != ranges_.begin() && call < std::prev(next)->second;
  }

  void Add(uint32_t call) {
    auto at = ranges_.upper_bound(call);
    uint64_t begin = call, end = uint64_t{call} + 1;
    if (at != ranges_.begin() && std::prev(at)->second >= begin) {
      const auto before = std::prev(at);
      begin = before->first;
      end = std::max(end, before->second);
      ranges_.erase(before);
    }
    if (at != ranges_.end() && at->first == end) {
      end = at->second;
      ranges_.erase(at);
    }
    ranges_[begin] = end;
    // Numbers that this rank never uses here (calls by another way) leave gaps: the oldest are closed.
    if (ranges_.size() > kMostRanges) {
      const auto first = ranges_.begin(), second = std::next(first);
      first->second = second->second;
      ranges_.erase(second);
    }
  }

  size_t ranges() const { return ranges_.size(); }

 private:
  static constexpr size_t kMostRanges = 256;
  std::map<uint64_t, uint64_t> ranges_;  // begin -> end
};

}  // namespace byteps_like
