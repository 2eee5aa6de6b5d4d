// libFuzzer target (`make fuzz`): a server's shard that keeps values, with the links of three ranks, whose frames are
// valid one by one, and come in any order: keys opened and forgotten, first values, contributions whole and in
// segments, in blocks, repeated, unconfirmed and too early, pulls of any part, calls that leave values as they are, new
// links, ranks that stop reading or leave, and any of these with one field changed.
//
// An input's first byte chooses the policy and the update; then comes a row of actions of a few bytes each.
// `store_fuzz --seeds=FOLDER` writes some. What must hold whatever they are: no error of memory (values are read late);
// no more memory than the limit; each version has one value, the sum of whole contributions, to which later ones only
// add; what became of a contribution is told of whole ones, and always the same; failures that say why, once.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "csrc/wire/bytes.h"
#include "csrc/wire/note.h"
#include "csrc/wire/saving.h"
#include "server/store/filters/filters.h"
#include "tests/fuzz/shard_links.h"

namespace byteps_like {
namespace {

using namespace fuzzing;  // NOLINT

constexpr uint32_t kKeys = 2;
constexpr uint32_t kElements[kKeys] = {8, 9000};       // the last comes in several segments, and goes so
constexpr uint32_t kBegunBy[kKeys] = {0, 0xFFFFFFFF};  // rank 0; nobody: zeros
constexpr uint32_t kClocks = 20;                       // of a rank: each contribution has a bit of its own
constexpr uint64_t kLimit = 2u << 20;
constexpr uint32_t kInitialAsked = 1;  // aux of kOpened

// Whose values are whole numbers that are added up: these can be checked. Of the others only the answers.
struct Rules {
  DType dtype;
  const char* text;
};
constexpr Rules kRules[] = {
    {DType::kInt64, "policy asp\ncombine sum:age=none,damp=none\nupdate add"},
    {DType::kInt64, "policy bsp\ncombine sum:age=none,damp=none\nupdate add"},
    {DType::kInt64, "policy ssp:s=1\ncombine sum:age=none,damp=none\nupdate add"},
    {DType::kInt64, "policy dssp:hi=2,lo=0\ncombine sum:age=none,damp=none\nupdate add"},
    {DType::kInt64, "policy k_of_n:grace=0,k=2,late=next,max_age=inf\ncombine sum:age=none,damp=none\nupdate add"},
    {DType::kInt64, "policy k_of_n:grace=0,k=1,late=drop,max_age=1\ncombine sum:age=none,damp=none\nupdate add"},
    {DType::kFloat32, "policy bsp\ncombine mean:age=none,damp=none\nupdate none"},
    {DType::kFloat32,
     "policy asp\ncombine sum:age=none,damp=inverse\nupdate momentum:lr=0.1,momentum=0.9,weight_decay=0.3"},
    {DType::kFloat64,
     "policy ssp:s=0\ncombine mean:age=inverse,damp=none\nupdate "
     "adam:beta1=0.9,beta2=0.999,eps=1e-08,lr=0.1,weight_decay=0.3"},
    {DType::kInt64, "policy ssp:s=1\ncombine sum:age=none,damp=none\nupdate add\nfilters zlib:level=1"},
    {DType::kFloat32,
     "policy asp\ncombine mean:age=none,damp=none\nupdate add\nfilters int:bits=4,block=256,rounding=stochastic,scale="
     "shared,seed=0"},
    {DType::kFloat32, "policy asp\ncombine sum:age=none,damp=none\nupdate add\nfilters factors:columns=4 zlib:level=1"},
    {DType::kFloat64, "policy bsp\ncombine sum:age=none,damp=none\nupdate add\nfilters coo zlib:level=6"},
    {DType::kFloat32,
     "policy bsp\ncombine sum:age=none,damp=none\nupdate add\nfilters thc:bits=4,clamp=32,seed=0,table=auto"},
    {DType::kInt64, "policy k_of_n:grace=60,k=2,late=next,max_age=inf\ncombine sum:age=none,damp=none\nupdate add"},
};

// What a spec's line of filters means; none of a spec without.
std::shared_ptr<const Filters> FiltersOf(std::string_view text) {
  constexpr std::string_view kLine = "\nfilters ";
  const size_t begin = text.find(kLine);
  return *Filters::Parse(begin == text.npos ? "" : text.substr(begin + kLine.size()));
}

enum Action : uint32_t {
  kOpen,
  kBegin,
  kPushNext,
  kPushAll,
  kPushLoud,
  kRepeat,
  kTooEarly,
  kReadValue,
  kResumePush,
  kForgetKey,
  kNewLink,
  kStopReading,
  kReadOn,
  kLeave,
  kFail,
  kCallOnValues,
  kTick,
  kCutKeys,
  kSaveOrRestore,
  kPushBlock,
  kActions
};

int64_t First(uint32_t key, uint64_t element) {
  return kBegunBy[key] == 0 ? static_cast<int64_t>(element) * 1'000'003 : 0;
}
int64_t BitOf(uint32_t rank, uint32_t clock) { return int64_t{1} << (rank * kClocks + clock); }

class World : ShardLinks {
 public:
  explicit World(uint32_t rules)
      : ShardLinks(kLimit), rules_(kRules[rules % std::size(kRules)]), filters_(FiltersOf(rules_.text)) {
    exact_.fill(rules_.dtype == DType::kInt64);
  }

