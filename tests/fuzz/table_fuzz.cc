// libFuzzer target (`make fuzz`): a server's shard that keeps a table, with the links of three ranks, whose frames are
// valid one by one, and come in any order: lists of ids announced, or not; contributions whole and in segments,
// repeated and too early; rows asked for by list, by known versions and by range; new links, ranks that stop reading or
// leave, and any of these with one field changed.
//
// An input's first byte chooses the policy and the update; then comes a row of actions of a few bytes each.
// `table_fuzz --seeds=FOLDER` writes some. What must hold whatever they are: no error of memory; no more memory than
// the limit; each row has one value in each version, the sum of whole contributions that name it, to which later
// versions only add; answers have the rows that were asked for; what became of a contribution is always told the same;
// failures that say why, once, and none but for want of memory while all keep to the rules.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/kernels/kernels.h"
#include "csrc/wire/note.h"
#include "server/store/filters/filters.h"
#include "tests/fuzz/shard_links.h"

namespace byteps_like {
namespace {

using namespace fuzzing;  // NOLINT

constexpr uint64_t kTable = 0;
constexpr uint32_t kWidth = 2;
constexpr uint32_t kClocks = 20;  // of a rank: each contribution has a bit of its own
constexpr uint64_t kLimit = 4u << 20;
using Ids = std::vector<uint64_t>;

// Whose values are whole numbers that are added up: these can be checked. Of the others only the answers.
struct Rules {
  DType dtype;
  const char* text;
};
constexpr Rules kRules[] = {
    {DType::kInt64, "policy asp\ncombine sum:age=none,damp=none\nupdate add\nrows zeros"},
    {DType::kInt64, "policy bsp\ncombine sum:age=none,damp=none\nupdate add\nrows zeros"},
    {DType::kInt64, "policy ssp:s=1\ncombine sum:age=none,damp=none\nupdate add\nrows zeros"},
    {DType::kInt64,
     "policy k_of_n:grace=0,k=2,late=next,max_age=inf\ncombine sum:age=none,damp=none\nupdate add\nrows zeros"},
    {DType::kInt64,
     "policy k_of_n:grace=0,k=1,late=drop,max_age=1\ncombine sum:age=none,damp=none\nupdate add\nrows zeros"},
    {DType::kFloat32,
     "policy asp\ncombine sum:age=none,damp=inverse\nupdate row_adagrad:eps=1e-10,lr=0.1\nrows "
     "uniform:bound=0.1,seed=7"},
    {DType::kFloat64,
     "policy bsp\ncombine mean:age=none,damp=none\nupdate "
     "adam:beta1=0.9,beta2=0.999,eps=1e-08,lr=0.1,weight_decay=0.3\nrows zeros"},
    {DType::kInt64, "policy ssp:s=1\ncombine sum:age=none,damp=none\nupdate add\nfilters zlib:level=1\nrows zeros"},
    {DType::kFloat32,
     "policy bsp\ncombine sum:age=none,damp=none\nupdate add\nfilters float:bytes=2 zlib:level=6\nrows zeros"},
};

// What a spec's line of filters means; none of a spec without.
std::shared_ptr<const Filters> FiltersOf(std::string_view text) {
  constexpr std::string_view kLine = "\nfilters ";
  const size_t begin = text.find(kLine);
  if (begin == text.npos) return *Filters::Parse("");
  text.remove_prefix(begin + kLine.size());
  return *Filters::Parse(text.substr(0, text.find('\n')));
}

enum Action : uint32_t {
  kOpen,
  kAnnounce,
  kAnnounceBegin,
  kPushNext,
  kPushAll,
  kRepeat,
  kTooEarly,
  kFetchAll,
  kFetchKnown,
  kFetchRange,
  kResumePush,
  kForgetKey,
  kNewLink,
  kStopReading,
  kReadOn,
  kLeave,
  kFail,
  kCallOnRows,
  kActions
};

const std::vector<Ids>& Lists() {
  static const std::vector<Ids> lists = [] {
    Ids many(3000);  // several segments
    std::iota(many.begin(), many.end(), 2u);
    return std::vector<Ids>{{}, {1, 2, 3}, {2, uint64_t{1} << 52, ~uint64_t{0}}, many};
  }();
  return lists;
}

uint32_t CrcOf(const Ids& ids) { return kernels::Crc32c(0, ids.data(), ids.size() * sizeof(uint64_t)); }
int64_t BitOf(uint32_t rank, uint32_t clock) { return int64_t{1} << (rank * kClocks + clock); }
bool Has(const Ids& ids, uint64_t id) { return std::ranges::binary_search(ids, id); }

template <typename T>
T At(const Buffer& bytes, size_t place) {
  Require(place + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + place, sizeof value);
  return value;
}

class World : ShardLinks {
 public:
  explicit World(uint32_t rules)
      : ShardLinks(kLimit), rules_(kRules[rules % std::size(kRules)]), filters_(FiltersOf(rules_.text)) {
    exact_ = rules_.dtype == DType::kInt64;
  }

