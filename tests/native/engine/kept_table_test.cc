// A table at one shard as a worker uses it: every frame it makes, in order, on one link and on the next; which lists go
// out, and which do not; and what it refuses.
#include "csrc/engine/keeping/kept_table.h"

#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "csrc/kernels/kernels.h"
#include "tests/native/engine/keep_told.h"

namespace byteps_like::testing {
namespace {

constexpr uint32_t kRow = 8;
using Rows = std::shared_ptr<const RowList>;

Rows ListOf(std::vector<uint64_t> ids) { return std::make_shared<const RowList>(ids); }

// One table, and the server's end of its link.
struct OneTable {
  explicit OneTable(bool opened = true, RowNumbers::Limits limits = {})
      : table({.key = 7, .dtype = DType::kFloat32, .bytes = kRow, .width = 2, .text = 5}, told, limits) {
    operation->ranges.resize(20);
    table.Open(nullptr, Ticket(0));
    if (!opened) return;
    CHECK(Sent() == "spec");
    CHECK(Opened(0).ok());
    CHECK(told.found.contains(0));
  }

  KeepTicket Ticket(size_t number) { return {operation, number}; }
  void Push(size_t number, Rows rows, uint64_t order = 0) {
    const auto bytes = static_cast<uint32_t>(rows->ids.size() * table.spec().bytes);
    table.Push({.data = memory,
                .bytes = bytes,
                .rows = std::move(rows),
                .note = {},
                .order = order,
                .ticket = Ticket(number)});
  }
  void Fetch(size_t number, Rows rows, uint64_t order = 0) {
    table.Fetch({.rows = std::move(rows), .out = out, .order = order, .ticket = Ticket(number)});
  }
  void Range(size_t number, uint64_t low, uint64_t high) {
    table.Fetch({.range = {low, high}, .ticket = Ticket(number)});
  }

  // All that it has to send, in words: "keys LIST OFFSET+LENGTH", "note CLOCK LIST", "rows CLOCK OFFSET+LENGTH",
  // "fetch CLOCK LIST", "range CLOCK", "spec".
  std::string Sent() {
    std::string words;
    while (table.next()) {
      Outgoing next;
      table.Next(kPiece, next);
      CHECK(next.header.key == 7);
      CHECK(next.header.dtype == DType::kFloat32);
      words += (words.empty() ? "" : ", ") + Describe(next);
    }
    return words;
  }

  std::string Describe(const Outgoing& next) {
    const Header& header = next.header;
    const std::string clock = " " + std::to_string(header.round), list = " " + std::to_string(header.aux);
    const std::string piece = " " + std::to_string(header.offset) + "+" + std::to_string(header.length);
    switch (header.type) {
      case FrameType::kSpec:
        CHECK(header.total == kRow);
        CHECK(header.offset == 2);
        CHECK(header.root == kNobodysValue);
        return header.round == kChanges ? "change" : "spec";
      case FrameType::kKeys:
        if (header.offset == 0) lists[header.aux].clear();
        for (size_t i = 0; i < header.length; i += sizeof(uint64_t))
          std::memcpy(&lists[header.aux].emplace_back(), next.payload + i, sizeof(uint64_t));
        if (header.offset + header.length == header.total)
          CHECK(kernels::Crc32c(0, lists[header.aux].data(), header.total) == header.root);
        return "keys" + list + piece;
      case FrameType::kFetch:
        requests.push_back(header.total);
        return header.aux == kRange ? "range" + clock : "fetch" + clock + list;
      default:
        CHECK(header.type == FrameType::kRows);
        CHECK((header.flags & kSilent) != 0);
        crc = header.root;
        if ((header.flags & kNoted) != 0) return "note" + clock + list;
        CHECK(next.payload == memory + header.offset);
        return "rows" + clock + piece;
    }
  }

  Status Came(FrameType type, Header header) {
    header.type = type;
    header.key = 7;
    place = header.length == 0 ? nullptr : table.PlaceFor(header);
    return table.OnFrame(header, nullptr);
  }
  Status Opened(uint32_t clock) { return Came(FrameType::kOpened, {.round = clock}); }
  Status Applied(uint32_t clock, uint64_t version = 1) {
    return Came(FrameType::kApplied, {.round = clock, .offset = version});
  }
  Status Value(uint32_t request, uint64_t offset, uint32_t length, uint32_t total, uint32_t version = 1) {
    return Came(FrameType::kValue,
                {.offset = offset, .length = length, .total = total, .aux = request, .root = version});
  }

