// libFuzzer target (`make fuzz`): a server's shard with the links of three ranks, whose frames are valid one by one,
// and come in any order: contributions of any lengths, by reference, absent and encoded, repetitions, rounds begun too
// early, new links, memory shared and taken back, results that nobody reads, and any of these with one field changed.
//
// An input is a row of actions of a few bytes each; `shard_fuzz --seeds=FOLDER` writes some. What must hold whatever
// they are: no error of memory (results are read late, and shared memory is really unmapped); no more memory than the
// limit; no result of a range that some rank has not said all of; sums that are sums; failures that say why, once.
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "compression/registry.h"
#include "csrc/codec/payload.h"
#include "csrc/kernels/kernels.h"
#include "tests/fuzz/shard_links.h"

namespace byteps_like {
namespace {

using namespace fuzzing;  // NOLINT

constexpr uint32_t kKeys = 3;
constexpr uint32_t kTotals[kKeys] = {64, 4096, 70000};  // the last is worth to be lent
constexpr uint32_t kPlaces[kKeys] = {0, 4096, 16384};   // in each rank's memory
constexpr size_t kRegionBytes = 128u << 10;
constexpr uint32_t kNumel = 64, kFirstCoded = 16;
constexpr uint64_t kLimit = 2u << 20;
constexpr const char* kCodecs[] = {"topk:ratio=0.2,select=sampled", "onebit:block=32768", "coo",
                                   "blocksparse:block=7,dense=1"};

// What a rank contributes at an element: of which bytes of a frame follow from its header.
uint32_t ValueOf(uint32_t rank, uint64_t key, uint32_t round, uint64_t element) {
  return (rank + 1) * 1000003u * (round + 1) + static_cast<uint32_t>(key) * 7919u + static_cast<uint32_t>(element);
}

void Fill(std::byte* to, size_t bytes, uint32_t rank, uint64_t key, uint32_t round, uint64_t offset) {
  for (size_t at = 0; at + 4 <= bytes; at += 4) {
    const uint32_t value = ValueOf(rank, key, round, (offset + at) / 4);
    std::memcpy(to + at, &value, 4);
  }
}

enum Action : uint32_t {
  kPushNext,
  kPushAll,
  kRefer,
  kAbsentFrom,
  kRepeat,
  kTooEarly,
  kResumeAll,
  kShare,
  kTakeBack,
  kForgetKey,
  kName,
  kPushCoded,
  kNewLink,
  kStopReading,
  kReadOn,
  kLeave,
  kFail,
  kActions
};

class World : ShardLinks {
 public:
  World() : ShardLinks(kLimit) {
    for (Rank& one : ranks_) {
      auto memory = SharedBuffer::Create(kRegionBytes);
      Require(memory.ok());
      one.memory = std::move(*memory);
    }
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
    uint32_t round = 0, said = 0, landed = 0;
    bool at_once = false;  // this round was pushed by one frame
  };
  struct Rank {
    std::shared_ptr<SharedBuffer> memory;
    std::array<Progress, kKeys> keys;
    std::map<uint64_t, Progress> coded;
    std::map<uint64_t, Buffer> payloads;
  };
  using RoundOf = std::tuple<uint64_t, uint32_t>;  // key and round
  struct Said {
    uint64_t upto = 0;  // bytes
    bool absent = false, present = false;
  };