  void Act(Input& input) {
    const uint32_t first = input.Byte(), second = input.Byte();
    const uint32_t rank = first % kRanks, key = second % kKeys;
    mutates_ = (second & 0x80) != 0;
    Do(static_cast<Action>(first / kRanks % kActions), rank, key, input);
    Settle();
  }

 private:
  struct Progress {
    bool opened = false;  // it has a value
    bool begins = false;  // this rank is to set it
    uint32_t clock = 0;   // contributions that were pushed whole; fewer where an answer was read late
    uint32_t most = 0;    // and as many as there ever were
    uint32_t said = 0;    // bytes of the next one, or of the first value
    uint32_t heard = 0;   // contributions whose final answers have come, without a gap
    std::map<uint32_t, std::pair<uint32_t, uint64_t>> final;  // answers, by clock
  };
  struct Known {
    std::map<uint32_t, int64_t> sums;  // by version
    int64_t whole = 0;                 // the bits of what was pushed
    int64_t idle = 0;                  // and of ticks
  };

  uint32_t BytesOf(uint32_t key) const { return kElements[key] * static_cast<uint32_t>(SizeOf(rules_.dtype)); }

  void Do(Action action, uint32_t rank, uint32_t key, Input& input) {
    Progress& progress = ranks_[rank][key];
    if (cuts_[rank] && Contributes(action)) return;
    switch (action) {
      case kOpen:
        return Open(rank, key, input);
      case kBegin:
        if (!progress.begins) return;
        return Push(rank, key, kInitial, 0, input);
      case kPushNext:
        if (!progress.opened) return;
        return Push(rank, key, kLastBlock, (1 + input.Byte()) * 256, input);
      case kPushAll:
      case kPushLoud:
        if (!progress.opened) return;
        return Push(rank, key, kLastBlock, 0, input, action == kPushAll);
      case kPushBlock:
        if (!progress.opened) return;
        return Push(rank, key, kPartial, 0, input);
      case kRepeat:
        if (progress.clock == progress.heard) return;
        return Repeat(rank, key, progress.heard + input.Byte() % (progress.clock - progress.heard), input);
      case kTooEarly:
        return Repeat(rank, key, progress.clock + 1 + input.Byte() % 3, input);
      case kReadValue:
        if (!progress.opened) return;
        return Pull(rank, key, input);
      case kResumePush: {
        Header resume = HeaderFor(FrameType::kResume, rank, key);
        resume.round = progress.clock;
        return Send(rank, resume, input);
      }
      case kForgetKey:
        exact_[key] = false;  // it may begin anew
        return Send(rank, HeaderFor(FrameType::kForget, rank, key), input);
      case kNewLink:
        announced_[rank] = cuts_[rank] = false;
        return Connect(rank);
      case kStopReading:
      case kReadOn:
        return Read(rank, action == kReadOn);
      case kLeave:
        return Send(rank, HeaderOf(FrameType::kGoodbye, rank), input);
      case kFail: {
        Header error = HeaderOf(FrameType::kError, rank);
        error.aux = input.Word();
        return Send(rank, error, input);
      }
      case kCallOnValues:
        return Call(rank, key, input);
      case kTick:
        if (!progress.opened || progress.said != 0) return;
        return Tick(rank, key, input);
      case kCutKeys:
        if (!progress.opened || progress.said != 0) return;
        return Cut(rank, key, input);
      case kSaveOrRestore:
        if (!progress.opened) return;
        return SaveOrRestore(rank, key, input);
      case kActions:
        return;
    }
  }

