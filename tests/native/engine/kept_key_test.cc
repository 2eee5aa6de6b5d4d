// A store key as a worker uses it: every frame it makes, in order, on one link and on the next, and what it refuses.
#include "csrc/engine/keeping/kept_key.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/native/engine/keep_told.h"

namespace byteps_like::testing {
namespace {

constexpr uint32_t kBytes = 40;

// One key, and the server's end of its link.
struct OneKey {
  explicit OneKey(bool root = false, bool opened = true)
      : key({.key = 7, .dtype = DType::kFloat32, .bytes = kBytes, .width = 2, .root = 3, .text = 5}, told) {
    key.Open(root ? memory : nullptr, Ticket(0));
    if (!opened) return;
    CHECK(Sent() == "spec");
    Opened(0);
    CHECK(told.found.contains(0));
  }

  KeepTicket Ticket(size_t number) { return {operation, number}; }
  void Push(size_t number, uint64_t order = 0) {
    key.Push({.data = memory, .note = {.base = 9}, .order = order, .ticket = Ticket(number)});
  }
  void Read(size_t number, uint64_t order = 0, uint32_t least = 0) {
    key.Read({.out = out, .least = least, .order = order, .ticket = Ticket(number)});
  }

  // All that it has to send, in words: "note CLOCK", "bytes CLOCK OFFSET+LENGTH", "pull CLOCK", "spec".
  std::string Sent() {
    std::string words;
    while (key.next()) {
      Outgoing next;
      key.Next(kPiece, next);
      last = next.header;
      CHECK(next.header.key == 7);
      CHECK(next.header.total == kBytes);
      words += (words.empty() ? "" : ", ") + Describe(next);
    }
    return words;
  }

  std::string Describe(const Outgoing& next) const {
    const Header& header = next.header;
    const std::string clock = std::to_string(header.round);
    if (header.type == FrameType::kSpec) {
      const std::string text = header.aux == 5 ? "" : " " + std::to_string(header.aux);
      return (header.round == kChanges ? "change" : "spec") + text;
    }
    if (header.type == FrameType::kPull) return "pull " + clock;
    CHECK(header.type == FrameType::kPush);
    CHECK((header.flags & kSilent) != 0);
    if ((header.flags & kNoted) == 0) {
      CHECK(next.payload == memory + header.offset);
      return "bytes " + clock + " " + std::to_string(header.offset) + "+" + std::to_string(header.length);
    }
    CHECK(header.length == kNoteBytes);
    auto note = DecodeNote(std::span<const std::byte, kNoteBytes>(next.payload, kNoteBytes));
    CHECK(note.ok());
    return ((note->bits & kInitial) != 0 ? "first " : "note ") + clock;
  }

  Status Came(FrameType type, uint32_t round, uint32_t aux, uint64_t offset = 0, uint32_t root = 0,
              uint32_t length = 0) {
    Header header;
    header.type = type;
    header.key = 7;
    header.round = round;
    header.aux = aux;
    header.offset = offset;
    header.root = root;
    header.total = kBytes;
    header.length = length;
    place = type == FrameType::kApplied || length == 0 ? nullptr : key.PlaceFor(header);
    return key.OnFrame(header, payload.data());
  }
  void Opened(uint32_t clock) { CHECK(Came(FrameType::kOpened, clock, 0).ok()); }
  Status Applied(uint32_t clock, byteps_like::Applied what = byteps_like::Applied::kCounted, uint64_t version = 1) {
    return Came(FrameType::kApplied, clock, static_cast<uint32_t>(what), version);
  }
  Status Value(uint32_t clock, uint64_t offset, uint32_t length, uint32_t version = 1) {
    return Came(FrameType::kValue, clock, 0, offset, version, length);
  }