  void Act(Input& input) {
    const uint32_t first = input.Byte(), second = input.Byte();
    mutates_ = (second & 0x80) != 0;
    Do(static_cast<Action>(first / kRanks % kActions), first % kRanks, second % 4, input);
    Settle();
  }

 private:
  struct Asked {
    Action how{};
    uint32_t list = 0;
    std::vector<uint32_t> known;
    uint64_t bound = 0, low = 0, high = 0;
    Buffer answer;
  };
  struct Progress {
    bool opened = false, left = false;
    uint32_t clock = 0;                                       // contributions that were pushed whole
    uint32_t said = 0;                                        // bytes of the next one
    uint32_t list = 0;                                        // of which it has rows
    std::map<uint32_t, std::pair<uint32_t, uint64_t>> final;  // answers, by clock
    std::map<uint32_t, Asked> asked;                          // by request
    uint32_t requests = 0;
  };

  uint32_t RowBytes() const { return kWidth * static_cast<uint32_t>(SizeOf(rules_.dtype)); }
  size_t RowsOf(uint32_t list) const { return Lists()[list].size() * RowBytes(); }  // in bytes
  // A contribution as it travels.
  Buffer BytesOf(uint32_t rank, uint32_t clock, uint32_t list) {
    Buffer rows;
    while (rows.size() < RowsOf(list)) AppendElement(rows, rank, clock);
    if (filters_->empty()) return rows;
    auto payload = filters_->Encode(rules_.dtype, {kTable, clock, rank}, rows, kMaxPartition, own_);
    Require(payload.ok());
    return Buffer(payload->buffer.data(), payload->buffer.data() + payload->bytes);
  }
  uint32_t TotalOf(uint32_t rank, uint32_t clock, uint32_t list) {
    return static_cast<uint32_t>(BytesOf(rank, clock, list).size());
  }

  void Do(Action action, uint32_t rank, uint32_t list, Input& input) {
    Progress& progress = ranks_[rank];
    if (progress.left) orderly_ = false;
    switch (action) {
      case kOpen:
        return Open(rank, input);
      case kAnnounce:
        return Announce(rank, list, true, input);
      case kAnnounceBegin:
        return Announce(rank, list, false, input);
      case kPushNext:
        return Push(rank, list, (1 + input.Byte()) * 256, input);
      case kPushAll:
        return Push(rank, list, kMostPayload - kNoteBytes, input);
      case kRepeat:
        if (progress.clock == 0) return;
        return Note(rank, list, input.Byte() % progress.clock, input);
      case kTooEarly:
        orderly_ = false;
        return Note(rank, list, progress.clock + 1 + input.Byte() % 3, input);
      case kFetchAll:
      case kFetchKnown:
      case kFetchRange:
        return Ask(action, rank, list, input);
      case kResumePush: {
        Header resume = HeaderFor(FrameType::kResume, rank, TotalOf(rank, progress.clock, progress.list));
        resume.round = progress.clock;
        return Send(resume, {}, input);
      }
      case kForgetKey:
        exact_ = orderly_ = false;  // it may begin anew
        return Send(HeaderFor(FrameType::kForget, rank, 0), {}, input);
      case kNewLink:
        progress.asked.clear();
        progress.opened = false;
        return Connect(rank);
      case kStopReading:
      case kReadOn:
        return Read(rank, action == kReadOn);
      case kLeave:
        progress.left = true;
        return Send(HeaderOf(FrameType::kGoodbye, rank), {}, input);
      case kFail: {
        Header error = HeaderOf(FrameType::kError, rank);
        error.aux = input.Word();
        orderly_ = false;
        return Send(error, {}, input);
      }
      case kCallOnRows:
        return Call(rank, input);
      case kActions:
        return;
    }
  }