  // What a rank that has come to a cut must not do.
  static bool Contributes(Action action) {
    return action == kPushNext || action == kPushAll || action == kPushLoud || action == kPushBlock ||
           action == kRepeat || action == kTooEarly || action == kTick || action == kCallOnValues ||
           action == kSaveOrRestore;
  }

  template <typename T>
  static void Put(Buffer& payload, T value) {
    std::byte bytes[sizeof(T)];
    PutLittle(bytes, value);
    payload.insert(payload.end(), bytes, bytes + sizeof bytes);
  }

  // Through one key or more.
  void Cut(uint32_t rank, uint32_t key, Input& input) {
    const uint32_t how = input.Byte();
    Buffer payload;
    Put(payload, 1 + how % 2);
    Put(payload, uint64_t{key});
    if (how % 2 != 0) Put(payload, uint64_t{how / 2 % (kKeys + 1)});
    payload.resize(payload.size() + how / 8);
    cuts_[rank] = true;
    Ask(FrameType::kCut, rank, key, payload, input);
  }

  // One of the requests about what the key keeps, with fields that make sense in half of the cases.
  void SaveOrRestore(uint32_t rank, uint32_t key, Input& input) {
    const uint32_t what = input.Byte(), how = input.Byte();
    Buffer payload;
    Put(payload, static_cast<uint8_t>(what % 9));
    Put(payload, uint64_t{key});
    const auto request = static_cast<StateRequest>(what % 9);
    if (request == StateRequest::kCommit) {
      Put(payload, uint64_t{how});
    } else if (request == StateRequest::kRead || request == StateRequest::kWrite) {
      Put(payload, static_cast<uint8_t>(how % 3));
      Put(payload, uint64_t{how / 4} * 8);
      Put(payload, uint64_t{how % 4} * 8);
    }
    if (what >= 128) payload.resize(payload.size() + how / 8);
    if (request != StateRequest::kRead && request != StateRequest::kHeads) exact_[key] = false;
    Ask(FrameType::kState, rank, key, payload, input);
  }

  void Ask(FrameType type, uint32_t rank, uint32_t key, Buffer& payload, Input& input) {
    Header ask = HeaderFor(type, rank, key);
    ask.total = 0;
    ask.round = asked_[rank];
    ask.length = static_cast<uint32_t>(payload.size());
    if (mutates_) Change(ask, input);
    payload.resize(ask.length);
    PutFrame(rank, ask, payload);
  }

  // The keys are two partitions of tensor 0. What is asked again is answered as before.
  void Call(uint32_t rank, uint32_t key, Input& input) {
    static const std::string kCalls[] = {
        std::string("\x02\x00\x03"
                    "dot"
                    "\0\0\0\0"
                    "\0\0\0\0",
                    14),
        std::string("\x02\x00\x04"
                    "copy"
                    "\0\0\0\0"
                    "\0\0\0\0",
                    15),
        std::string("\x01\x01\x05"
                    "scale"
                    "\0\0\0\0"
                    "\x01"
                    "a"
                    "\0\0\0\0\0\0\xf0\x3f",
                    22),
        std::string("\x01\x00\x05"
                    "other"
                    "\0\0\0\0",
                    12),
        std::string("\x01\x01\x05"
                    "scale",
                    8),
    };
    const uint32_t how = input.Byte();
    const std::string& text = kCalls[how % std::size(kCalls)];
    Header call = HeaderFor(FrameType::kCall, rank, key);
    call.round = called_[rank];
    call.aux = 1 + how / 64 % kKeys;
    call.total = kKeys;
    call.length = static_cast<uint32_t>(text.size());
    if (mutates_) Change(call, input);
    Buffer payload(call.length);
    std::ranges::transform(text.substr(0, payload.size()), payload.begin(), [](char one) { return std::byte(one); });
    PutFrame(rank, call, payload);
  }

