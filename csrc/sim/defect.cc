#include "csrc/sim/defect.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "csrc/kernels/kernels.h"
#include "csrc/wire/note.h"

namespace byteps_like::sim {
namespace {

constexpr uint64_t kFirstStoreKey = 1'000'000;
constexpr uint64_t kTooFar = 1024;  // bytes

bool IsStore(const Header& header) { return header.key >= kFirstStoreKey; }

void MoveOn(Header& header) { header.offset = std::min<uint64_t>(header.offset + kTooFar, header.total); }

size_t NoteIn(const Frame& frame) { return (frame.header.flags & kNoted) != 0 ? kNoteBytes : 0; }

// Elements of the payload, each added to itself.
void Double(Frame& frame) {
  const size_t note = NoteIn(frame);
  const size_t count = (frame.payload.size() - note) / SizeOf(frame.header.dtype);
  const std::vector<std::byte> copy(frame.payload.begin() + static_cast<ptrdiff_t>(note), frame.payload.end());
  kernels::Accumulate(Op::kSum, frame.header.dtype, frame.payload.data() + note, copy.data(), count);
}

// A server says that it has counted more than it has.
class ResumesTooFar final : public Defect {
  std::vector<Frame> Instead(const Wire&, bool, Frame frame) override {
    if (frame.header.type == FrameType::kResumed) MoveOn(frame.header);
    return {std::move(frame)};
  }
};

// A worker says that more of a result has landed than has.
class LandsTooFar final : public Defect {
  std::vector<Frame> Instead(const Wire&, bool, Frame frame) override {
    if (frame.header.type == FrameType::kResume) MoveOn(frame.header);
    return {std::move(frame)};
  }
};

// The first contribution on a link that has been resumed is in the sum twice.
class CountsTwice final : public Defect {
 public:
  explicit CountsTwice(bool store) : store_(store) {}

 private:
  std::vector<Frame> Instead(const Wire& wire, bool back, Frame frame) override {
    const bool is_array = (frame.header.flags & kEncoded) == 0 && !IsNarrowFloat(frame.header.dtype);
    const bool contributes = frame.header.type == FrameType::kPush && IsStore(frame.header) == store_ && is_array;
    if (back || !contributes || frame.payload.size() == NoteIn(frame)) return {std::move(frame)};
    auto& last = last_[{wire.dialled_by, frame.header.key}];
    if (last != 0 && last != wire.number) Double(frame);
    last = wire.number;
    return {std::move(frame)};
  }
  const bool store_;
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> last_;  // the wire by which a worker contributed to a key
};

// An answer gets lost on a link that has been resumed.
class LosesAnswer final : public Defect {
  std::vector<Frame> Instead(const Wire& wire, bool back, Frame frame) override {
    if (frame.header.type == FrameType::kResume) resumed_.insert(wire.number);
    const bool answers = frame.header.type == FrameType::kResult || frame.header.type == FrameType::kApplied;
    if (back && answers && resumed_.erase(wire.number) != 0) return {};
    return {std::move(frame)};
  }
  std::set<uint64_t> resumed_;
};

// What was sent for the version before is sent again, in part.
class SendsStale final : public Defect {
 public:
  explicit SendsStale(FrameType type) : type_(type) {}

 private:
  std::vector<Frame> Instead(const Wire& wire, bool, Frame frame) override {
    if (frame.header.type != type_ || frame.payload.empty()) return {std::move(frame)};
    auto& before = sent_[{wire.number, frame.header.key, frame.header.offset}];
    if (frame.header.offset != 0 && before.size() == frame.payload.size()) {
      frame.payload.swap(before);
    } else {
      before = frame.payload;
    }
    return {std::move(frame)};
  }
  const FrameType type_;
  std::map<std::tuple<uint64_t, uint64_t, uint64_t>, std::vector<std::byte>> sent_;
};

// Frames of one kind are never sent.
class Omits final : public Defect {
 public:
  explicit Omits(FrameType type) : type_(type) {}

 private:
  std::vector<Frame> Instead(const Wire&, bool, Frame frame) override {
    if (frame.header.type == type_) return {};
    return {std::move(frame)};
  }
  const FrameType type_;
};

class LosesTimers final : public Defect {
  bool loses_timers() const override { return true; }
};

struct Row {
  const char* name;
  std::unique_ptr<Defect> (*make)();
};

template <typename Kind, auto... kArguments>
std::unique_ptr<Defect> Make() {
  return std::make_unique<Kind>(kArguments...);
}

constexpr Row kRows[] = {
    {"resumes-too-far", Make<ResumesTooFar>},
    {"lands-too-far", Make<LandsTooFar>},
    {"counts-twice", Make<CountsTwice, false>},
    {"store-counts-twice", Make<CountsTwice, true>},
    {"loses-answer", Make<LosesAnswer>},
    {"stale-result", Make<SendsStale, FrameType::kResult>},
    {"torn-value", Make<SendsStale, FrameType::kValue>},
    {"never-resumes", Make<Omits, FrameType::kResume>},
    {"hides-losses", Make<Omits, FrameType::kContributors>},
    {"never-adopts", Make<Omits, FrameType::kAdopt>},
    {"gives-nothing", Make<Omits, FrameType::kGive>},
    {"confirms-nothing", Make<Omits, FrameType::kCopied>},
    {"names-nobody", Make<Omits, FrameType::kError>},
    {"loses-timers", Make<LosesTimers>},
};

}  // namespace

std::vector<std::string> DefectNames() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

std::unique_ptr<Defect> MakeDefect(std::string_view name) {
  for (const Row& row : kRows)
    if (name == row.name) return row.make();
  return nullptr;
}

void Append(const Frame& frame, std::vector<std::byte>& out) {
  Header header = frame.header;
  header.length = static_cast<uint32_t>(frame.payload.size());
  header.payload_crc = kernels::Crc32c(0, frame.payload.data(), frame.payload.size());
  const size_t begin = out.size();
  out.resize(begin + kHeaderBytes);
  EncodeHeader(header, std::span<std::byte, kHeaderBytes>(out.data() + begin, kHeaderBytes));
  out.insert(out.end(), frame.payload.begin(), frame.payload.end());
}

}  // namespace byteps_like::sim