  Told told;
  std::shared_ptr<KeepOperation> operation = std::make_shared<KeepOperation>();
  std::byte memory[64] = {}, out[64] = {};
  KeptTable table;
  std::map<uint32_t, std::vector<uint64_t>> lists;  // as the server has them
  std::vector<uint32_t> requests;                   // of fetches, their numbers
  uint32_t crc = 0;                                 // of the list of the rows that went out last
  const std::byte* place = nullptr;                 // of the frame that came last
};

}  // namespace

TEST_CASE("kept table: a list travels once, however often and by whatever copy it is used") {
  OneTable one;
  one.Push(1, ListOf({3, 5, 9}), 1);
  CHECK(one.Sent() == "keys 0 0+16, keys 0 16+8, note 0 0, rows 0 0+16, rows 0 16+8");
  CHECK(one.lists.at(0) == std::vector<uint64_t>{3, 5, 9});
  CHECK(one.table.unanswered() == 24);
  one.Push(2, ListOf({3, 5, 9}), 2);
  one.Fetch(3, ListOf({3, 5, 9}), 3);
  one.Fetch(4, ListOf({3, 5}), 4);
  CHECK(one.Sent() == "note 1 0, rows 1 0+16, rows 1 16+8, fetch 2 0, keys 1 0+16, fetch 2 1");
  CHECK(one.Applied(0).ok());
  CHECK(one.Applied(1, 2).ok());
  CHECK(one.told.found.at(2).second.version == 2);
  CHECK(one.table.unanswered() == 0);
}

TEST_CASE("kept table: answers land where they are wanted, by the number of the request") {
  OneTable one;
  one.Fetch(1, ListOf({1, 2, 3}), 1);
  one.Fetch(2, ListOf({4}), 2);
  CHECK(one.Sent() == "keys 0 0+16, keys 0 16+8, fetch 0 0, keys 1 0+8, fetch 0 1");
  REQUIRE(one.requests.size() == 2);
  CHECK(one.Value(one.requests[1], 0, 8, 8, 6).ok());
  CHECK(one.place == one.out);
  CHECK(one.told.found.at(2).second.version == 6);
  CHECK(one.Value(one.requests[0], 0, 16, 24, 7).ok());
  CHECK(one.Value(one.requests[0], 16, 8, 24, 7).ok());
  CHECK(one.place == one.out + 16);
  CHECK(one.told.found.at(1).second.version == 7);
  CHECK(!one.table.busy());
  CHECK(one.Value(one.requests[0], 0, 8, 24).ok());  // nobody waits for it any more
  CHECK(one.place == kAnywhere);
}

TEST_CASE("kept table: a range says how much it is") {
  OneTable one;
  one.Range(1, 10, 20);
  CHECK(one.Sent() == "range 0");
  CHECK(one.Value(one.requests[0], 0, 16, 32).ok());
  CHECK(one.operation->ranges[1].size() == 32);
  CHECK(one.Value(one.requests[0], 16, 16, 32).ok());
  CHECK(one.place == one.operation->ranges[1].data() + 16);
  CHECK(one.told.found.at(1).first == Code::kOk);
  one.Range(2, 0, 1);
  one.Sent();
  CHECK(one.Value(one.requests[1], 0, 0, 0).ok());
  CHECK(one.operation->ranges[2].empty());
  CHECK(!one.table.busy());
}

TEST_CASE("kept table: nothing is a contribution, too") {
  OneTable one;
  one.Push(1, ListOf({}));
  CHECK(one.Sent() == "keys 0 0+0, note 0 0");
  CHECK(one.Applied(0).ok());
  CHECK(one.told.found.at(1).first == Code::kOk);
}

TEST_CASE("kept table: what waits for the door is numbered by what it says") {
  OneTable one(false);
  one.Push(1, ListOf({1}), 1);
  one.Fetch(2, ListOf({1}), 2);
  CHECK(one.Sent() == "spec");
  CHECK(one.Opened(6).ok());
  CHECK(one.Sent() == "keys 0 0+8, note 6 0, rows 6 0+8, fetch 7 0");
}

TEST_CASE("kept table: a new link hears of lists again, and of what the server has only its notes") {
  OneTable one;
  for (size_t number = 1; number <= 3; ++number) one.Push(number, ListOf({number}), number);
  one.Fetch(4, ListOf({1}), 4);
  one.Sent();
  CHECK(one.Applied(0).ok());
  CHECK(one.Value(one.requests[0], 0, 8, 16).code() == Code::kCorrupt);
  one.table.OnNewLink();
  CHECK(one.table.unanswered() == 0);
  CHECK(one.Sent() == "spec");
  CHECK(one.Opened(2).ok());
  CHECK(one.Sent() == "note 1 1, keys 2 0+8, note 2 2, rows 2 0+8, keys 0 0+8, fetch 3 0");
  CHECK(one.Applied(1).ok());
  CHECK(one.Applied(2).ok());
  CHECK(one.Value(one.requests.back(), 0, 8, 8).ok());
  CHECK(one.told.found.size() == 5);
  CHECK(!one.table.busy());
}

TEST_CASE("kept table: who lacks a list hears of it again, and of all contributions from that one on") {
  OneTable one;
  one.Push(1, ListOf({1}), 1);
  one.Push(2, ListOf({2}), 2);
  one.Fetch(3, ListOf({1}), 3);
  one.Sent();
  const uint32_t crc = ListOf({1})->crc;
  CHECK(one.Came(FrameType::kNack, {.round = 0, .total = kNackedRows, .aux = 0, .root = crc ^ 1}).ok());
  CHECK(one.Sent().empty());  // of another list
  CHECK(one.Came(FrameType::kNack, {.round = 0, .total = kNackedRows, .aux = 0, .root = crc}).ok());
  CHECK(one.table.unanswered() == 0);
  CHECK(one.Sent() == "keys 0 0+8, note 0 0, rows 0 0+8, note 1 1, rows 1 0+8");
  const uint32_t request = one.requests.back();
  CHECK(one.Came(FrameType::kNack, {.round = 2, .offset = request, .total = kNackedFetch, .aux = 0, .root = crc}).ok());
  CHECK(one.Sent() == "keys 0 0+8, fetch 2 0");
  CHECK(one.requests.back() == request);
  CHECK(one.Applied(0).ok());
  CHECK(one.Came(FrameType::kNack, {.round = 0, .total = kNackedRows, .aux = 0, .root = crc}).ok());
  CHECK(one.Sent().empty());  // it is settled
}

TEST_CASE("kept table: numbers go to new lists, the oldest first, but not those that are in use") {
  OneTable one(true, {.numbers = 2, .bytes = 1000});
  one.Push(1, ListOf({1}), 1);
  one.Push(2, ListOf({2}), 2);
  one.Push(3, ListOf({3}), 3);
  CHECK(one.Sent() == "keys 0 0+8, note 0 0, rows 0 0+8, keys 1 0+8, note 1 1, rows 1 0+8");
  CHECK(one.Applied(1).ok());
  CHECK(one.Sent() == "keys 1 0+8, note 2 1, rows 2 0+8");
  CHECK(one.lists.at(1) == std::vector<uint64_t>{3});
  CHECK(one.Applied(0).ok());
  CHECK(one.Applied(2).ok());
  one.Fetch(4, ListOf({1}), 4);
  CHECK(one.Sent() == "fetch 3 0");
  one.Push(5, ListOf({2}), 5);
  CHECK(one.Sent() == "keys 1 0+8, note 3 1, rows 3 0+8");
}

TEST_CASE("kept table: a server keeps so many bytes of lists, and is told of those that it need not") {
  OneTable one(true, {.numbers = 100, .bytes = 24});
  for (uint64_t id = 1; id <= 3; ++id) {
    one.Push(id, ListOf({id}), id);
    one.Sent();
    CHECK(one.Applied(static_cast<uint32_t>(id - 1)).ok());
  }
  one.Push(4, ListOf({7, 8}), 4);
  CHECK(one.Sent() == "keys 1 0+0, keys 0 0+0, keys 3 0+16, note 3 3, rows 3 0+16");
  one.Push(5, ListOf({3}), 5);
  CHECK(one.Sent() == "note 4 2, rows 4 0+8");
  one.Push(6, ListOf({4, 5, 6, 7}), 6);  // more than that alone: while it is in use
  CHECK(one.Sent() == "keys 1 0+16, keys 1 16+16, note 5 1, rows 5 0+16, rows 5 16+16");
}

TEST_CASE("kept table: no more contributions go out unanswered than a server has answers for") {
  OneTable one;
  const Rows rows = ListOf({1});
  one.operation->ranges.resize(2000);
  for (size_t number = 1; number <= 1025; ++number) one.Push(number, rows, number);
  one.Sent();
  CHECK(one.table.unanswered() == 1024 * kRow);
  CHECK(one.Applied(5).ok());
  CHECK(one.Sent() == "note 1024 0, rows 1024 0+8");
}

TEST_CASE("kept table: a change goes after what was called before") {
  OneTable one;
  one.Push(1, ListOf({1}), 1);
  one.Fetch(2, ListOf({1}), 2);
  one.table.Change(6, one.Ticket(3));
  CHECK(one.Sent() == "keys 0 0+8, note 0 0, rows 0 0+8, fetch 1 0, change");
  CHECK(one.Came(FrameType::kOpened, {.aux = kChanged}).ok());
  CHECK(one.told.found.at(3).first == Code::kOk);
}

TEST_CASE("kept table: what makes no sense is corrupt, and the end settles everything once") {
  OneTable one;
  one.Push(1, ListOf({1, 2, 3}), 1);
  one.Fetch(2, ListOf({1}), 2);
  Outgoing next;
  for (int frame = 0; frame < 3; ++frame) one.table.Next(kPiece, next);
  CHECK(one.Applied(0).code() == Code::kCorrupt);  // of which segments are still here
  one.Sent();
  CHECK(one.Value(one.requests[0], 4, 4, 8).code() == Code::kCorrupt);
  CHECK(one.Value(one.requests[0], 0, 4, 8, 1).ok());
  CHECK(one.Value(one.requests[0], 4, 4, 8, 2).code() == Code::kCorrupt);  // of another version
  one.table.End(Status(Code::kPeerLost, "gone"));
  CHECK(one.told.found.at(1).first == Code::kPeerLost);
  CHECK(one.told.found.at(2).first == Code::kPeerLost);
  CHECK(!one.table.busy());
  CHECK(OneTable(false).Came(FrameType::kOpened, {.aux = kLacksValue}).ok());  // that was not asked for
  OneTable asked(false);
  asked.Sent();
  CHECK(asked.Came(FrameType::kOpened, {.aux = kLacksValue}).code() == Code::kCorrupt);
}

}  // namespace byteps_like::testing
