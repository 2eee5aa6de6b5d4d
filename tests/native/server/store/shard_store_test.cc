// Store keys of a shard, frame by frame: opened, pushed to, read, over links that break.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "csrc/wire/note.h"
#include "tests/native/server/test_server.h"

namespace byteps_like::testing {
namespace {

constexpr uint32_t kNobodys = 0xFFFFFFFF;
constexpr uint64_t kKey = 9;
using Values = std::vector<float>;

std::string Spec(const std::string& policy, const std::string& combine = "sum:age=none,damp=none",
                 const std::string& update = "add") {
  return "policy " + policy + "\ncombine " + combine + "\nupdate " + update;
}

// A worker of store keys of fp32, one row each.
class Reader {
 public:
  Reader(TestServer& server, uint32_t rank) : rank_(rank), link_(server.Connect(rank)) {}

  Header Of(FrameType type, uint32_t count, uint32_t round = 0) const {
    Header header = PushHeader(rank_, kKey, round, count * 4);
    header.type = type;
    header.dtype = DType::kFloat32;
    header.length = 0;
    return header;
  }
  void Spec(const std::string& text, uint32_t count, uint32_t root = kNobodys) {
    Header header = Of(FrameType::kSpec, count);
    header.root = root;
    header.offset = count;
    header.length = static_cast<uint32_t>(text.size());
    const auto* const bytes = reinterpret_cast<const std::byte*>(text.data());
    link_.Send(header, std::vector<std::byte>(bytes, bytes + text.size()));
  }
  // The policy is to become that of the text.
  void Change(const std::string& text, uint32_t count, uint32_t number) {
    Header header = Of(FrameType::kSpec, count, kChanges);
    header.root = kNobodys;
    header.offset = count;
    header.aux = number;
    header.length = static_cast<uint32_t>(text.size());
    const auto* const bytes = reinterpret_cast<const std::byte*>(text.data());
    link_.Send(header, std::vector<std::byte>(bytes, bytes + text.size()));
  }
  Message Opened(const std::string& text, uint32_t count, uint32_t root = kNobodys) {
    Spec(text, count, root);
    return Next(FrameType::kOpened);
  }
  // Elements [begin, end) of a contribution; with the note, if they are its first.
  void Push(const Values& values, uint32_t clock, Note note = {}, bool silent = true, uint32_t begin = 0,
            uint32_t end = kNobodys, uint32_t heard = 0) {
    end = std::min<uint32_t>(end, static_cast<uint32_t>(values.size()));
    Header header = Of(FrameType::kPush, static_cast<uint32_t>(values.size()), clock);
    std::vector<std::byte> payload(begin == 0 ? kNoteBytes : 0);
    if (begin == 0) EncodeNote(note, std::span<std::byte, kNoteBytes>(payload.data(), kNoteBytes));
    header.flags = static_cast<uint8_t>((begin == 0 ? kNoted : 0) | (silent ? kSilent : 0));
    header.aux = heard;
    header.offset = begin * 4;
    const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
    payload.insert(payload.end(), bytes + begin * 4, bytes + end * 4);
    header.length = static_cast<uint32_t>(payload.size());
    link_.Send(header, payload);
  }
  // A contribution of nothing.
  void Tick(uint32_t clock, Note note = {}) {
    Header header = Of(FrameType::kClock, 0, clock);
    header.flags = kNoted | kSilent;
    std::vector<std::byte> payload(kNoteBytes);
    EncodeNote(note, std::span<std::byte, kNoteBytes>(payload.data(), kNoteBytes));
    header.length = kNoteBytes;
    link_.Send(header, payload);
  }
  void Pull(uint32_t count, uint32_t clock, uint32_t least = 0, uint32_t known = kNobodys, uint32_t begin = 0) {
    Header header = Of(FrameType::kPull, count, clock);
    header.offset = begin * 4;
    header.aux = least;
    header.root = known;
    link_.Send(header);
  }
  Message Next(FrameType type) {
    auto message = link_.Receive();
    if (message && message->header.type == FrameType::kError) FAIL(Text(*message));
    REQUIRE(message.has_value());
    CHECK(int(message->header.type) == int(type));
    CHECK(message->header.key == kKey);
    return std::move(*message);
  }
  // What became of a contribution: "0 counted 3".
  std::string Applied() {
    const Header header = Next(FrameType::kApplied).header;
    constexpr const char* kNames[] = {"counted", "late", "held", "not finite"};
    return std::to_string(header.round) + " " + kNames[header.aux] + " " + std::to_string(header.offset);
  }
  // That a version is about to be made without a contribution of it: "0 after 3".
  std::string CutOff() {
    const Header header = Next(FrameType::kCutoff).header;
    return std::to_string(header.round) + " after " + std::to_string(header.offset);
  }
  // A value that comes in segments of one version.
  Values Value(uint32_t count, uint32_t version, FrameType type = FrameType::kValue, uint32_t begin = 0) {
    Values values(count);
    for (uint32_t at = begin * 4; at < count * 4;) {
      const Message message = Next(type);
      CHECK(message.header.root == version);
      CHECK(message.header.offset == at);
      REQUIRE(message.header.length > 0);
      std::memcpy(reinterpret_cast<std::byte*>(values.data()) + at, message.payload.data(), message.header.length);
      at += message.header.length;
    }
    return values;
  }
  // For a tenth of a second after the shard has taken all that this rank has sent: a link's frames are taken in order,
  // and to resume what has not begun is answered at once.
  bool HearsNothing() {
    Header resume = Of(FrameType::kResume, 0);
    resume.key = kNobodys;
    link_.Send(resume);
    const auto answer = link_.Receive();
    return answer && answer->header.type == FrameType::kResumed && !link_.Receive(0.1).has_value();
  }
  RawLink& link() { return link_; }

