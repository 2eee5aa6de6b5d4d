// Work in portions, each of which counts once, whoever does it: a board, an int64 value, says how far a pass over all
// of them is. Twin of byteps_like/store/portions.py, which has its layout.
#include <cmath>
#include <cstring>
#include <string>

#include "server/store/calls/commands.h"

namespace byteps_like {
namespace {

enum Field : size_t { kPass, kNext, kFinished, kPortions };

// What is known of a portion: 0 nobody has it; else who has had it last, how often it was given, whether it counts.
constexpr int64_t kTakerMask = 0xFFFFFFFF, kGivenOnce = int64_t{1} << 32, kClaimed = int64_t{1} << 40;
constexpr int64_t kTwice = 2 * kGivenOnce;

class Board {
 public:
  Board(int64_t* fields, size_t count) : fields_(fields), count_(count - kPortions) {}

  int64_t pass() const { return fields_[kPass]; }
  bool Has(int64_t portion) const { return portion >= 0 && portion < static_cast<int64_t>(count_); }

  void Begin(int64_t pass) {
    std::memset(fields_, 0, (kPortions + count_) * sizeof *fields_);
    fields_[kPass] = pass;
  }
  // The next portion that nobody has; else, with `again`, the one that was given first of those that are neither done
  // nor given twice, nor this rank's; -1: there is none.
  int64_t Take(int64_t rank, bool again) {
    if (Has(fields_[kNext])) return Give(fields_[kNext]++, rank);
    for (size_t i = 0; again && i < count_; ++i) {
      const int64_t known = fields_[kPortions + i];
      if (known < kTwice && (known & kTakerMask) != rank) return Give(static_cast<int64_t>(i), rank);
    }
    return -1;
  }
  // Whether this is the first.
  bool Claim(int64_t portion) {
    int64_t& known = fields_[kPortions + static_cast<size_t>(portion)];
    if ((known & kClaimed) != 0) return false;
    known |= kClaimed;
    return true;
  }
  void Finish() { ++fields_[kFinished]; }

 private:
  int64_t Give(int64_t portion, int64_t rank) {
    int64_t& known = fields_[kPortions + static_cast<size_t>(portion)];
    known = (known & ~kTakerMask) + kGivenOnce + rank;
    return portion;
  }

  int64_t* const fields_;
  const size_t count_;
};

// What changes the board of one pass, unless that is over by now.
class OnBoard : public Command {
 public:
  using Act = void (*)(Board& board, std::span<const int64_t> scalars, Figures& figures);
  OnBoard(std::vector<std::string> scalars, Act act) : scalars_(std::move(scalars)), act_(act) {}

  Status Check(size_t tensors, DType dtype, const Figures& scalars) const override {
    bool fits = tensors == 1 && dtype == DType::kInt64 && scalars.size() == scalars_.size();
    for (size_t i = 0; fits && i < scalars.size(); ++i)
      fits = scalars[i].first == scalars_[i] && scalars[i].second >= 0 && scalars[i].second <= kTakerMask &&
             scalars[i].second == std::floor(scalars[i].second);
    return fits ? Status() : Status(Code::kInvalid, "this function is for boards of portions");
  }
  bool Writes(size_t) const override { return true; }

  Status Run(const CommandRun& run) const override {
    if (run.count < kPortions) return Status(Code::kInvalid, "this value is no board of portions");
    std::memcpy(run.results[0], run.values[0], run.count * sizeof(int64_t));
    std::vector<int64_t> scalars;
    for (const auto& [name, value] : run.scalars) scalars.push_back(static_cast<int64_t>(value));
    Board board(reinterpret_cast<int64_t*>(run.results[0]), run.count);
    if (scalars.size() > 1 && !board.Has(scalars[1]) && scalars_[1] == "portion")
      return Status(Code::kInvalid, "there is no portion " + std::to_string(scalars[1]));
    act_(board, scalars, run.figures);
    return {};
  }

 private:
  const std::vector<std::string> scalars_;
  const Act act_;
};

}  // namespace

CommandPointer MakeBeginPass() {
  return std::make_unique<const OnBoard>(std::vector<std::string>{"of_pass"},
                                         [](Board& board, std::span<const int64_t> scalars, Figures&) {
                                           if (board.pass() < scalars[0]) board.Begin(scalars[0]);
                                         });
}

CommandPointer MakeTakePortion() {
  return std::make_unique<const OnBoard>(
      std::vector<std::string>{"of_pass", "rank", "again"},
      [](Board& board, std::span<const int64_t> scalars, Figures& figures) {
        const bool is_on = board.pass() == scalars[0];
        AddTo(figures, "portion", is_on ? static_cast<double>(board.Take(scalars[1] + 1, scalars[2] != 0)) : -1);
      });
}

CommandPointer MakeClaimPortion() {
  return std::make_unique<const OnBoard>(std::vector<std::string>{"of_pass", "portion"},
                                         [](Board& board, std::span<const int64_t> scalars, Figures& figures) {
                                           AddTo(figures, "counts",
                                                 board.pass() == scalars[0] && board.Claim(scalars[1]) ? 1 : 0);
                                         });
}

CommandPointer MakeFinishPortion() {
  return std::make_unique<const OnBoard>(std::vector<std::string>{"of_pass", "portion"},
                                         [](Board& board, std::span<const int64_t> scalars, Figures&) {
                                           if (board.pass() == scalars[0]) board.Finish();
                                         });
}

}  // namespace byteps_like