  Header HeaderFor(FrameType type, uint32_t rank, uint32_t key) const {
    Header header = HeaderOf(type, rank);
    header.dtype = rules_.dtype;
    header.key = key;
    header.total = BytesOf(key);
    return header;
  }

  void Open(uint32_t rank, uint32_t key, Input& input) {
    Header spec = HeaderFor(FrameType::kSpec, rank, key);
    spec.offset = kElements[key] / 2;  // two rows
    spec.root = kBegunBy[key];
    const std::string text = announced_[rank] ? "" : rules_.text;
    announced_[rank] = true;
    spec.length = static_cast<uint32_t>(text.size());
    if (mutates_) Change(spec, input);
    Buffer payload(spec.length);
    std::ranges::transform(text.substr(0, payload.size()), payload.begin(), [](char one) { return std::byte(one); });
    PutFrame(rank, spec, payload);
  }

  // The next bytes of a contribution, or all of a first value.
  void Push(uint32_t rank, uint32_t key, uint32_t bits, uint32_t most, Input& input, bool silent = true) {
    Progress& progress = ranks_[rank][key];
    if (progress.clock == kClocks) return;
    Header push = HeaderFor(FrameType::kPush, rank, key);
    push.round = progress.clock;
    push.total = TotalOf(push, bits);
    push.offset = (bits & kInitial) != 0 ? 0 : progress.said;
    push.length = push.total - static_cast<uint32_t>(push.offset);
    if (most != 0) push.length = std::min(push.length, most);
    progress.said = static_cast<uint32_t>(push.offset) + push.length;
    push.flags = static_cast<uint8_t>((push.offset == 0 ? kNoted : 0) | (silent ? kSilent : 0));
    push.aux = progress.heard;
    if (push.offset == 0) push.length += kNoteBytes;
    if (progress.said == push.total) {
      progress.said = 0;
      if ((bits & kInitial) != 0) {
        progress.begins = false;
      } else {
        known_[key].whole |= BitOf(rank, progress.clock++);
        progress.most = std::max(progress.most, progress.clock);
      }
    }
    Send(rank, push, input, bits);
  }

  void Tick(uint32_t rank, uint32_t key, Input& input) {
    Progress& progress = ranks_[rank][key];
    if (progress.clock == kClocks) return;
    Header tick = HeaderFor(FrameType::kClock, rank, key);
    tick.round = progress.clock;
    tick.total = 0;
    tick.flags = kNoted | kSilent;
    tick.aux = progress.heard;
    tick.length = kNoteBytes;
    known_[key].idle |= BitOf(rank, progress.clock++);
    progress.most = std::max(progress.most, progress.clock);
    Send(rank, tick, input, kLastBlock);
  }

  // Only a note, as after a new link, of one that the server has; or of one that it can't have yet.
  void Repeat(uint32_t rank, uint32_t key, uint32_t clock, Input& input) {
    Header push = HeaderFor(FrameType::kPush, rank, key);
    push.round = clock;
    push.total = TotalOf(push, 0);
    push.flags = kNoted | kSilent;
    push.aux = ranks_[rank][key].heard;
    push.length = kNoteBytes;
    Send(rank, push, input);
  }

  void Pull(uint32_t rank, uint32_t key, Input& input) {
    const uint32_t how = input.Byte(), size = static_cast<uint32_t>(SizeOf(rules_.dtype));
    Header pull = HeaderFor(FrameType::kPull, rank, key);
    pull.round = ranks_[rank][key].clock;
    pull.aux = how % 3;
    pull.root = how < 0x80 ? 0xFFFFFFFF : how % 16;
    if ((how & 0x40) != 0 && !filters_->of_values()) {
      pull.offset = kElements[key] / 4 * size;
      pull.total = kElements[key] / 2 * size;
    }
    Send(rank, pull, input);
  }