  // The table is tensor 0. Of a function that leaves all rows of a range as they are, in a new version.
  void Call(uint32_t rank, Input& input) {
    if (!ranks_[rank].opened) return;
    static const std::string kScaleByOne(
        "\x01\x01\x05scale\0\0\0\0\x01"
        "a\0\0\0\0\0\0\xf0\x3f",
        22);
    Header call = HeaderFor(FrameType::kCall, rank, 4096);
    call.round = called_[rank];
    call.aux = 1;
    Buffer payload;
    for (const char one : kScaleByOne) Append(payload, one);
    const uint64_t low = input.Byte() % 4, high = input.Byte() * (input.Byte() % 2 == 0 ? 1 : uint64_t{1} << 50);
    Append(payload, low);
    Append(payload, high);
    Append(payload, uint64_t{input.Byte()} % 3);
    Send(call, payload, input);
  }

  Header HeaderFor(FrameType type, uint32_t rank, uint32_t total) const {
    Header header = HeaderOf(type, rank);
    header.dtype = rules_.dtype;
    header.key = kTable;
    header.total = total;
    return header;
  }

  template <typename T>
  static void Append(Buffer& payload, const T& value) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
    payload.insert(payload.end(), bytes, bytes + sizeof value);
  }

  void Send(Header header, Buffer payload, Input& input) {
    header.length = static_cast<uint32_t>(payload.size());
    const uint32_t rank = header.rank;
    if (mutates_) {
      Mutate(header, input);
      exact_ = orderly_ = sane_ = false;
    }
    payload.resize(header.length);
    PutFrame(rank, header, payload);
  }

  void Open(uint32_t rank, Input& input) {
    Header spec = HeaderFor(FrameType::kSpec, rank, RowBytes());
    spec.offset = kWidth;
    spec.root = 0xFFFFFFFF;
    Buffer text;
    for (const char* one = rules_.text; *one != 0; ++one) text.push_back(std::byte(*one));
    Send(spec, text, input);
  }

  // All of a list, in two segments; or the first of them.
  void Announce(uint32_t rank, uint32_t list, bool whole, Input& input) {
    if (!ranks_[rank].opened) return;
    const Ids& ids = Lists()[list];
    const size_t half = ids.size() / 2;
    Header keys = HeaderFor(FrameType::kKeys, rank, static_cast<uint32_t>(ids.size() * sizeof(uint64_t)));
    keys.aux = list;
    keys.root = CrcOf(ids);
    Buffer first, second;
    for (size_t i = 0; i < ids.size(); ++i) Append(i < half ? first : second, ids[i]);
    Send(keys, ids.size() == 1 ? second : first, input);
    if (!whole || second.empty()) return;
    keys.offset = half * sizeof(uint64_t);
    Send(keys, second, input);
  }

  // The next bytes of a contribution.
  void Push(uint32_t rank, uint32_t list, uint32_t most, Input& input) {
    Progress& progress = ranks_[rank];
    if (!progress.opened || progress.clock == kClocks) return;
    if (progress.said == 0) progress.list = list;
    const Buffer bytes = BytesOf(rank, progress.clock, progress.list);
    Header rows = HeaderFor(FrameType::kRows, rank, static_cast<uint32_t>(bytes.size()));
    rows.round = progress.clock;
    rows.aux = progress.list;
    rows.root = CrcOf(Lists()[progress.list]);
    rows.offset = progress.said;
    rows.flags = static_cast<uint8_t>((progress.said == 0 ? kNoted : 0) | kSilent);
    Buffer payload = progress.said == 0 ? NoteOf(input) : Buffer();
    const uint32_t end = std::min(rows.total, progress.said + most);
    for (; progress.said < end; ++progress.said) payload.push_back(bytes[progress.said]);
    if (progress.said == rows.total) {
      whole_[progress.list] |= BitOf(rank, progress.clock++);
      progress.said = 0;
    }
    Send(rows, payload, input);
  }