  void Do(Action action, uint32_t rank, uint32_t key, Input& input) {
    Rank& one = ranks_[rank];
    Progress& progress = one.keys[key];
    Header push = PushOf(rank, key, progress.round);
    switch (action) {
      case kPushNext:
      case kPushAll:
        if (progress.said == push.total || progress.at_once) return;
        push.offset = progress.said;
        push.length = push.total - progress.said;
        if (action == kPushNext) push.length = std::min(push.length, (1 + input.Byte()) * 64);
        progress.said += push.length;
        return Send(rank, push, input);
      case kRefer:
        if (progress.said > 0 && !progress.at_once) return;
        push.flags = kByReference;
        push.aux = input.Byte() % 3;
        push.offset = kPlaces[key];
        if (!progress.at_once && AllHaveRead(rank, key, progress.round))
          Fill(one.memory->data() + kPlaces[key], push.total, rank, key, progress.round, 0);
        progress.at_once = true;
        return Send(rank, push, input);
      case kAbsentFrom:
        if (progress.said > 0) return;
        push.flags = kAbsent;
        progress.at_once = true;
        return Send(rank, push, input);
      case kRepeat:
        push.length = std::min(push.total, (1 + input.Byte()) * 64);
        return Send(rank, push, input);
      case kTooEarly:
        push.round += 1 + input.Byte() % 3;
        push.length = push.total;
        return Send(rank, push, input);
      case kResumeAll:
        push.type = FrameType::kResume;
        push.offset = std::min(progress.landed, push.total);
        return Send(rank, push, input);
      case kShare:
        return Share(rank, input);
      case kTakeBack:
        push = HeaderOf(FrameType::kRegion, rank);
        push.aux = input.Byte() % 3;
        return Send(rank, push, input);
      case kForgetKey:
        push = HeaderOf(FrameType::kForget, rank);
        push.key = key;
        forgotten_[key].insert(rank);
        if (forgotten_[key].size() == kRanks) {
          forgotten_[key].clear();
          for (Rank& other : ranks_) other.keys[key] = {};
        }
        return Send(rank, push, input);
      case kName:
        return Name(rank, input);
      case kPushCoded:
        return PushCoded(rank, input);
      case kNewLink:
        Connect(rank);
        for (uint32_t each = 0; each < kKeys; ++each) one.keys[each].said = one.keys[each].landed;
        return;
      case kStopReading:
      case kReadOn:
        return Read(rank, action == kReadOn);
      case kLeave:
        return Send(rank, HeaderOf(FrameType::kGoodbye, rank), input);
      case kFail:
        push = HeaderOf(FrameType::kError, rank);
        push.aux = input.Word();
        return Send(rank, push, input);
      case kActions:
        return;
    }
  }

  // Whether no result of an earlier life of the key may lie where a contribution is written.
  bool AllHaveRead(uint32_t rank, uint32_t key, uint32_t round) {
    return filled_.insert({rank, key, round}).second || (pure_ = false);
  }

  static Header PushOf(uint32_t rank, uint32_t key, uint32_t round) {
    Header header = HeaderOf(FrameType::kPush, rank);
    header.dtype = DType::kInt32;
    header.key = key;
    header.round = round;
    header.total = kTotals[key];
    return header;
  }

  void Share(uint32_t rank, Input& input) {
    Rank& one = ranks_[rank];
    Header region = HeaderOf(FrameType::kRegion, rank);
    const uint32_t how = input.Byte();
    region.aux = how % 3;
    region.offset = kRegionBytes;
    {
      Wire& wire = WireOf(rank);
      std::lock_guard lock(wire.mutex);
      if ((how & 0xc0) != 0xc0) wire.passed.push_back((how & 0x80) != 0 ? -1 : ::dup(one.memory->fd()));
    }
    Send(rank, region, input);
  }

  void Name(uint32_t rank, Input& input) {
    const uint32_t number = input.Byte() % std::size(kCodecs);
    const std::string text = kCodecs[number];
    Header header = HeaderOf(FrameType::kCodec, rank);
    header.aux = number;
    header.length = static_cast<uint32_t>(text.size());
    Buffer payload(text.size());
    std::memcpy(payload.data(), text.data(), text.size());
    SendWith(rank, header, std::move(payload), input);
  }

  // A real payload, of which a piece goes out.
  void PushCoded(uint32_t rank, Input& input) {
    const uint32_t number = input.Byte() % std::size(kCodecs);
    const uint64_t key = kFirstCoded + number;
    Rank& one = ranks_[rank];
    Progress& progress = one.coded[key];
    Buffer& payload = one.payloads[key];
    if (progress.said == 0) payload = Encoded(rank, key, progress.round, number);
    if (progress.said == payload.size()) return;
    Header push = HeaderOf(FrameType::kPush, rank);
    push.dtype = DType::kFloat32;
    push.flags = kEncoded;
    push.aux = number;
    push.key = key;
    push.round = progress.round;
    push.total = static_cast<uint32_t>(payload.size());
    push.offset = progress.said;
    push.length = std::min(push.total - progress.said, 1 + input.Byte());
    progress.said += push.length;
    const auto from = payload.begin() + static_cast<ptrdiff_t>(push.offset);
    SendWith(rank, push, Buffer(from, from + push.length), input);
  }