  Told told;
  std::shared_ptr<KeepOperation> operation = std::make_shared<KeepOperation>();
  std::byte memory[kBytes] = {}, out[kBytes] = {};
  KeptKey key;
  Header last;
  std::vector<std::byte> payload;    // of frames that come
  const std::byte* place = nullptr;  // of the frame that came last
};

const std::string kWhole = "note 0, bytes 0 0+16, bytes 0 16+16, bytes 0 32+8";

}  // namespace

TEST_CASE("kept key: says what it is, and numbers what it was given meanwhile once it is open") {
  OneKey one(false, false);
  one.Push(1);
  one.Read(2);
  CHECK(one.Sent() == "spec");
  CHECK(one.last.offset == 2);
  CHECK(one.last.root == 3);
  CHECK(one.last.aux == 5);
  CHECK(one.told.found.empty());
  one.Opened(6);
  CHECK(one.told.found.at(0).first == Code::kOk);
  CHECK(one.Sent() == "note 6, bytes 6 0+16, bytes 6 16+16, bytes 6 32+8, pull 7");
}

TEST_CASE("kept key: who sets the first value sends it, and asks again") {
  OneKey one(true, false);
  one.memory[kBytes - 1] = std::byte{1};
  CHECK(one.Sent() == "spec");
  CHECK(one.Came(FrameType::kOpened, 0, 1).ok());
  CHECK(one.Sent() == "first 0, bytes 0 0+16, bytes 0 16+16, bytes 0 32+8, spec");
  CHECK(one.told.found.empty());
  SUBCASE("and is told that it is there") {
    one.Opened(0);
    CHECK(one.told.found.at(0).first == Code::kOk);
  }
  SUBCASE("and sends it again where the link is lost before") {
    one.key.OnNewLink();
    CHECK(one.Sent() == "spec");
    CHECK(one.Came(FrameType::kOpened, 0, 1).ok());
    CHECK(one.Sent() == "first 0, bytes 0 0+16, bytes 0 16+16, bytes 0 32+8, spec");
  }
}

TEST_CASE("kept key: that a first value is zeros is said, also over another link") {
  OneKey one(true, false);
  CHECK(one.Sent() == "spec");
  CHECK(one.last.round == 0);
  CHECK(one.Came(FrameType::kOpened, 0, 1).ok());
  CHECK(one.Sent() == "spec");
  CHECK(one.last.round == kIsZeros);
  one.key.OnNewLink();
  CHECK(one.Sent() == "spec");
  CHECK(one.last.round == kIsZeros);
  one.Opened(0);
  CHECK(one.told.found.at(0).first == Code::kOk);
  one.key.OnNewLink();
  CHECK(one.Sent() == "spec");
}

TEST_CASE("kept key: who should set a first value, and has none, is told") {
  OneKey one(false, false);
  CHECK(one.Sent() == "spec");
  const Status refused = one.Came(FrameType::kOpened, 0, 1);
  CHECK(refused.code() == Code::kInvalid);
  CHECK(refused.message() == "store key 7 has no value yet: this rank is to set it, but gives none");
}

TEST_CASE("kept key: opening it twice costs one frame") {
  OneKey one(false, false);
  one.key.Open(nullptr, one.Ticket(1));
  CHECK(one.Sent() == "spec");
  one.Opened(0);
  one.key.Open(nullptr, one.Ticket(2));
  CHECK(one.Sent().empty());
  CHECK(one.told.found.size() == 3);
}

TEST_CASE("kept key: frames follow the order of the calls, and notes say what is known") {
  OneKey one;
  one.Push(1, 1);
  one.Push(2, 2);
  one.Read(3, 3);
  one.Push(4, 4);
  CHECK(one.Sent() ==
        kWhole + ", note 1, bytes 1 0+16, bytes 1 16+16, bytes 1 32+8, pull 2, note 2, bytes 2 0+16, bytes 2 16+16, " +
            "bytes 2 32+8");
  CHECK(one.key.unanswered() == 3 * kBytes);
  CHECK(one.Applied(1, Applied::kLate, 4).ok());
  CHECK(one.Applied(0).ok());
  CHECK(one.told.found.at(2).second.applied == Applied::kLate);
  CHECK(one.told.found.at(2).second.version == 4);
  one.Push(5, 5);
  Outgoing note;
  one.key.Next(kPiece, note);
  CHECK(note.header.aux == 2);  // what became of those before is known
  CHECK(one.key.unanswered() == 2 * kBytes);
}

TEST_CASE("kept key: what is held is not settled") {
  OneKey one;
  one.Push(1);
  CHECK(one.Sent() == kWhole);
  CHECK(one.Applied(0, Applied::kHeld).ok());
  CHECK(one.key.busy());
  CHECK(one.Applied(0, Applied::kCounted, 3).ok());
  CHECK(one.told.found.at(1).second.version == 3);
  CHECK(!one.key.busy());
  CHECK(one.Applied(0).ok());  // again: nobody waits for it
}

TEST_CASE("kept key: of reads with as many contributions before them there is one at a time") {
  OneKey one;
  one.Read(1, 1, 4);
  one.Read(2, 2);
  one.Push(3, 3);
  one.Read(4, 4);
  CHECK(one.Sent() == "pull 0, " + kWhole + ", pull 1");
  CHECK(one.Value(1, 0, kBytes, 2).ok());
  CHECK(one.place == one.out);
  CHECK(one.told.found.at(4).second.version == 2);
  CHECK(one.Sent().empty());
  CHECK(one.Value(0, 0, 24, 4).ok());
  CHECK(one.Value(0, 24, 16, 4).ok());
  CHECK(one.place == one.out + 24);
  CHECK(one.told.found.at(1).second.version == 4);
  CHECK(one.Sent() == "pull 0");
  CHECK(one.Value(5, 0, kBytes).ok());  // which nobody waits for
  CHECK(one.place == kAnywhere);
}

TEST_CASE("kept key: a new link hears of all that is not settled, and of what the server has only its notes") {
  OneKey one;
  for (size_t number = 1; number <= 3; ++number) one.Push(number, number);
  one.Read(4, 4);
  one.Sent();
  CHECK(one.Applied(0).ok());
  CHECK(one.Value(3, 0, 16).ok());
  one.key.OnNewLink();
  CHECK(one.key.unanswered() == 0);
  CHECK(one.Sent() == "spec");
  one.Opened(2);
  CHECK(one.Sent() == "note 1, note 2, bytes 2 0+16, bytes 2 16+16, bytes 2 32+8, pull 3");
  CHECK(one.Applied(1).ok());
  CHECK(one.Applied(2).ok());
  CHECK(one.Value(3, 0, kBytes, 2).ok());
  CHECK(one.told.found.size() == 5);
  CHECK(!one.key.busy());
}

TEST_CASE("kept key: a change goes after what was called before, and its text holds on new links") {
  OneKey one;
  one.Push(1);
  one.Read(2, 1);
  one.key.Change(6, one.Ticket(3));
  CHECK(one.Sent() == kWhole + ", pull 1, change 6");
  CHECK(one.key.busy());
  one.key.OnNewLink();  // before all ranks have asked
  CHECK(one.Sent() == "spec");
  one.Opened(1);
  CHECK(one.Sent() == "note 0, pull 1, change 6");
  CHECK(!one.told.found.contains(3));
  CHECK(one.Came(FrameType::kOpened, 1, kChanged).ok());
  CHECK(one.told.found.at(3).first == Code::kOk);
  one.key.OnNewLink();
  CHECK(one.Sent() == "spec 6");
  one.key.Change(6, one.Ticket(4));  // as it is
  CHECK(one.told.found.at(4).first == Code::kOk);
}

TEST_CASE("kept key: one change at a time") {
  OneKey one;
  one.key.Change(6, one.Ticket(1));
  one.key.Change(7, one.Ticket(2));
  CHECK(one.told.found.at(2).first == Code::kInvalid);
  one.key.Change(6, one.Ticket(3));
  CHECK(one.Sent() == "change 6");
  one.key.End(Status(Code::kClosed, "the end"));
  CHECK(one.told.found.at(1).first == Code::kClosed);
  CHECK(one.told.found.at(3).first == Code::kClosed);
}

TEST_CASE("kept key: an answer names those whose contributions are in the version, if there are others") {
  OneKey one;
  one.Push(1);
  one.Push(2);
  one.Sent();
  one.payload = {std::byte{5}, std::byte{2}};
  CHECK(one.Came(FrameType::kApplied, 0, 0, 1, 0, 2).ok());
  CHECK(one.told.found.at(1).second.contributors == std::vector<uint32_t>{0, 2, 9});
  CHECK(one.Applied(1).ok());
  CHECK(one.told.found.at(2).second.contributors.empty());
}

TEST_CASE("kept key: it is cut off until the contribution that the server lacks is on its way") {
  OneKey one(false, false);
  one.Push(1);
  one.Sent();
  one.Opened(4);
  one.Sent();
  CHECK(one.Came(FrameType::kCutoff, 4, 0, 9).ok());  // which has crossed contribution 4
  CHECK(one.told.cut_off.empty());
  CHECK(one.Came(FrameType::kCutoff, 5, 0, 9).ok());
  CHECK(one.Came(FrameType::kCutoff, 5, 0, 9).ok());  // again, as after a new link
  CHECK(one.told.cut_off[7] == std::vector<bool>{true});
  one.Push(2);
  CHECK(one.told.cut_off[7] == std::vector<bool>{true, false});
}

TEST_CASE("kept key: what makes no sense is corrupt") {
  OneKey one;
  one.Push(1, 1);
  one.Read(2, 2);
  Outgoing note, first;
  one.key.Next(kPiece, note);
  one.key.Next(kPiece, first);
  CHECK(one.Applied(0).code() == Code::kCorrupt);  // of which two segments are still here
  one.Sent();
  CHECK(one.Came(FrameType::kApplied, 0, 4).code() == Code::kCorrupt);
  CHECK(one.Value(1, 8, 8).code() == Code::kCorrupt);
  CHECK(one.place == kAnywhere);
  CHECK(one.Value(1, 0, 8, 1).ok());
  CHECK(one.Value(1, 8, 8, 2).code() == Code::kCorrupt);  // of another version
  CHECK(one.told.found.size() == 1);
}

TEST_CASE("kept key: the end settles everything once, with its cause") {
  OneKey one(false, false);
  one.Push(1);
  one.Read(2);
  one.key.End(Status(Code::kPeerLost, "gone"));
  CHECK(one.told.found.size() == 3);
  for (const auto& item : one.told.found) CHECK(item.second.first == Code::kPeerLost);
  CHECK(!one.key.busy());
}

}  // namespace byteps_like::testing