  void AppendElement(Buffer& payload, uint32_t rank, uint32_t clock) const {
    if (rules_.dtype == DType::kFloat32) return Append(payload, static_cast<float>(rank + 1));
    if (rules_.dtype == DType::kFloat64) return Append(payload, static_cast<double>(rank + 1));
    Append(payload, BitOf(rank, clock));
  }

  // Only a note, as after a new link, of one that the server has; or of one that it can't have yet.
  void Note(uint32_t rank, uint32_t list, uint32_t clock, Input& input) {
    Header rows = HeaderFor(FrameType::kRows, rank, TotalOf(rank, clock, list));
    rows.round = clock;
    rows.flags = kNoted | kSilent;
    rows.aux = list;
    rows.root = CrcOf(Lists()[list]);
    if (rows.total == 0) exact_ = orderly_ = false;  // it is a contribution
    Send(rows, NoteOf(input), input);
  }

  Buffer NoteOf(Input& input) const {
    byteps_like::Note note;
    note.base = version_;
    if (mutates_) {
      note.weight = static_cast<float>(input.Byte()) - 1;
      note.source = input.Byte() / 250;
    }
    Buffer payload(kNoteBytes);
    EncodeNote(note, std::span<std::byte, kNoteBytes>(payload.data(), kNoteBytes));
    return payload;
  }

  void Ask(Action how, uint32_t rank, uint32_t list, Input& input) {
    Progress& progress = ranks_[rank];
    if (!progress.opened) return;
    Asked asked;
    asked.how = how;
    asked.list = list;
    Header fetch = HeaderFor(FrameType::kFetch, rank, progress.requests++);
    fetch.round = progress.clock;
    fetch.aux = list;
    fetch.root = CrcOf(Lists()[list]);
    Buffer payload;
    if (how == kFetchRange) {
      fetch.aux = kRange;
      asked.low = input.Byte() % 4;
      asked.high = input.Byte() * (input.Byte() % 2 == 0 ? 1 : uint64_t{1} << 50);
      fetch.offset = input.Byte() % 3;
      fetch.root = input.Byte() % 4;
      Append(payload, asked.low);
      Append(payload, asked.high);
    } else if (how == kFetchKnown) {
      asked.bound = fetch.offset = input.Byte() % 3;
      const uint32_t have = input.Byte();
      for (size_t i = 0; i < Lists()[list].size(); ++i)
        asked.known.push_back((i + have) % 5 == 0 ? kUnknown : (have + static_cast<uint32_t>(i)) % 4);
      for (const uint32_t one : asked.known) Append(payload, one);
      payload.resize((payload.size() + 7) / 8 * 8);
    }
    progress.asked[fetch.total] = asked;
    Send(fetch, payload, input);
  }

  void OnFrame(uint32_t rank, const Header& header, const std::byte* payload) override {
    switch (header.type) {
      case FrameType::kOpened:
        return OnOpened(rank, header);
      case FrameType::kApplied:
        return OnApplied(rank, header);
      case FrameType::kNack:
        return OnNack(rank, header);
      case FrameType::kValue:
        return OnValue(rank, header, payload);
      case FrameType::kResumed:
        return OnResumed(rank, header);
      case FrameType::kError:
        Require(header.aux != 0 && header.aux < kCodeCount);
        return Require(!orderly_ || header.aux == static_cast<uint32_t>(Code::kCapacity));
      case FrameType::kCall:
        Require(header.aux < kCodeCount && (!sane_ || header.round <= called_[rank]));
        called_[rank] = header.round + 1;
        return;
      case FrameType::kWarning:
        return;
      default:
        Require(!sane_);
    }
  }