 private:
  static std::string Text(const Message& message) {
    return std::string(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
  }

  const uint32_t rank_;
  RawLink link_;
};

Values Counting(uint32_t count, float from = 0) {
  Values values(count);
  std::iota(values.begin(), values.end(), from);
  return values;
}

Values Times(Values values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

}  // namespace

TEST_CASE("store: under asp each contribution makes a version at once, and a pull sees it") {
  TestServer server(2);
  Reader one(server, 0), other(server, 1);
  const std::string spec = Spec("asp");
  for (Reader* rank : {&one, &other}) {
    const Header opened = rank->Opened(spec, 100).header;
    CHECK(opened.offset == 0);
    CHECK(opened.round == 0);
    CHECK(opened.aux == 0);
  }
  one.Push(Counting(100), 0);
  CHECK(one.Applied() == "0 counted 1");
  other.Push(Counting(100), 0, {.base = 1, .weight = 2});
  CHECK(other.Applied() == "0 counted 2");
  one.Pull(100, 1);
  CHECK(one.Value(100, 2) == Times(Counting(100), 3));
  one.Pull(100, 1, 0, 2);  // it has this one
  const Header nothing = one.Next(FrameType::kValue).header;
  CHECK(nothing.root == 2);
  CHECK(nothing.offset == 400);
  CHECK(nothing.length == 0);
  one.Pull(60, 1, 2, 1, 50);  // a part
  const Values part = one.Value(60, 2, FrameType::kValue, 50);
  CHECK(part[50] == 150);
  CHECK(part[59] == 177);
}

TEST_CASE("store: the rank that sets the first value is told so, and the others wait for it") {
  TestServer server(2);
  Reader other(server, 1), root(server, 0);
  const std::string spec = Spec("asp");
  other.Spec(spec, 10, 0);
  CHECK(other.HearsNothing());
  CHECK(root.Opened(spec, 10, 0).header.aux == 1);
  root.Push(Counting(10, 5), 0, {.bits = kLastBlock | kInitial});
  CHECK(other.Next(FrameType::kOpened).header.aux == 0);
  other.Pull(10, 0);
  CHECK(other.Value(10, 0) == Counting(10, 5));
  CHECK(root.Opened("", 10, 0).header.aux == 0);  // asks again, to know that it has arrived
}

TEST_CASE("store: a contribution in segments counts when it is whole, and the value comes in segments of one version") {
  constexpr uint32_t kCount = 200'000;  // more than a segment
  TestServer server(1);
  Reader rank(server, 0);
  rank.Opened(Spec("asp"), kCount);
  const Values values = Counting(kCount);
  rank.Push(values, 0, {}, true, 0, 1);
  rank.Push(values, 0, {}, true, 1, 70'000);
  rank.Pull(kCount, 0);
  CHECK(rank.Value(kCount, 0) == Values(kCount));
  rank.Pull(kCount, 1);  // waits for the rest
  rank.Push(values, 0, {}, true, 70'000, kCount);
  CHECK(rank.Applied() == "0 counted 1");
  CHECK(rank.Value(kCount, 1) == values);
}

TEST_CASE("store: a push that is not silent brings the value in force when it is settled") {
  TestServer server(2);
  Reader one(server, 0), other(server, 1);
  for (Reader* rank : {&one, &other}) rank->Opened(Spec("bsp", "mean:age=none,damp=none", "assign"), 8);
  one.Push(Counting(8), 0, {}, false);
  CHECK(one.HearsNothing());
  other.Push(Times(Counting(8), 3), 0, {}, false);
  for (Reader* rank : {&one, &other}) {
    CHECK(rank->Applied() == "0 counted 1");
    CHECK(rank->Value(8, 1, FrameType::kResult) == Times(Counting(8), 2));
  }
}

TEST_CASE("store: a clock that goes by is in no mean, and who waits for its rank goes on") {
  TestServer server(2);
  Reader one(server, 0), other(server, 1);
  for (Reader* rank : {&one, &other}) rank->Opened(Spec("bsp", "mean:age=none,damp=none", "add"), 4);
  one.Push(Values(4, 3), 0);
  other.Tick(0);
  const Message said = other.Next(FrameType::kApplied);
  CHECK(said.header.aux == static_cast<uint32_t>(Applied::kCounted));
  CHECK(said.header.total == 0);
  CHECK(DecodeRanks(said.payload) == std::vector<uint32_t>{0});
  CHECK(one.Applied() == "0 counted 1");
  other.Tick(0);  // again, as after a new link
  CHECK(other.Applied() == "0 counted 1");
  for (Reader* rank : {&one, &other}) rank->Tick(1, {.base = 1});
  for (Reader* rank : {&one, &other}) CHECK(rank->Applied() == "1 counted 2");
  one.Pull(4, 2);
  CHECK(one.Value(4, 2) == Values(4, 3));
}

TEST_CASE("store: under ssp a rank that is too far ahead waits until the slowest has come") {
  TestServer server(2);
  Reader fast(server, 0), slow(server, 1);
  for (Reader* rank : {&fast, &slow}) rank->Opened(Spec("ssp:s=1"), 4);
  for (uint32_t clock = 0; clock < 2; ++clock) {
    fast.Push(Values(4, 1), clock, {.base = clock});
    fast.Applied();
  }
  fast.Pull(4, 2);
  CHECK(fast.HearsNothing());
  slow.Pull(4, 0);
  CHECK(slow.Value(4, 2) == Values(4, 2));
  slow.Push(Values(4, 10), 0, {.base = 2});
  CHECK(fast.Value(4, 3) == Values(4, 12));
}

TEST_CASE("store: under k_of_n the grace is kept, late ones are told so, and its timer makes the version") {
  TestServer server(3);
  Reader one(server, 0), two(server, 1), three(server, 2);
  const std::string spec = Spec("k_of_n:grace=0.05,k=2,late=drop,max_age=inf");
  for (Reader* rank : {&one, &two, &three}) rank->Opened(spec, 4);
  one.Push(Values(4, 1), 0);
  two.Push(Values(4, 2), 0);
  CHECK(one.Applied() == "0 counted 1");  // by the clock: nothing more has come
  CHECK(two.Applied() == "0 counted 1");
  CHECK(three.CutOff() == "0 after 0");
  three.Push(Values(4, 4), 0);
  CHECK(three.Applied() == "0 late 1");
  three.Pull(4, 1);
  CHECK(three.Value(4, 1) == Values(4, 3));
}

TEST_CASE("store: who is behind is cut off, and its blocks are in the version that is open, the rest in the next") {
  TestServer server(3);
  Reader one(server, 0), two(server, 1);
  const std::string spec = Spec("k_of_n:grace=30,k=2,late=next,max_age=inf");
  const Note block = {.bits = kPartial};
  for (Reader* rank : {&one, &two}) rank->Opened(spec, 4);
  one.Push(Values(4, 1), 0);
  two.Push(Values(4, 2), 0);
  {
    Reader three(server, 2);
    three.Opened(spec, 4);  // is told as soon as it uses the key
    CHECK(three.CutOff() == "0 after 0");
  }
  Reader three(server, 2);
  three.Opened(spec, 4);  // and again on a new link
  CHECK(three.CutOff() == "0 after 0");
  three.Push(Values(4, 4), 0, block);
  for (Reader* rank : {&one, &two, &three}) CHECK(rank->Applied() == "0 counted 1");
  one.Push(Values(4, 10), 1, {.base = 1});
  CHECK(one.HearsNothing());
  three.Push(Values(4, 8), 1);  // the rest of it counts as one that has finished
  CHECK(two.CutOff() == "1 after 1");
  CHECK(three.HearsNothing());
  two.Push(Values(4, 20), 1, {.base = 1});
  for (Reader* rank : {&one, &two, &three}) CHECK(rank->Applied() == "1 counted 2");
  one.Pull(4, 2);
  CHECK(one.Value(4, 2) == Values(4, 45));
}

TEST_CASE(
    "store: over a new link a contribution goes on where it was, and one that was counted is only answered again") {
  TestServer server(1);
  const Values values = Counting(1000);
  {
    Reader rank(server, 0);
    rank.Opened(Spec("asp"), 1000);
    rank.Push(values, 0);
    rank.Applied();
    rank.Push(values, 1, {.base = 1}, true, 0, 300);
    rank.Pull(1000, 0);  // its answer says that all before it was handled
    rank.Value(1000, 1);
  }
  Reader rank(server, 0);
  const Header opened = rank.Opened(Spec("asp"), 1000).header;
  CHECK(opened.offset == 1);
  CHECK(opened.round == 1);
  rank.Push(values, 0, {}, true, 0, 10);
  CHECK(rank.Applied() == "0 counted 1");
  rank.link().Send(rank.Of(FrameType::kResume, 1000, 1));
  CHECK(rank.Next(FrameType::kResumed).header.offset == 1200);
  rank.Push(values, 1, {}, true, 300, 1000);
  CHECK(rank.Applied() == "1 counted 2");
  rank.Pull(1000, 2);
  CHECK(rank.Value(1000, 2) == Times(values, 2));
}

TEST_CASE("store: values are read through filters, as one payload of a version, whole") {
  TestServer server(2);
  Reader one(server, 0), other(server, 1);
  const std::string spec = Spec("asp") + "\nfilters float:bytes=1";
  for (Reader* rank : {&one, &other}) rank->Opened(spec, 100);
  std::vector<std::byte> payloads[2];
  for (Reader* rank : {&one, &other}) {
    rank->Pull(100, 0);
    const Message value = rank->Next(FrameType::kValue);
    CHECK(value.header.total == 2 * 4 + 100);  // least and greatest, and a byte each
    CHECK(value.header.root == 0);
    payloads[rank == &other] = value.payload;
  }
  CHECK(payloads[0] == payloads[1]);
  one.Pull(100, 0, 0, 0);  // it has this one
  CHECK(one.Next(FrameType::kValue).header.length == 0);
  one.Pull(100, 0, 0, kNobodys, 50);
  CHECK(one.link().ReceiveError().find("a pull of a part") != std::string::npos);
}

TEST_CASE("store: what is not finite is left out, and its source is told so") {
  TestServer server(1);
  Reader rank(server, 0);
  rank.Opened(Spec("asp"), 2);
  rank.Push({1, std::nanf("")}, 0, {}, false);
  CHECK(rank.Applied() == "0 not finite 1");
  CHECK(rank.Value(2, 1, FrameType::kResult) == Values(2));
}

TEST_CASE("store: a rank that has left is waited for no more") {
  TestServer server(2);
  Reader one(server, 0), other(server, 1);
  for (Reader* rank : {&one, &other}) rank->Opened(Spec("bsp"), 4);
  one.Push(Values(4, 1), 0, {}, false);
  Header goodbye = other.Of(FrameType::kGoodbye, 0);
  goodbye.key = 0;
  other.link().Send(goodbye);
  CHECK(one.Applied() == "0 counted 1");
  CHECK(one.Value(4, 1, FrameType::kResult) == Values(4, 1));
}

TEST_CASE("store: a key that all ranks have forgotten is freed") {
  TestServer server(2);
  Reader one(server, 0), other(server, 1);
  for (Reader* rank : {&one, &other}) rank->Opened(Spec("asp"), 1 << 18);
  one.Push(Values(1 << 18, 1), 0);
  CHECK(one.Applied() == "0 counted 1");
  CHECK(server.stats().memory >= 1 << 20);
  for (Reader* rank : {&one, &other}) rank->link().Send(rank->Of(FrameType::kForget, 0));
  REQUIRE(server.HasReceived(5));
  CHECK(one.Opened("", 4).header.offset == 0);  // another key, of the old one's number
}

TEST_CASE("store: a wait that is too long names the rank, the policy and how far each is") {
  ShardWorld world;
  world.stall_warning = 0.1;
  world.stall_timeout = 0.4;
  TestServer server(2, 0, world);
  Reader fast(server, 0), slow(server, 1);
  for (Reader* rank : {&fast, &slow}) rank->Opened(Spec("ssp:s=0"), 4);
  fast.Push(Values(4, 1), 0);
  fast.Applied();
  fast.Pull(4, 1);
  const auto warning = fast.link().Receive();
  REQUIRE(warning.has_value());
  CHECK(int(warning->header.type) == int(FrameType::kWarning));
  const std::string error = slow.link().ReceiveError();
  CHECK(error.find("store key 9 (ssp:s=0): rank 0 waits to read") != std::string::npos);
  CHECK(error.find("contributions that have come, by rank: 1, 0, for ") != std::string::npos);
}

TEST_CASE("store: who waits for a first value, or for what a contribution is part of, is told so, and the job ends") {
  ShardWorld world;
  world.stall_warning = 0.1;
  world.stall_timeout = 0.4;
  TestServer server(2, 0, world);
  Reader one(server, 0), other(server, 1);
  std::string wanted;
  SUBCASE("a first value") {
    one.Spec(Spec("asp"), 4, 1);
    wanted = "store key 9: rank 0 waits for the first value, which rank 1 is to set, for ";
  }
  SUBCASE("a contribution") {
    for (Reader* rank : {&one, &other}) rank->Opened(Spec("bsp"), 4);
    one.Push(Values(4, 1), 0);
    wanted =
        "store key 9 (bsp): rank 0 waits for more contributions, to make version 1; contributions that have come,"
        " by rank: 1, 0, for ";
  }
  SUBCASE("another policy") {
    for (Reader* rank : {&one, &other}) rank->Opened(Spec("bsp"), 4);
    one.Change(Spec("asp"), 4, 1);
    wanted = "store key 9 (bsp): rank 0 waits until all ranks have changed it to asp; ranks that have not: 1, for ";
  }
  const auto warning = one.link().Receive();
  REQUIRE(warning.has_value());
  CHECK(int(warning->header.type) == int(FrameType::kWarning));
  CHECK(other.link().ReceiveError().find(wanted) != std::string::npos);
}

TEST_CASE("store: a key that all but who has left have forgotten is freed, whatever was half there") {
  TestServer server(2);
  Reader one(server, 0), other(server, 1);
  for (Reader* rank : {&one, &other}) rank->Opened(Spec("asp"), 4);
  other.Push(Values(4, 1), 0, {}, true, 0, 2);
  const Header forget = one.Of(FrameType::kForget, 0);
  SUBCASE("first the others, then it leaves") {
    one.link().Send(forget);
    REQUIRE(server.HasReceived(4));
    other.link().Send(other.Of(FrameType::kGoodbye, 0));
    REQUIRE(server.HasReceived(5));
  }
  SUBCASE("first it leaves") {
    other.link().Send(other.Of(FrameType::kGoodbye, 0));
    REQUIRE(server.HasReceived(4));
    one.link().Send(forget);
    REQUIRE(server.HasReceived(5));
  }
  CHECK(one.Opened(Spec("ssp:s=9"), 4).header.offset == 0);  // another key, of the old one's number
}

TEST_CASE("store: a contribution that a partial round leaves over ends no job") {
  ShardWorld world;
  world.stall_warning = 0.1;
  world.stall_timeout = 0.3;
  TestServer server(2, 0, world);
  Reader one(server, 0), other(server, 1);
  for (Reader* rank : {&one, &other}) rank->Opened(Spec("k_of_n:grace=0,k=2,late=next,max_age=inf"), 4);
  one.Push(Values(4, 1), 0);
  CHECK_FALSE(one.link().Receive(1.0).has_value());
  other.Push(Values(4, 1), 0);
  CHECK(one.Applied() == "0 counted 1");
}

TEST_CASE("store: ranks that disagree about a key are both named, with both texts") {
  TestServer server(2);
  Reader one(server, 0), other(server, 1);
  one.Opened(Spec("ssp:s=3"), 4);
  other.Spec(Spec("ssp:s=4"), 4);
  const std::string error = one.link().ReceiveError();
  for (const char* part : {"store key 9", "rank 0 has", "ssp:s=3", "rank 1 has", "ssp:s=4"})
    CHECK(error.find(part) != std::string::npos);
}

TEST_CASE("store: another policy is in force once all ranks have asked for it, for what waits, too") {
  TestServer server(3);
  Reader one(server, 0), other(server, 1);
  {
    Reader third(server, 2);
    for (Reader* rank : {&one, &other, &third}) rank->Opened(Spec("bsp"), 4);
    third.link().Send(third.Of(FrameType::kGoodbye, 0));  // who has left isn't asked
    REQUIRE(server.HasReceived(4));
  }
  one.Push(Values(4, 1), 0);
  one.Change(Spec("asp"), 4, 1);
  one.Change(Spec("asp"), 4, 1);  // again, as on a new link
  CHECK(one.HearsNothing());
  other.Push(Values(4, 1), 0);
  CHECK(one.Applied() == "0 counted 1");
  CHECK(other.Applied() == "0 counted 1");
  other.Push(Values(4, 1), 1, {.base = 1});
  CHECK(other.Applied() == "1 counted 2");  // nobody waits for who will make none
  CHECK(one.HearsNothing());
  other.Change(Spec("asp"), 4, 1);
  for (Reader* rank : {&one, &other}) {
    const Header changed = rank->Next(FrameType::kOpened).header;
    CHECK(changed.aux == kChanged);
    CHECK(changed.offset == 2);
    CHECK(changed.round == (rank == &one ? 1 : 2));
  }
  one.Push(Values(4, 1), 1, {.base = 1});
  CHECK(one.Applied() == "1 counted 3");
  CHECK(one.Opened(Spec("bsp"), 4).header.aux == kHasValue);  // who has not heard of it, on a new link
  one.Change(Spec("asp"), 4, 1);
  CHECK(one.Next(FrameType::kOpened).header.aux == kChanged);
}

TEST_CASE("store: who has missed the answer to one change hears of it though others want the next") {
  TestServer server(2);
  Reader one(server, 0), other(server, 1);
  for (Reader* rank : {&one, &other}) rank->Opened(Spec("bsp"), 4);
  for (Reader* rank : {&one, &other}) rank->Change(Spec("asp"), 4, 1);
  CHECK(one.Next(FrameType::kOpened).header.aux == kChanged);
  one.Change(Spec("ssp:s=1"), 4, 2);
  CHECK(other.Next(FrameType::kOpened).header.aux == kChanged);
  other.Change(Spec("asp"), 4, 1);  // as on a new link
  CHECK(other.Next(FrameType::kOpened).header.aux == kChanged);
  other.Change(Spec("ssp:s=1"), 4, 2);
  for (Reader* rank : {&one, &other}) CHECK(rank->Next(FrameType::kOpened).header.aux == kChanged);
}

TEST_CASE("store: ranks that want different policies are both named") {
  TestServer server(2);
  Reader one(server, 0), other(server, 1);
  for (Reader* rank : {&one, &other}) rank->Opened(Spec("bsp"), 4);
  one.Change(Spec("ssp:s=3"), 4, 1);
  std::vector<const char*> parts = {"rank 0 wants", "rank 1 wants", "ssp:s=4"};
  SUBCASE("policies") {
    other.Change(Spec("ssp:s=4"), 4, 1);
    parts.push_back("ssp:s=3");
  }
  // Refused whichever comes first; if it does, rank 0 still wants what the key was opened with.
  SUBCASE("more than the policy") {
    other.Change(Spec("ssp:s=4", "mean:age=none,damp=none"), 4, 1);
    parts.insert(parts.end(), {"combine sum", "combine mean"});
  }
  const std::string error = one.link().ReceiveError();
  CAPTURE(error);
  for (const char* part : parts) CHECK(error.find(part) != std::string::npos);
}

TEST_CASE("store: two rates for one version are refused") {
  TestServer server(2);
  Reader one(server, 0), other(server, 1);
  for (Reader* rank : {&one, &other}) rank->Opened(Spec("bsp"), 4);
  one.Push(Values(4, 1), 0, {.lr = 0.5F});
  other.Push(Values(4, 1), 0, {.lr = 0.25F});
  const std::string error = one.link().ReceiveError();
  CHECK(error.find("lr=0.25") != std::string::npos);
  CHECK(error.find("lr=0.5") != std::string::npos);
}

TEST_CASE("store: frames out of place fail the job, and say which") {
  using Wrong = void (*)(Reader&);
  const std::pair<Wrong, const char*> wrongs[] = {
      {[](Reader& rank) { rank.Spec("policy asp\nupdate add", 4); }, "no line \"combine "},
      {[](Reader& rank) { rank.Spec(Spec("never"), 4); }, "never"},
      {[](Reader& rank) { rank.Spec("", 4); }, "not announced"},
      {[](Reader& rank) { rank.Spec(Spec("ssp:s=1", "sum:age=none,damp=none", "none"), 4); },
       "update none gives what a round has combined, and ssp has no rounds"},
      {[](Reader& rank) { rank.Spec(Spec("asp"), 0); }, "whole elements"},
      {[](Reader& rank) { rank.Spec(Spec("asp"), 4, 1); }, "no such rank"},
      {[](Reader& rank) { rank.Push(Values(4), 0); }, "no store key"},
      {[](Reader& rank) { rank.Change(Spec("asp"), 4, 0); }, "without a value can't be changed"},
      {[](Reader& rank) { rank.Opened(Spec("bsp"), 4), rank.Change(Spec("ssp:s=1", "sum:age=none,damp=exp"), 4, 1); },
       "wants"},
      {[](Reader& rank) { rank.Opened(Spec("asp"), 4), rank.Push(Values(5), 0); }, "another length"},
      {[](Reader& rank) { rank.Opened(Spec("asp"), 4), rank.Push(Values(4), 1); }, "contribution 1 has come after 0"},
      {[](Reader& rank) { rank.Opened(Spec("asp"), 4), rank.Push(Values(4), 0, {}, true, 2); }, "without its first"},
      {[](Reader& rank) { rank.Opened(Spec("asp"), 4), rank.Tick(1); }, "contribution 1 has come after 0"},
      {[](Reader& rank) { rank.Opened(Spec("asp"), 4, 0), rank.Tick(0); }, "no value yet"},
      {[](Reader& rank) { rank.Opened(Spec("asp"), 4), rank.Push(Values(4), 0, {.base = 3}); },
       "computed on version 3"},
      {[](Reader& rank) { rank.Opened(Spec("asp"), 4), rank.Push(Values(4), 0, {.function = 1}); }, "can't do"},
      {[](Reader& rank) { rank.Opened(Spec("asp"), 4), rank.Push(Values(4), 0, {.weight = -1}); }, "weight"},
      {[](Reader& rank) { rank.Opened(Spec("asp"), 4), rank.Push(Values(4), 0, {.bits = kInitial}); }, "has a value"},
      {[](Reader& rank) { rank.Opened(Spec("asp"), 4, 0), rank.Push(Values(4), 0); }, "no value yet"},
      {[](Reader& rank) { rank.Opened(Spec("asp"), 4, 0), rank.Pull(4, 0); }, "isn't"},
      {[](Reader& rank) { rank.Opened(Spec("asp"), 4), rank.Pull(5, 0); }, "isn't"},
      {[](Reader& rank) { rank.Opened(Spec("asp"), 4), rank.Push(Values(4), 0, {}, true, 0, 9, 7); }, "has heard"},
  };
  for (const auto& one : wrongs) {
    const char* const says = one.second;
    CAPTURE(says);
    TestServer server(1);
    Reader rank(server, 0);
    one.first(rank);
    const std::string error = rank.link().ReceiveError();
    CAPTURE(error);
    CHECK(error.find("rank 0") != std::string::npos);
    CHECK(error.find(says) != std::string::npos);
  }
}

TEST_CASE("store: no more memory than the limit") {
  TestServer server(1, 3 << 20);
  Reader rank(server, 0);
  rank.Spec(Spec("asp", "sum:age=none,damp=none", "adam:beta1=0.9,beta2=0.999,eps=1e-08,lr=0.001,weight_decay=0.0"),
            1 << 18);
  CHECK(rank.link().ReceiveError().find("memory") != std::string::npos);
}

TEST_CASE("store: an answer names all whose contributions are in the version, also when it is given again") {
  TestServer server(4);
  Reader two(server, 1), third(server, 2), bad(server, 3);
  const std::string spec = Spec("k_of_n:grace=0,k=3,late=drop,max_age=inf");
  const auto told = [](Reader& rank) {
    const Message message = rank.Next(FrameType::kApplied);
    return DecodeRanks(message.payload);
  };
  const std::vector<uint32_t> both = {0, 2}, nobody;
  {
    Reader one(server, 0);
    for (Reader* rank : {&one, &two, &third, &bad}) rank->Opened(spec, 1);
    one.Push({1}, 0);
    bad.Push({std::nanf("")}, 0);
    third.Push({1}, 0);
    for (Reader* rank : {&one, &third, &bad}) CHECK(told(*rank) == both);
    two.Push({1}, 0);
    CHECK(told(two) == nobody);  // late
  }
  Reader again(server, 0);
  again.Opened(spec, 1);
  again.Push({1}, 0);
  CHECK(told(again) == both);
}

// Of a server's only key.
RankTotals FiguresOf(TestServer& server, uint32_t rank) {
  const auto tensors = (*server).shards()[0]->figures().Read();
  REQUIRE(tensors.size() == 1);
  CHECK(tensors[0].tensor == kKey >> 16);
  CHECK(tensors[0].keys == 1);
  return tensors[0].ranks[rank];
}

double Waited(const RankTotals& totals, Awaited what) { return totals.waited[static_cast<size_t>(what)]; }
double WaitedFor(const RankTotals& totals, Awaited what) { return totals.awaited[static_cast<size_t>(what)]; }

TEST_CASE("store: each contribution is counted once, by what became of it, however often it comes") {
  TestServer server(2);
  const std::string spec = Spec("k_of_n:grace=0,k=1,late=next,max_age=1");
  Reader other(server, 1);
  {
    Reader one(server, 0);
    for (Reader* rank : {&one, &other}) rank->Opened(spec, 2);
    one.Push({1, 1}, 0);
    CHECK(one.Applied() == "0 counted 1");
    one.Push({1, std::nanf("")}, 1, {.base = 1});
    CHECK(one.Applied() == "1 not finite 2");
    one.Push({1, 1}, 2, {.base = 1});
    CHECK(one.Applied() == "2 counted 3");
    other.Push({1, 1}, 0);  // two too old
    CHECK(other.Applied() == "0 late 3");
  }
  Reader again(server, 0);
  again.Opened(spec, 2);
  again.Push({1, 1}, 1, {.base = 1});
  CHECK(again.Applied() == "1 not finite 2");
  again.Push({1, 1}, 2, {.base = 1});
  CHECK(again.Applied() == "2 counted 3");
  const RankTotals one = FiguresOf(server, 0), two = FiguresOf(server, 1);
  CHECK(one.clock == 3);
  CHECK(one.counted == 2);
  CHECK(one.not_finite == 1);
  CHECK(one.late == 0);
  CHECK(one.held == 0);
  CHECK(one.ages == 1);
  CHECK(one.oldest == 1);
  CHECK(two.clock == 1);
  CHECK(two.late == 1);
  CHECK(two.counted == 0);
  CHECK(two.oldest == 0);
}

TEST_CASE("store: what is held is counted when it is, and again in the end; its wait is that for others") {
  TestServer server(2);
  Reader one(server, 0), other(server, 1);
  for (Reader* rank : {&one, &other}) rank->Opened(Spec("bsp"), 2);
  one.Push({1, 1}, 0);
  one.Push({1, 1}, 1);
  CHECK(one.Applied() == "1 held 0");
  CHECK(one.HearsNothing());  // a tenth of a second
  for (uint32_t clock = 0; clock < 2; ++clock) other.Push({1, 1}, clock);
  CHECK(one.Applied() == "0 counted 1");
  CHECK(one.Applied() == "1 counted 2");
  for (const char* said : {"0 counted 1", "1 counted 2"}) CHECK(other.Applied() == said);
  const RankTotals fast = FiguresOf(server, 0), slow = FiguresOf(server, 1);
  CHECK(fast.held == 1);
  CHECK(fast.counted == 2);
  CHECK(fast.ages == 1);
  CHECK(slow.held == 0);
  CHECK(Waited(fast, Awaited::kVersion) >= 0.2);  // of both
  CHECK(WaitedFor(slow, Awaited::kVersion) == Waited(fast, Awaited::kVersion));
  CHECK(Waited(slow, Awaited::kVersion) == 0);
  CHECK(Waited(fast, Awaited::kReading) == 0);
}

TEST_CASE("store: the time for which a rank may not read is that of the rank that it has waited for") {
  TestServer server(3);
  Reader fast(server, 0), slow(server, 1), third(server, 2);
  for (Reader* rank : {&fast, &slow, &third}) rank->Opened(Spec("ssp:s=0"), 4);
  third.Push(Values(4, 1), 0);
  third.Applied();
  fast.Pull(4, 1);  // its own is not here yet, which is nobody's fault
  CHECK(fast.HearsNothing());
  const auto came = Clock::now();
  fast.Push(Values(4, 1), 0);
  fast.Applied();
  CHECK(fast.HearsNothing());
  slow.Push(Values(4, 1), 0, {.base = 2});
  fast.Value(4, 3);
  const std::chrono::duration<double> since = Clock::now() - came;
  const double waited = Waited(FiguresOf(server, 0), Awaited::kReading);
  CHECK(waited >= 0.1);
  CHECK(waited <= since.count());
  CHECK(WaitedFor(FiguresOf(server, 1), Awaited::kReading) == waited);
  CHECK(WaitedFor(FiguresOf(server, 2), Awaited::kReading) == 0);
  CHECK(Waited(FiguresOf(server, 1), Awaited::kReading) == 0);
}

TEST_CASE("store: a wait for a first value is the root's, one for a policy that of who has asked for it last") {
  TestServer server(2);
  Reader one(server, 0), other(server, 1);
  one.Spec(Spec("bsp"), 2, 1);
  CHECK(one.HearsNothing());
  CHECK(other.Opened(Spec("bsp"), 2, 1).header.aux == kLacksValue);
  other.Push({1, 1}, 0, {.bits = kLastBlock | kInitial});
  one.Next(FrameType::kOpened);
  CHECK(Waited(FiguresOf(server, 0), Awaited::kValue) >= 0.1);
  CHECK(WaitedFor(FiguresOf(server, 1), Awaited::kValue) == Waited(FiguresOf(server, 0), Awaited::kValue));
  one.Change(Spec("asp"), 2, 1);
  CHECK(one.HearsNothing());
  other.Change(Spec("asp"), 2, 1);
  one.Next(FrameType::kOpened);
  CHECK(Waited(FiguresOf(server, 0), Awaited::kPolicy) >= 0.1);
  CHECK(WaitedFor(FiguresOf(server, 1), Awaited::kPolicy) == Waited(FiguresOf(server, 0), Awaited::kPolicy));
  CHECK(Waited(FiguresOf(server, 1), Awaited::kPolicy) == 0);
}

TEST_CASE("store: the partitions of a tensor are counted together, and no more once they are forgotten") {
  StoreFigures figures;
  KeyFigures& first = figures.Open((7ull << 16) | 0, 2);
  KeyFigures& second = figures.Open((7ull << 16) | 1, 2);
  figures.Open(8ull << 16, 2);
  for (int time = 0; time < 3; ++time) first.Settle(0, Applied::kCounted, 2);
  second.Settle(0, Applied::kCounted, 5);
  second.Settle(0, Applied::kLate, 0);
  first.Wait(0, Awaited::kReading, 1.5, 1);
  second.Wait(0, Awaited::kReading, 1.0, 1);
  second.Wait(0, Awaited::kReading, 0.25, kNoRank);
  const auto tensors = figures.Read();
  REQUIRE(tensors.size() == 2);
  const RankTotals& one = tensors[0].ranks[0];
  CHECK(tensors[0].tensor == 7);
  CHECK(tensors[0].keys == 2);
  CHECK(one.clock == 2);
  CHECK(one.counted == 4);
  CHECK(one.late == 1);
  CHECK(one.ages == 11);
  CHECK(one.oldest == 5);
  CHECK(Waited(one, Awaited::kReading) == 1.5);
  CHECK(WaitedFor(tensors[0].ranks[1], Awaited::kReading) == 1.5);
  figures.Close((7ull << 16) | 0);
  CHECK(figures.Read()[0].keys == 1);
  CHECK(figures.Read()[0].ranks[0].clock == 2);
  figures.Clear();
  CHECK(figures.Read().empty());
}

}  // namespace byteps_like::testing