  void Change(Header& header, Input& input) {
    Mutate(header, input);
    exact_.fill(false);
    sane_ = false;
  }

  // What it bears follows from the header, also if that was changed.
  void Send(uint32_t rank, Header header, Input& input, uint32_t bits = 0) {
    if (mutates_) Change(header, input);
    Buffer payload;
    if ((header.flags & kNoted) != 0 && header.length >= kNoteBytes) payload = NoteOf(header, bits, input);
    if (IsFiltered(header, bits)) {
      const Buffer all = Encoded(header);
      const size_t begin = std::min<size_t>(header.offset, all.size());
      payload.insert(payload.end(), all.begin() + static_cast<ptrdiff_t>(begin), all.end());
    } else {
      const size_t elements = (header.length - payload.size()) / SizeOf(rules_.dtype);
      for (size_t i = 0; i < elements; ++i) Append(payload, header, bits, i);
    }
    payload.resize(header.length);
    PutFrame(rank, header, payload);
  }

  // First values are not.
  bool IsFiltered(const Header& header, uint32_t bits) const {
    return header.type == FrameType::kPush && !filters_->empty() && (bits & kInitial) == 0;
  }
  // A contribution as filters make it.
  Buffer Encoded(Header header) {
    header.offset = 0;
    Buffer rows;
    for (size_t i = 0; i < kElements[header.key % kKeys]; ++i) Append(rows, header, 0, i);
    auto payload = filters_->Encode(rules_.dtype, {header.key, header.round, header.rank}, rows, kMaxPartition, own_);
    Require(payload.ok());
    return Buffer(payload->buffer.data(), payload->buffer.data() + payload->bytes);
  }
  uint32_t TotalOf(const Header& header, uint32_t bits) {
    return IsFiltered(header, bits) ? static_cast<uint32_t>(Encoded(header).size()) : header.total;
  }

  Buffer NoteOf(const Header& header, uint32_t bits, Input& input) const {
    Note note;
    note.base = header.round;
    note.bits = kLastBlock | bits;
    if (mutates_) {
      note.weight = static_cast<float>(input.Byte()) - 1;
      note.lr = static_cast<float>(input.Byte()) - 1;
      note.source = input.Byte() / 250;
    }
    Buffer payload(kNoteBytes);
    EncodeNote(note, std::span<std::byte, kNoteBytes>(payload.data(), kNoteBytes));
    return payload;
  }

  void Append(Buffer& payload, const Header& header, uint32_t bits, size_t i) const {
    const auto add = [&](auto value) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
      payload.insert(payload.end(), bytes, bytes + sizeof value);
    };
    const uint64_t element = header.offset / SizeOf(rules_.dtype) + i;
    if (rules_.dtype == DType::kFloat32) return add(static_cast<float>(header.rank + element % 7));
    if (rules_.dtype == DType::kFloat64) return add(static_cast<double>(header.rank + element % 7));
    const bool initial = (bits & kInitial) != 0;
    add(initial ? First(header.key % kKeys, element) : BitOf(header.rank % kRanks, header.round % kClocks));
  }

  void OnFrame(uint32_t rank, const Header& header, const std::byte* payload) override {
    switch (header.type) {
      case FrameType::kOpened:
        return OnOpened(rank, header);
      case FrameType::kApplied:
        return OnApplied(rank, header, payload);
      case FrameType::kValue:
      case FrameType::kResult:
        return OnValue(header, payload);
      case FrameType::kResumed:
        return OnResumed(rank, header);
      case FrameType::kError:
        return Require(header.aux != 0 && header.aux < kCodeCount);
      case FrameType::kCall:
        Require(header.aux < kCodeCount && (!sane_ || header.round <= called_[rank]));
        called_[rank] = header.round + 1;
        return;
      case FrameType::kCut:
      case FrameType::kState:
        Require(header.aux < kCodeCount && (!sane_ || header.round <= asked_[rank]));
        asked_[rank] = header.round + 1;
        cuts_[rank] = false;
        return;
      case FrameType::kCutoff:
        Require(header.key >= kKeys || !sane_ || !exact_[header.key] || header.round <= ranks_[rank][header.key].most);
        return;
      case FrameType::kRegion:
      case FrameType::kWarning:
        return;
      default:
        Require(false);
    }
  }