  void OnOpened(uint32_t rank, const Header& header) {
    Progress& progress = ranks_[rank];
    progress.opened = true;
    version_ = std::max(version_, static_cast<uint32_t>(header.offset));
    if (exact_) Require(header.round <= progress.clock);
    progress.clock = std::min(header.round, kClocks);
    progress.said = 0;
  }

  void OnResumed(uint32_t rank, const Header& header) {
    if (!sane_) return;
    Progress& progress = ranks_[rank];
    Require(header.offset <= header.total && (!filters_->empty() || header.offset % SizeOf(rules_.dtype) == 0));
    const bool goes_on = header.round == progress.clock && header.total == TotalOf(rank, progress.clock, progress.list);
    progress.said = goes_on && header.offset < header.total ? static_cast<uint32_t>(header.offset) : 0;
  }

  void OnApplied(uint32_t rank, const Header& header) {
    Require(header.aux <= static_cast<uint32_t>(Applied::kNotFinite));
    if (!exact_ || static_cast<Applied>(header.aux) == Applied::kHeld) return;
    const std::pair<uint32_t, uint64_t> answer{header.aux, header.offset};
    Require(ranks_[rank].final.try_emplace(header.round, answer).first->second == answer);
  }

  void OnNack(uint32_t rank, const Header& header) {
    if (!sane_) return;
    Progress& progress = ranks_[rank];
    if (header.total == kNackedRows) {
      Require(header.offset == 0);
      progress.clock = std::min(header.round, progress.clock);
      progress.said = 0;
    } else {
      Require(header.total == kNackedFetch && progress.asked.erase(static_cast<uint32_t>(header.offset)) == 1);
    }
  }

  void OnValue(uint32_t rank, const Header& header, const std::byte* payload) {
    if (!sane_) return;
    auto& all = ranks_[rank].asked;
    const auto found = all.find(header.aux);
    Require(found != all.end());
    Buffer& answer = found->second.answer;
    Require(header.offset == answer.size());
    answer.insert(answer.end(), payload, payload + header.length);
    if (answer.size() < header.total) return;
    version_ = std::max(version_, header.root);
    Check(found->second, header.root);
    all.erase(found);
  }

  void Check(const Asked& asked, uint32_t version) {
    const Ids& ids = Lists()[asked.list];
    if (asked.how == kFetchAll) return CheckRows(ids, version, Decoded(asked.answer, RowsOf(asked.list)), 0);
    Ids sent;
    if (asked.how == kFetchRange) {
      Require(asked.answer.size() % (sizeof(uint64_t) + RowBytes()) == 0);
      for (size_t i = 0; i < asked.answer.size() / (sizeof(uint64_t) + RowBytes()); ++i)
        sent.push_back(At<uint64_t>(asked.answer, i * sizeof(uint64_t)));
      Require(std::ranges::adjacent_find(sent, std::greater_equal<>()) == sent.end());
      Require(sent.empty() || (sent.front() >= asked.low && sent.back() < asked.high));
      return CheckRows(sent, version, asked.answer, sent.size() * sizeof(uint64_t));
    }
    const size_t bitmap = (ids.size() + 63) / 64 * 8;
    for (size_t i = 0; i < ids.size(); ++i) {
      if ((At<uint8_t>(asked.answer, i / 8) >> (i % 8) & 1) == 0) {
        Require(asked.known[i] != kUnknown);
        continue;
      }
      const auto own = At<uint32_t>(asked.answer, bitmap + sent.size() * sizeof(uint32_t));
      Require(own <= version && (asked.known[i] == kUnknown || own - asked.known[i] > asked.bound));
      sent.push_back(ids[i]);
    }
    CheckRows(sent, version, asked.answer, bitmap + (sent.size() * sizeof(uint32_t) + 7) / 8 * 8);
  }