  static Buffer Encoded(uint32_t rank, uint64_t key, uint32_t round, uint32_t number) {
    static const auto codecs = [] {
      std::vector<CodecPointer> made;
      for (const char* text : kCodecs) {
        auto codec = MakeCodec(text, kRanks);
        Require(codec.ok());
        made.push_back(*codec);
      }
      return made;
    }();
    const Codec& codec = *codecs[number];
    const CodecPlan plan = codec.Plan(kNumel);
    std::array<float, kNumel> x{};
    for (uint32_t i = rank; i < kNumel; i += 1 + rank) x[i] = static_cast<float>(i % 7) - 3;
    std::vector<std::max_align_t> workspace(plan.workspace / sizeof(std::max_align_t) + 1);
    Buffer payload(kPayloadHeader + plan.payload);
    payload.resize(kPayloadHeader + codec.Encode(x, {key, round, rank}, nullptr,
                                                 reinterpret_cast<std::byte*>(workspace.data()),
                                                 payload.data() + kPayloadHeader));
    const std::string& spec = codec.spec();
    EncodePayloadHeader(
        {.codec = codec.id(), .count = 1, .numel = kNumel, .spec = kernels::Crc32c(0, spec.data(), spec.size())},
        payload.data());
    return payload;
  }

  // What it bears follows from the header, also if that was changed.
  void Send(uint32_t rank, Header header, Input& input) {
    if (mutates_) Mutate(header, input);
    Buffer payload(header.length);
    Fill(payload.data(), payload.size(), header.rank, header.key, header.round, header.offset);
    Put(rank, header, payload);
  }
  void SendWith(uint32_t rank, Header header, Buffer payload, Input& input) {
    if (mutates_ && !payload.empty()) payload[input.Byte() % payload.size()] ^= std::byte(1 + input.Byte() % 255);
    Put(rank, header, payload);
  }

  void Put(uint32_t rank, const Header& header, const Buffer& payload) {
    if (PutFrame(rank, header, payload) && header.type == FrameType::kPush) Note(header);
  }

  void Note(const Header& push) {
    if (push.rank >= kRanks) return;
    Said& said = said_[{push.key, push.round}][push.rank];
    const bool reference = (push.flags & kByReference) != 0, absent = (push.flags & kAbsent) != 0;
    const bool silent = push.op == Op::kBroadcast && push.root != push.rank;
    said.upto = std::max(said.upto, reference || absent || silent ? push.total : push.offset + push.length);
    (absent ? said.absent : said.present) = true;
    if (reference && (push.key >= kKeys || push.offset != kPlaces[push.key] || push.total != kTotals[push.key]))
      pure_ = false;
  }

  void OnFrame(uint32_t rank, const Header& header, const std::byte* payload) override {
    switch (header.type) {
      case FrameType::kResult:
        return OnResult(rank, header, payload);
      case FrameType::kError:
        return Require(header.aux != 0 && header.aux < kCodeCount);
      case FrameType::kRegion:
        return Require(header.offset == 0 && header.total == 1);
      case FrameType::kCall:
      case FrameType::kCut:
      case FrameType::kState:  // a frame of another type became one: there are no store keys here
        return Require(header.aux < kCodeCount);
      case FrameType::kResumed:
      case FrameType::kWarning:
        return;
      default:
        Require(false);
    }
  }