  void OnOpened(uint32_t rank, const Header& header) {
    Require(header.aux <= kInitialAsked);
    if (header.key >= kKeys) return;
    Progress& progress = ranks_[rank][header.key];
    progress.begins = header.aux == kInitialAsked;
    progress.opened = !progress.begins;
    if (exact_[header.key]) Require(header.round <= progress.most && header.round >= progress.heard);
    if (progress.clock == header.round) return;  // else frames were lost with a link, or this is read late
    progress.clock = std::min(header.round, kClocks);
    progress.heard = std::min(progress.heard, progress.clock);
    progress.said = 0;
  }
  void OnResumed(uint32_t rank, const Header& header) {
    if (!sane_) return;
    Progress& progress = ranks_[rank][header.key];
    Require(header.offset < header.total && (!filters_->empty() || header.offset % SizeOf(rules_.dtype) == 0));
    if (header.round == progress.clock) progress.said = static_cast<uint32_t>(header.offset);
  }

  void OnApplied(uint32_t rank, const Header& header, const std::byte* payload) {
    Require(header.aux <= static_cast<uint32_t>(Applied::kNotFinite));
    const auto applied = static_cast<Applied>(header.aux);
    const std::vector<uint32_t> with = DecodeRanks({payload, header.length});
    if (applied == Applied::kLate || applied == Applied::kHeld) Require(header.length == 0);
    if (!with.empty()) Require(with.back() < kRanks);
    if (!sane_ || !exact_[header.key]) return;
    Progress& progress = ranks_[rank][header.key];
    const Known& known = known_[header.key];
    const int64_t bit = BitOf(rank, header.round);
    Require(header.round < kClocks && ((known.whole | known.idle) & bit) != 0);
    const bool is_in = applied == Applied::kCounted && (known.whole & bit) != 0;
    if (!with.empty() && (known.whole & known.idle & bit) == 0)
      Require(std::ranges::binary_search(with, rank) == is_in);
    if (applied == Applied::kHeld) return;
    Require(applied != Applied::kCounted || header.offset > 0);
    const std::pair<uint32_t, uint64_t> answer{header.aux, header.offset};
    Require(progress.final.try_emplace(header.round, answer).first->second == answer);
    while (progress.final.contains(progress.heard)) ++progress.heard;
  }

  void OnValue(const Header& header, const std::byte* payload) {
    if (!sane_ || !exact_[header.key] || header.length == 0) return;
    if (filters_->of_values()) return Require(header.offset + header.length <= header.total);
    const uint32_t key = static_cast<uint32_t>(header.key);
    std::optional<int64_t> sum;
    for (uint32_t at = 0; at < header.length; at += sizeof(int64_t)) {
      int64_t value;
      std::memcpy(&value, payload + at, sizeof value);
      value -= First(key, (header.offset + at) / sizeof value);
      Require(!sum || *sum == value);
      sum = value;
    }
    Known& known = known_[key];
    Require((*sum & ~known.whole) == 0);
    const auto [found, is_new] = known.sums.try_emplace(header.root, *sum);
    Require(found->second == *sum);
    if (found != known.sums.begin()) Require((std::prev(found)->second & ~*sum) == 0);
    if (std::next(found) != known.sums.end()) Require((*sum & ~std::next(found)->second) == 0);
  }