  Buffer Decoded(const Buffer& answer, size_t rows) {
    if (filters_->empty() || rows == 0) return answer;
    ShardBuffer copy = own_.Take(std::max<size_t>(answer.size(), 1));
    std::memcpy(copy.data(), answer.data(), answer.size());
    auto found = filters_->Decode(rules_.dtype, {std::move(copy), answer.size()}, rows, own_);
    Require(found.ok());
    return Buffer(found->buffer.data(), found->buffer.data() + rows);
  }

  void CheckRows(const Ids& ids, uint32_t version, const Buffer& answer, size_t from) {
    Require(answer.size() == from + ids.size() * RowBytes());
    if (!exact_) return;
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto sum = At<int64_t>(answer, from + i * RowBytes());
      Require(At<int64_t>(answer, from + i * RowBytes() + sizeof sum) == sum);
      int64_t whole = 0;
      for (size_t list = 0; list < Lists().size(); ++list)
        if (Has(Lists()[list], ids[i])) whole |= whole_[list];
      Require((sum & ~whole) == 0);
      auto& sums = sums_[ids[i]];
      const auto place = sums.try_emplace(version, sum).first;
      Require(place->second == sum);
      if (place != sums.begin()) Require((std::prev(place)->second & ~sum) == 0);
      if (std::next(place) != sums.end()) Require((sum & ~std::next(place)->second) == 0);
    }
  }

  const Rules rules_;
  const std::shared_ptr<const Filters> filters_;
  std::atomic<uint64_t> held_ = 0;
  ShardMemory own_{"the fuzzer", 0, held_};
  std::array<Progress, kRanks> ranks_;
  std::array<uint32_t, kRanks> called_{};                 // calls that were answered, by rank
  std::array<int64_t, 4> whole_{};                        // bits of what was pushed, by list
  std::map<uint64_t, std::map<uint32_t, int64_t>> sums_;  // by id and version
  bool exact_ = false;                                    // values are as expected
  bool mutates_ = false;
  uint32_t version_ = 0;  // that there is at least
  bool orderly_ = true;   // nobody has done what the job fails for
  bool sane_ = true;      // no field was changed so far
};

// As it should go, and once not: what a fuzzer varies.
void WriteSeeds(const std::string& folder) {
  for (uint8_t rules = 0; rules < std::size(kRules); ++rules) {
    for (uint8_t list = 0; list < 4; ++list) {
      const auto begun = [&] {
        Play play({rules});
        play.All(kOpen).All(kAnnounce, list);
        return play;
      };
      const std::string of = folder + "/rules" + std::to_string(rules) + "-" + std::to_string(list);
      Play whole = begun(), partly = begun(), again = begun(), unread = begun(), gone = begun();
      for (int step = 0; step < 3; ++step) whole.All(kPushAll, list).All(kFetchAll, list);
      whole.All(kFetchKnown, list, {1, 7}).All(kFetchRange, list, {1, 200, 1}).All(kCallOnRows, list, {0, 90, 1});
      whole.All(kPushAll, list).All(kFetchAll, list).Write(of + "-whole");
      partly.All(kPushNext, list, {60})
          .All(kPushAll, list)
          .All(kFetchAll, list)
          .All(kFetchKnown, (list + 1) % 4, {0, 3});
      partly.All(kAnnounceBegin, list)
          .All(kPushAll, list)
          .All(kAnnounce, list)
          .All(kPushAll, list)
          .Write(of + "-partly");
      again.All(kPushNext, list, {9}).All(kNewLink).All(kOpen).All(kResumePush).All(kAnnounce, list);
      again.All(kPushAll, list).One(kStopReading, 1).All(kPushAll, list).One(kNewLink, 1).One(kOpen, 1);
      again.One(kRepeat, 1, list, {0}).One(kReadOn, 1).Write(of + "-again");
      unread.One(kStopReading, 0).All(kPushAll, list).All(kFetchAll, list).All(kForgetKey);
      unread.One(kReadOn, 0).Write(of + "-unread");
      gone.One(kPushNext, 2, list, {1}).One(kLeave, 2).One(kPushAll, 0, list).One(kPushAll, 1, list);
      gone.One(kFetchAll, 0, list).One(kTooEarly, 0, list, {0}).Write(of + "-gone");
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