  void OnResult(uint32_t rank, const Header& header, const std::byte* payload) {
    const auto found = said_.find({header.key, header.round});
    Require(found != said_.end() && found->second.size() == kRanks);
    const bool reference = (header.flags & kByReference) != 0, encoded = (header.flags & kEncoded) != 0;
    const uint64_t end = reference ? header.total : header.offset + header.length;
    bool certain = pure_ && !encoded && header.dtype == DType::kInt32 && header.op == Op::kSum;
    for (const auto& [which, said] : found->second) {
      Require(encoded || said.upto >= end);
      certain = certain && !(said.absent && said.present);
    }
    if (certain && (header.flags & kAbsent) == 0) {
      if (reference) payload = ranks_[rank].memory->data() + kPlaces[header.key];
      CheckSum(header, found->second, payload, reference ? header.total : header.length);
    }
    Land(rank, header, end);
  }

  static void CheckSum(const Header& header, const std::map<uint32_t, Said>& said, const std::byte* payload,
                       uint32_t bytes) {
    const uint64_t offset = (header.flags & kByReference) != 0 ? 0 : header.offset;
    for (uint32_t at = 0; at + 4 <= bytes; at += 4) {
      uint32_t sum = 0, found;
      for (const auto& [which, one] : said)
        if (one.present) sum += ValueOf(which, header.key, header.round, (offset + at) / 4);
      std::memcpy(&found, payload + at, 4);
      Require(found == sum);
    }
  }

  void Land(uint32_t rank, const Header& header, uint64_t end) {
    Rank& one = ranks_[rank];
    const bool encoded = (header.flags & kEncoded) != 0;
    if (!encoded && header.key >= kKeys) return;
    Progress& progress = encoded ? one.coded[header.key] : one.keys[header.key];
    if (progress.round != header.round) return;
    progress.landed = static_cast<uint32_t>(end);
    if ((header.flags & (kByReference | kAbsent)) == 0 && end < header.total) return;
    progress = {.round = header.round + 1};
  }

  std::array<Rank, kRanks> ranks_;
  std::map<RoundOf, std::map<uint32_t, Said>> said_;  // by rank
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> filled_;
  std::array<std::set<uint32_t>, kKeys> forgotten_;
  bool mutates_ = false;
  bool pure_ = true;  // all memory holds what is expected of it
};

// As it should go, and once not: what a fuzzer varies.
void WriteSeeds(const std::string& folder) {
  Play rounds, referred, partly, coded, again, moved, unread;
  for (uint32_t key = 0; key < kKeys; ++key) rounds.All(kPushAll, key).All(kPushNext, key, {3}).All(kPushAll, key);
  rounds.Write(folder + "/rounds");
  referred.All(kShare, 0, {0}).All(kRefer, 1, {0}).All(kRefer, 1, {0}).All(kTakeBack, 0, {0});
  referred.One(kRefer, 0, 2, {0}).One(kPushAll, 1, 2).One(kAbsentFrom, 2, 2);
  referred.Write(folder + "/referred");
  partly.One(kShare, 0, 0, {0x81}).One(kRefer, 0, 1, {1}).One(kShare, 1, 0, {2}).One(kRefer, 1, 1, {2});
  partly.One(kTakeBack, 1, 0, {2}).One(kAbsentFrom, 2, 1).Write(folder + "/partly");
  for (uint8_t number = 0; number < std::size(kCodecs); ++number)
    coded.All(kName, 0, {number}).All(kPushCoded, 0, {number, 50}).All(kPushCoded, 0, {number, 255});
  coded.Write(folder + "/coded");
  again.All(kPushNext, 2, {99}).All(kNewLink).All(kResumeAll, 2).All(kPushAll, 2).Write(folder + "/again");
  moved.All(kPushAll, 2).All(kForgetKey, 2).All(kPushAll, 2).Write(folder + "/moved");
  unread.One(kStopReading, 0).All(kPushAll, 2).All(kForgetKey, 2).One(kReadOn, 0);
  unread.Write(folder + "/unread");
}

}  // namespace
}  // namespace byteps_like

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  return byteps_like::fuzzing::WriteSeedsIfAsked(*count, *arguments, byteps_like::WriteSeeds);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  byteps_like::World world;
  byteps_like::fuzzing::Input input(data, std::min<size_t>(size, 600));
  while (!input.empty()) world.Act(input);
  return 0;
}