  const Rules rules_;
  const std::shared_ptr<const Filters> filters_;
  std::atomic<uint64_t> held_ = 0;
  ShardMemory own_{"the fuzzer", 0, held_};
  std::array<std::array<Progress, kKeys>, kRanks> ranks_;
  std::array<Known, kKeys> known_;
  std::array<uint32_t, kRanks> called_{};  // calls that were answered, by rank
  std::array<uint32_t, kRanks> asked_{};   // cuts and requests about what is saved, likewise
  std::array<bool, kRanks> cuts_{};        // who waits for others at a cut
  std::array<bool, kRanks> announced_{};   // the rules, over this link
  std::array<bool, kKeys> exact_{};        // values are as expected
  bool mutates_ = false;
  bool sane_ = true;  // no field was changed so far
};

// As it should go, and once not: what a fuzzer varies.
void WriteSeeds(const std::string& folder) {
  for (uint8_t rules = 0; rules < std::size(kRules); ++rules) {
    const std::string name = folder + "/rules" + std::to_string(rules);
    for (uint8_t key = 0; key < kKeys; ++key) {
      const auto begun = [&] {
        Play play({rules});
        play.All(kOpen, key).One(kBegin, 0, key).One(kOpen, 0, key);
        return play;
      };
      Play whole = begun(), partly = begun(), again = begun(), unread = begun(), gone = begun(), called = begun(),
           idle = begun(), saved = begun(), blocks = begun();
      const std::string of = name + "-" + std::to_string(key);
      for (int step = 0; step < 3; ++step) whole.All(kPushAll, key).All(kReadValue, key, {0}).All(kPushLoud, key);
      whole.Write(of + "-whole");
      partly.All(kPushNext, key, {60}).All(kPushAll, key).All(kReadValue, key, {0x40}).Write(of + "-partly");
      again.All(kPushNext, key, {9}).All(kNewLink).All(kOpen, key).All(kResumePush, key).All(kPushAll, key);
      again.One(kStopReading, 1).All(kPushAll, key).One(kNewLink, 1).One(kOpen, 1, key).One(kRepeat, 1, key, {0});
      again.Write(of + "-again");
      unread.One(kStopReading, 0).All(kPushLoud, key).All(kForgetKey, key).One(kReadOn, 0).Write(of + "-unread");
      gone.One(kPushNext, 2, key, {1}).One(kLeave, 2).One(kPushAll, 0, key).One(kPushAll, 1, key);
      gone.One(kReadValue, 0, key, {0}).One(kTooEarly, 0, key, {0}).Write(of + "-gone");
      called.All(kPushAll, key).All(kCallOnValues, key, {0}).All(kCallOnValues, key, {2}).All(kNewLink).All(kOpen, key);
      called.All(kPushAll, key).All(kCallOnValues, key, {1}).All(kReadValue, key, {0}).Write(of + "-called");
      idle.One(kTick, 0, key).One(kPushAll, 1, key).One(kPushAll, 2, key).All(kReadValue, key, {0}).All(kTick, key);
      saved.All(kPushAll, key).All(kCutKeys, key, {0}).One(kSaveOrRestore, 0, key, {1, 0}).All(kPushAll, key);
      for (uint8_t what = 1; what < 8; ++what) saved.One(kSaveOrRestore, 1, key, {what, 5}).All(kReadValue, key, {0});
      saved.One(kCutKeys, 0, key, {0}).All(kNewLink).All(kOpen, key).All(kCutKeys, key, {1}).Write(of + "-saved");
      blocks.One(kPushAll, 0, key).One(kPushAll, 1, key).One(kPushBlock, 2, key).One(kPushBlock, 2, key);
      blocks.One(kNewLink, 2).One(kOpen, 2, key).All(kPushAll, key).All(kReadValue, key, {0}).Write(of + "-blocks");
      idle.All(kNewLink).All(kOpen, key).One(kRepeat, 0, key, {0}).All(kReadValue, key, {0}).Write(of + "-idle");
    }
  }
}

}  // namespace
}  // namespace byteps_like

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  return byteps_like::fuzzing::WriteSeedsIfAsked(*count, *arguments, byteps_like::WriteSeeds);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  byteps_like::fuzzing::Input input(data, std::min<size_t>(size, 600));
  byteps_like::World world(input.Byte());
  while (!input.empty()) world.Act(input);
  return 0;
}
