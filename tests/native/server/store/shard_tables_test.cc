// Tables of a shard, frame by frame: lists of ids, rows that are pushed and asked for, over links that break.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "csrc/kernels/kernels.h"
#include "csrc/wire/note.h"
#include "server/store/filters/filters.h"
#include "tests/native/server/test_server.h"

namespace byteps_like::testing {
namespace {

constexpr uint64_t kTable = 9;
constexpr uint32_t kWidth = 2;
constexpr uint32_t kRowBytes = kWidth * sizeof(float);
constexpr uint32_t kToEnd = 0xFFFFFFFF;
using Ids = std::vector<uint64_t>;
using Rows = std::vector<float>;

std::string TableSpec(const std::string& policy, const std::string& update = "add", const std::string& filters = "") {
  return "policy " + policy + "\ncombine sum:age=none,damp=none\nupdate " + update +
         (filters.empty() ? "" : "\nfilters " + filters) + "\nrows zeros";
}

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& values) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
  return {bytes, bytes + values.size() * sizeof(T)};
}

template <typename T>
std::vector<T> ValuesOf(const std::vector<std::byte>& bytes, size_t from = 0) {
  std::vector<T> values((bytes.size() - from) / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data() + from, values.size() * sizeof(T));
  return values;
}

uint32_t CrcOf(const Ids& ids) { return kernels::Crc32c(0, ids.data(), ids.size() * sizeof(uint64_t)); }

// What filters make of rows, and rows of that.
class OwnFilters {
 public:
  explicit OwnFilters(const std::string& texts) : filters_(*Filters::Parse(texts)) {}
  std::string Encoded(const Rows& rows) {
    const auto bytes = BytesOf(rows);
    auto made = filters_->Encode(DType::kFloat32, {}, bytes, kMaxPartition, memory_);
    REQUIRE(made.ok());
    return std::string(reinterpret_cast<const char*>(made->buffer.data()), made->bytes);
  }
  Rows Decoded(const std::vector<std::byte>& payload, size_t count) {
    ShardBuffer copy = memory_.Take(payload.size());
    std::memcpy(copy.data(), payload.data(), payload.size());
    auto made = filters_->Decode(DType::kFloat32, {std::move(copy), payload.size()}, count * sizeof(float), memory_);
    REQUIRE(made.ok());
    return ValuesOf<float>({made->buffer.data(), made->buffer.data() + made->bytes});
  }

 private:
  std::shared_ptr<const Filters> filters_;
  std::atomic<uint64_t> held_ = 0;
  ShardMemory memory_{"a test", 0, held_};
};

// A worker of a table of fp32.
class TableRank {
 public:
  TableRank(TestServer& server, uint32_t rank) : rank_(rank), link_(server.Connect(rank)) {}

  Header Of(FrameType type, uint32_t total = 0, uint32_t round = 0) const {
    Header header = PushHeader(rank_, kTable, round, total);
    header.type = type;
    header.dtype = DType::kFloat32;
    header.length = 0;
    return header;
  }
  void Spec(const std::string& text, uint32_t bytes = kRowBytes) {
    Header header = Of(FrameType::kSpec, bytes);
    header.root = kToEnd;
    header.offset = kWidth;
    Send(header, {reinterpret_cast<const std::byte*>(text.data()),
                  reinterpret_cast<const std::byte*>(text.data()) + text.size()});
  }
  Header Opened(const std::string& text) {
    Spec(text);
    return Next(FrameType::kOpened).header;
  }
  // Ids [begin, end) of a list.
  void Keys(const Ids& ids, uint32_t number, size_t begin = 0, size_t end = kToEnd) {
    end = std::min(end, ids.size());
    Header header = Of(FrameType::kKeys, static_cast<uint32_t>(ids.size() * sizeof(uint64_t)));
    header.aux = number;
    header.root = CrcOf(ids);
    header.offset = begin * sizeof(uint64_t);
    Send(header, BytesOf(Ids(ids.begin() + static_cast<int64_t>(begin), ids.begin() + static_cast<int64_t>(end))));
  }
  // Elements [begin, end) of a contribution; with a note, if they are its first.
  void Push(const Ids& ids, const Rows& rows, uint32_t clock, uint32_t number = 0, Note note = {}, size_t begin = 0,
            size_t end = kToEnd) {
    end = std::min(end, rows.size());
    Header header = Of(FrameType::kRows, static_cast<uint32_t>(rows.size() * sizeof(float)), clock);
    header.aux = number;
    header.root = CrcOf(ids);
    header.offset = begin * sizeof(float);
    header.flags = static_cast<uint8_t>((begin == 0 ? kNoted : 0) | kSilent);
    std::vector<std::byte> payload(begin == 0 ? kNoteBytes : 0);
    if (begin == 0) EncodeNote(note, std::span<std::byte, kNoteBytes>(payload.data(), kNoteBytes));
    const auto bytes = BytesOf(rows);
    payload.insert(payload.end(), bytes.begin() + static_cast<int64_t>(begin * sizeof(float)),
                   bytes.begin() + static_cast<int64_t>(end * sizeof(float)));
    Send(header, payload);
  }
  // A contribution of nothing.
  void Tick(uint32_t clock, Note note = {}) {
    Header header = Of(FrameType::kClock, 0, clock);
    header.flags = kNoted | kSilent;
    std::vector<std::byte> payload(kNoteBytes);
    EncodeNote(note, std::span<std::byte, kNoteBytes>(payload.data(), kNoteBytes));
    Send(header, payload);
  }
  // Bytes [begin, end) of what filters have made of a contribution's rows; with a note, if they are its first.
  void PushPayload(const Ids& ids, const std::string& bytes, uint32_t clock, size_t begin = 0, size_t end = kToEnd) {
    end = std::min(end, bytes.size());
    Header header = Of(FrameType::kRows, static_cast<uint32_t>(bytes.size()), clock);
    header.root = CrcOf(ids);
    header.offset = begin;
    header.flags = static_cast<uint8_t>((begin == 0 ? kNoted : 0) | kSilent);
    std::vector<std::byte> payload(begin == 0 ? kNoteBytes : 0);
    if (begin == 0) EncodeNote({.base = clock}, std::span<std::byte, kNoteBytes>(payload.data(), kNoteBytes));
    const auto* const from = reinterpret_cast<const std::byte*>(bytes.data());
    payload.insert(payload.end(), from + begin, from + end);
    Send(header, payload);
  }
  void Fetch(const Ids& ids, uint32_t clock, uint32_t request, uint32_t number = 0,
             const std::vector<uint32_t>& known = {}, uint64_t bound = 0) {
    Header header = Of(FrameType::kFetch, request, clock);
    header.aux = number;
    header.root = CrcOf(ids);
    header.offset = bound;
    auto payload = BytesOf(known);
    payload.resize((payload.size() + 7) / 8 * 8);
    Send(header, payload);
  }
  void FetchRange(uint64_t low, uint64_t high, uint32_t clock, uint32_t request) {
    Header header = Of(FrameType::kFetch, request, clock);
    header.aux = kRange;
    Send(header, BytesOf(Ids{low, high}));
  }
  Message Next(FrameType type) {
    auto message = link_.Receive();
    if (message && message->header.type == FrameType::kError) FAIL(Text(*message));
    REQUIRE(message.has_value());
    CHECK(int(message->header.type) == int(type));
    CHECK(message->header.key == kTable);
    return std::move(*message);
  }
  std::string Applied(uint32_t bytes) {
    const Header header = Next(FrameType::kApplied).header;
    CHECK(header.total == bytes);
    constexpr const char* kNames[] = {"counted", "late", "held", "not finite"};
    return std::to_string(header.round) + " " + kNames[header.aux] + " " + std::to_string(header.offset);
  }
  // All of the answer to that request, of one version.
  std::vector<std::byte> Answer(uint32_t request, uint32_t version) {
    std::vector<std::byte> bytes;
    for (;;) {
      const Message message = Next(FrameType::kValue);
      CHECK(message.header.aux == request);
      CHECK(message.header.root == version);
      CHECK(message.header.offset == bytes.size());
      bytes.insert(bytes.end(), message.payload.begin(), message.payload.end());
      if (bytes.size() == message.header.total) return bytes;
      REQUIRE(message.header.length > 0);
    }
  }
  Rows RowsOf(const Ids& ids, uint32_t clock, uint32_t version, uint32_t number = 0) {
    Fetch(ids, clock, ++request_, number);
    return ValuesOf<float>(Answer(request_, version));
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
  void Send(Header header, const std::vector<std::byte>& payload) {
    header.length = static_cast<uint32_t>(payload.size());
    link_.Send(header, payload);
  }
  RawLink& link() { return link_; }

 private:
  static std::string Text(const Message& message) {
    return std::string(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
  }

  const uint32_t rank_;
  uint32_t request_ = 100;
  RawLink link_;
};

}  // namespace

TEST_CASE("store tables: rows appear as they are pushed, and are read as they were asked for") {
  TestServer server(2);
  TableRank one(server, 0), other(server, 1);
  for (TableRank* rank : {&one, &other}) CHECK(rank->Opened(TableSpec("asp")).aux == kHasValue);
  const Ids few{3, 1ull << 52, ~0ull}, more{3, 4};
  one.Keys(few, 0);
  one.Push(few, {1, 2, 3, 4, 5, 6}, 0);
  CHECK(one.Applied(24) == "0 counted 1");
  other.Keys(more, 7);
  other.Push(more, {10, 20, 30, 40}, 0, 7, {.base = 1, .weight = 2});
  CHECK(other.Applied(16) == "0 counted 2");
  const Ids asked{2, 3, 4, ~0ull};
  one.Keys(asked, 1);
  CHECK(one.RowsOf(asked, 1, 2, 1) == Rows{0, 0, 21, 42, 60, 80, 5, 6});
  SUBCASE("a range has those that exist") {
    one.FetchRange(3, ~0ull, 1, 5);
    const auto answer = one.Answer(5, 2);
    REQUIRE(answer.size() == 3 * (8 + kRowBytes));
    const Ids ids = ValuesOf<uint64_t>(answer);
    CHECK(Ids(ids.begin(), ids.begin() + 3) == Ids{3, 4, 1ull << 52});
    CHECK(ValuesOf<float>(answer, 24) == Rows{21, 42, 60, 80, 3, 4});
    one.FetchRange(100, 200, 1, 6);
    CHECK(one.Answer(6, 2).empty());
  }
  SUBCASE("of known versions come only those that are too old") {
    one.Fetch(asked, 1, 5, 1, {0, 0, 1, kUnknown}, 1);
    const auto answer = one.Answer(5, 2);
    REQUIRE(answer.size() == 8 + 8 + 2 * kRowBytes);
    CHECK(int(answer[0]) == 0b1010);
    CHECK(ValuesOf<uint32_t>(answer)[2] == 2);
    CHECK(ValuesOf<uint32_t>(answer)[3] == 1);
    CHECK(ValuesOf<float>(answer, 16) == Rows{21, 42, 5, 6});
  }
}

TEST_CASE("store tables: without ids a contribution counts, too, and a read has no rows") {
  TestServer server(1);
  TableRank rank(server, 0);
  rank.Opened(TableSpec("bsp"));
  rank.Keys({}, 0);
  rank.Push({}, {}, 0);
  CHECK(rank.Applied(0) == "0 counted 1");
  CHECK(rank.RowsOf({}, 1, 1).empty());
}

TEST_CASE("store tables: lists and contributions come in segments") {
  constexpr uint32_t kCount = 60'000;  // answers are more than a segment
  TestServer server(1);
  TableRank rank(server, 0);
  rank.Opened(TableSpec("asp"));
  Ids ids(kCount);
  std::iota(ids.begin(), ids.end(), 5);
  Rows rows(kCount * kWidth);
  std::iota(rows.begin(), rows.end(), 0.0F);
  for (size_t begin = 0; begin < kCount; begin += 10'000) rank.Keys(ids, 3, begin, begin + 10'000);
  rank.Push(ids, rows, 0, 3, {}, 0, 1);
  rank.Push(ids, rows, 0, 3, {}, 1, 20'001);
  rank.Fetch(ids, 1, 1, 3);
  CHECK(rank.HearsNothing());  // waits for the rest
  rank.Push(ids, rows, 0, 3, {}, 20'001);
  CHECK(rank.Applied(kCount * kRowBytes) == "0 counted 1");
  CHECK(ValuesOf<float>(rank.Answer(1, 1)) == rows);
}

TEST_CASE("store tables: contributions of a round are merged by id, and each row has its own updates") {
  TestServer server(2);
  TableRank one(server, 0), other(server, 1);
  for (TableRank* rank : {&one, &other}) rank->Opened(TableSpec("bsp", "sgd:lr=1.0,weight_decay=0.0"));
  const Ids first{1, 2}, second{2, 9};
  one.Keys(first, 0);
  other.Keys(second, 0);
  one.Push(first, {1, 1, 1, 1}, 0);
  one.Fetch(first, 1, 1);
  CHECK(one.HearsNothing());
  other.Push(second, {4, 4, 4, 4}, 0, 0, {.weight = 0.5});
  for (TableRank* rank : {&one, &other}) CHECK(rank->Applied(16) == "0 counted 1");
  CHECK(ValuesOf<float>(one.Answer(1, 1)) == Rows{-1, -1, -3, -3});
  CHECK(other.RowsOf(second, 1, 1) == Rows{-3, -3, -2, -2});
}

TEST_CASE("store tables: what is not finite makes no row") {
  TestServer server(1);
  TableRank rank(server, 0);
  rank.Opened(TableSpec("asp"));
  rank.Keys({1}, 0);
  rank.Push({1}, {1, std::nanf("")}, 0);
  CHECK(rank.Applied(8) == "0 not finite 1");
  rank.FetchRange(0, 10, 1, 1);
  CHECK(rank.Answer(1, 1).empty());
}

TEST_CASE("store tables: a list that isn't there is asked for, and contributions go on from that one") {
  TestServer server(1);
  TableRank rank(server, 0);
  rank.Opened(TableSpec("asp"));
  const Ids known{1}, other{2};
  rank.Keys(known, 0);
  const auto nacked = [&](uint32_t number, const Ids& ids, uint32_t round, uint32_t what, uint64_t request) {
    const Header nack = rank.Next(FrameType::kNack).header;
    CHECK(nack.aux == number);
    CHECK(nack.root == CrcOf(ids));
    CHECK(nack.round == round);
    CHECK(nack.total == what);
    CHECK(nack.offset == request);
  };
  rank.Push(other, {7, 8}, 0, 0, {}, 0, 1);  // of another list under that number
  nacked(0, other, 0, kNackedRows, 0);
  rank.Push(other, {7, 8}, 0, 0, {}, 1);
  rank.Push(known, {9, 9}, 1);  // the next is dropped, too
  rank.Tick(2);
  rank.Fetch(other, 0, 77, 5);
  nacked(5, other, 0, kNackedFetch, 77);
  rank.Keys(other, 0);
  rank.Push(other, {7, 8}, 0);
  CHECK(rank.Applied(8) == "0 counted 1");
  rank.Keys(known, 1);
  rank.Push(known, {9, 9}, 1, 1, {.base = 1});
  CHECK(rank.Applied(8) == "1 counted 2");
  rank.Tick(2, {.base = 2});
  CHECK(rank.Applied(0) == "2 counted 3");
  CHECK(rank.RowsOf(other, 3, 3) == Rows{7, 8});
}

TEST_CASE("store tables: over a new link lists are forgotten, what is half there goes on, and the rest is said again") {
  TestServer server(1);
  const Ids ids{1, 2};
  const Rows rows{1, 2, 3, 4};
  {
    TableRank rank(server, 0);
    rank.Opened(TableSpec("asp"));
    rank.Keys(ids, 0);
    rank.Push(ids, rows, 0);
    rank.Applied(16);
    rank.Push(ids, rows, 1, 0, {.base = 1}, 0, 1);
    CHECK(rank.RowsOf(ids, 0, 1) == rows);  // its answer says that all before it was handled
  }
  TableRank rank(server, 0);
  const Header opened = rank.Opened(TableSpec("asp"));
  CHECK(opened.offset == 1);
  CHECK(opened.round == 1);
  rank.Push(ids, {}, 0);  // its note is enough
  CHECK(rank.Applied(16) == "0 counted 1");
  rank.Fetch(ids, 0, 1);
  CHECK(rank.Next(FrameType::kNack).header.total == kNackedFetch);
  SUBCASE("from where it was") {
    rank.link().Send(rank.Of(FrameType::kResume, 16, 1));
    const Header resumed = rank.Next(FrameType::kResumed).header;
    CHECK(resumed.offset == 4);
    CHECK(resumed.total == 16);
    rank.Push(ids, rows, 1, 0, {.base = 1}, 1);
  }
  SUBCASE("from its beginning") {
    rank.Keys(ids, 9);
    rank.Push(ids, rows, 1, 9, {.base = 1});
  }
  SUBCASE("as another") {
    rank.Keys({5}, 0);
    rank.Push({5}, {1, 1}, 1, 0, {.base = 1});
    CHECK(rank.Applied(8) == "1 counted 2");
    return;
  }
  CHECK(rank.Applied(16) == "1 counted 2");
  rank.Keys(ids, 0);
  CHECK(rank.RowsOf(ids, 2, 2) == Rows{2, 4, 6, 8});
}

TEST_CASE("store tables: the server keeps the answers to the last 1,024 contributions of a rank") {
  TestServer server(1);
  TableRank rank(server, 0);
  rank.Opened(TableSpec("asp"));
  rank.Keys({}, 0);
  for (uint32_t clock = 0; clock < 1030; ++clock) {
    rank.Push({}, {}, clock, 0, {.base = clock});
    rank.Applied(0);
  }
  rank.Push({}, {}, 5);
  CHECK(rank.Applied(0) == "5 counted 6");
  rank.Push({}, {}, 4);
  CHECK(rank.link().ReceiveError().find("has pushed its contribution 4 again") != std::string::npos);
}

TEST_CASE("store tables: under ssp a rank that is too far ahead waits to read, and the wait is named") {
  ShardWorld world;
  world.stall_warning = 0.1;
  world.stall_timeout = 0.4;
  TestServer server(2, 0, world);
  TableRank fast(server, 0), slow(server, 1);
  for (TableRank* rank : {&fast, &slow}) rank->Opened(TableSpec("ssp:s=0"));
  fast.Keys({1}, 0);
  fast.Push({1}, {1, 1}, 0);
  fast.Applied(8);
  fast.Fetch({1}, 1, 1);
  SUBCASE("until the slowest has come") {
    slow.Keys({}, 0);
    slow.Push({}, {}, 0, 0, {.base = 1});
    CHECK(ValuesOf<float>(fast.Answer(1, 2)) == Rows{1, 1});
  }
  SUBCASE("too long") {
    const std::string error = slow.link().ReceiveError();
    CHECK(error.find("store key 9 (ssp:s=0): rank 0 waits to read") != std::string::npos);
  }
}

TEST_CASE("store tables: a rank that leaves is waited for no more, and a table that is forgotten is freed") {
  TestServer server(2);
  TableRank one(server, 0), other(server, 1);
  for (TableRank* rank : {&one, &other}) rank->Opened(TableSpec("bsp"));
  const Ids ids{1, 2};
  one.Keys(ids, 0);
  one.Push(ids, {1, 1, 1, 1}, 0);
  Header goodbye = other.Of(FrameType::kGoodbye);
  goodbye.key = 0;
  other.link().Send(goodbye);
  CHECK(one.Applied(16) == "0 counted 1");
  one.link().Send(one.Of(FrameType::kForget));
  REQUIRE(server.HasReceived(6));
  CHECK(one.Opened(TableSpec("asp")).offset == 0);  // another one, of its number
  one.Fetch(ids, 0, 1);
  CHECK(one.Next(FrameType::kNack).header.total == kNackedFetch);
}

TEST_CASE("store tables: the policy changes, also for rows that wait") {
  TestServer server(2);
  TableRank one(server, 0), other(server, 1);
  for (TableRank* rank : {&one, &other}) rank->Opened(TableSpec("bsp"));
  one.Keys({1}, 0);
  one.Push({1}, {1, 2}, 0);
  for (TableRank* rank : {&one, &other}) {
    const std::string text = TableSpec("asp");
    Header header = rank->Of(FrameType::kSpec, kRowBytes, kChanges);
    header.root = kToEnd;
    header.offset = kWidth;
    header.aux = 1;
    rank->Send(header, {reinterpret_cast<const std::byte*>(text.data()),
                        reinterpret_cast<const std::byte*>(text.data()) + text.size()});
  }
  CHECK(one.Applied(8) == "0 counted 1");
  CHECK(one.Next(FrameType::kOpened).header.aux == kChanged);
  CHECK(one.RowsOf({1}, 1, 1) == Rows{1, 2});
}

TEST_CASE("store tables: ranks that disagree are both named, and specs that make no sense are refused") {
  TestServer server(2);
  TableRank one(server, 0), other(server, 1);
  std::vector<std::string> parts;
  SUBCASE("one has a table, the other a value") {
    one.Opened(TableSpec("asp"));
    other.Spec("policy asp\ncombine sum:age=none,damp=none\nupdate add");
    parts = {"store key 9: the ranks disagree: rank 0 has 8 bytes of float32", "rows zeros", "rank 1 has"};
  }
  SUBCASE("more than a row") {
    one.Spec(TableSpec("asp"), 2 * kRowBytes);
    parts = {"rank 0 has 16 bytes of float32 in rows of 2", "a table has the bytes of one row, and begins empty"};
  }
  SUBCASE("no update") {
    one.Spec(TableSpec("bsp", "none"));
    parts = {"store key 9: update none gives what a round has combined, which rows don't have"};
  }
  const std::string error = one.link().ReceiveError();
  for (const std::string& part : parts) CHECK_MESSAGE(error.find(part) != std::string::npos, error);
}

TEST_CASE("store tables: who breaks the rules is named") {
  TestServer server(1);
  TableRank rank(server, 0);
  rank.Opened(TableSpec("asp"));
  const Ids ids{1, 2};
  std::string wanted;
  SUBCASE("ids that don't ascend") {
    rank.Keys({2, 2}, 0);
    wanted = "list 0 of ids doesn't ascend";
  }
  SUBCASE("nor over segments") {
    rank.Keys({5, 6, 6, 7}, 3, 0, 2);
    rank.Keys({5, 6, 6, 7}, 3, 2, 4);
    wanted = "list 3 of ids doesn't ascend";
  }
  SUBCASE("a list that goes on before it begins") {
    rank.Keys(ids, 0, 1);
    wanted = "list 0 of ids begins without its first segment";
  }
  SUBCASE("a list with a gap") {
    rank.Keys({1, 2, 3}, 0, 0, 1);
    rank.Keys({1, 2, 3}, 0, 2);
    wanted = "list 0 of ids has a segment that doesn't follow the one before";
  }
  SUBCASE("a list of another checksum") {
    Header header = rank.Of(FrameType::kKeys, 8);
    rank.Send(header, BytesOf(Ids{1}));
    wanted = "list 0 of ids fails its checksum";
  }
  SUBCASE("more rows than ids") {
    rank.Keys(ids, 0);
    rank.Push(ids, {1, 2, 3, 4, 5, 6}, 0);
    wanted = "a contribution has more or fewer rows than its list has ids";
  }
  SUBCASE("another list in the middle") {
    rank.Keys(ids, 0);
    rank.Push(ids, {1, 2, 3, 4}, 0, 0, {}, 0, 2);
    rank.Push({1, 3}, {1, 2, 3, 4}, 0, 0, {}, 2);
    wanted = "a contribution goes on with another list than it began with";
  }
  SUBCASE("a contribution without its beginning") {
    rank.Push(ids, {1, 2, 3, 4}, 0, 0, {}, 2);
    wanted = "a contribution begins without its first segment";
  }
  SUBCASE("one that is too early") {
    rank.Keys(ids, 0);
    rank.Push(ids, {1, 2, 3, 4}, 1);
    wanted = "contribution 1 has come after 0 others";
  }
  SUBCASE("rows that want a result") {
    rank.Keys(ids, 0);
    Header header = rank.Of(FrameType::kRows, 16);
    header.flags = kNoted;
    header.root = CrcOf(ids);
    rank.Send(header, std::vector<std::byte>(kNoteBytes));
    wanted = "not silent";
  }
  SUBCASE("a pull") {
    rank.link().Send(rank.Of(FrameType::kPull, kRowBytes));
    wanted = "a pull of a value";
  }
  SUBCASE("a push") {
    Header header = rank.Of(FrameType::kPush, kRowBytes);
    header.flags = kNoted | kSilent;
    rank.Send(header, std::vector<std::byte>(kNoteBytes + kRowBytes));
    wanted = "a contribution has another length or type than its spec";
  }
  SUBCASE("known versions of more rows") {
    rank.Keys(ids, 0);
    rank.Fetch(ids, 0, 1, 0, {1, 2, 3});
    wanted = "a request has as many known versions as its list has ids, or none";
  }
  const std::string error = rank.link().ReceiveError();
  CHECK_MESSAGE(error.find("rank 0 broke the protocol: store key 9") != std::string::npos, error);
  CHECK_MESSAGE(error.find(wanted) != std::string::npos, error);
}

TEST_CASE("store tables: rows for a key that has a value are refused") {
  TestServer server(1);
  TableRank rank(server, 0);
  rank.Opened("policy asp\ncombine sum:age=none,damp=none\nupdate add");
  SUBCASE("ids") { rank.Keys({1}, 0); }
  SUBCASE("rows") { rank.Push({1}, {1, 1}, 0); }
  SUBCASE("a request") { rank.FetchRange(0, 1, 0, 1); }
  CHECK(rank.link().ReceiveError().find("rank 0 broke the protocol: store key 9") != std::string::npos);
}

TEST_CASE("store tables: a table that doesn't fit fails the job with what to do") {
  TestServer server(1, 1 << 20);
  TableRank rank(server, 0);
  rank.Opened(TableSpec("asp"));
  std::string error;
  for (uint32_t clock = 0; clock < 64 && error.empty(); ++clock) {
    Ids ids(8192);
    std::iota(ids.begin(), ids.end(), clock * 8192);
    rank.Keys(ids, 0);
    rank.Push(ids, Rows(ids.size() * kWidth), clock, 0, {.base = clock});
    const auto message = rank.link().Receive();
    REQUIRE(message.has_value());
    if (message->header.type == FrameType::kError)
      error.assign(reinterpret_cast<const char*>(message->payload.data()), message->payload.size());
  }
  CHECK_MESSAGE(error.find("raise server_memory_limit or add servers") != std::string::npos, error);
}

TEST_CASE("store tables: filtered rows come in any bytes, also over a new link, and answers are filtered") {
  const std::string filters = "zlib:level=1";
  OwnFilters own(filters);
  TestServer server(1);
  const Ids ids{1, 2, 3};
  const std::string payload = own.Encoded({1, 2, 3, 4, 5, 6});
  const auto bytes = static_cast<uint32_t>(payload.size());
  {
    TableRank rank(server, 0);
    CHECK(rank.Opened(TableSpec("asp", "add", filters)).aux == kHasValue);
    rank.Keys(ids, 0);
    rank.PushPayload(ids, payload, 0, 0, 5);
    rank.PushPayload(ids, payload, 0, 5, 6);
    rank.PushPayload(ids, payload, 0, 6);
    CHECK(rank.Applied(bytes) == "0 counted 1");
    rank.PushPayload(ids, payload, 1, 0, 7);
    rank.FetchRange(0, 10, 1, 5);
    const auto ranged = rank.Answer(5, 1);  // as it is
    CHECK(ValuesOf<float>(ranged, 24) == Rows{1, 2, 3, 4, 5, 6});
  }
  TableRank rank(server, 0);
  CHECK(rank.Opened(TableSpec("asp", "add", filters)).round == 1);
  rank.link().Send(rank.Of(FrameType::kResume, bytes, 1));
  CHECK(rank.Next(FrameType::kResumed).header.offset == 7);
  rank.PushPayload(ids, payload, 1, 7);
  CHECK(rank.Applied(bytes) == "1 counted 2");
  rank.Keys(ids, 0);
  rank.Fetch(ids, 2, 1);
  CHECK(own.Decoded(rank.Answer(1, 2), 6) == Rows{2, 4, 6, 8, 10, 12});
  rank.Keys({}, 1);
  rank.Fetch({}, 2, 2, 1);
  CHECK(rank.Answer(2, 2).empty());
  rank.Keys({}, 0);
  rank.PushPayload({}, "", 2);
  CHECK(rank.Applied(0) == "2 counted 3");
}

TEST_CASE("store tables: what is no payload of the rows is refused, whatever it would become") {
  TestServer server(1);
  TableRank rank(server, 0);
  rank.Opened(TableSpec("asp", "add", "zlib:level=9"));
  OwnFilters own("zlib:level=9");
  rank.Keys({1}, 0);
  std::string wanted;
  SUBCASE("too many bytes to be one") {
    rank.PushPayload({1}, std::string(1000, 'x'), 0);
    wanted = "a contribution has more or fewer rows than its list has ids";
  }
  SUBCASE("a bomb") {
    const std::string bomb = own.Encoded(Rows(2000));  // 8,000 zeros in as few bytes as there may be
    REQUIRE(bomb.size() <= 30);
    rank.PushPayload({1}, bomb.substr(0, 21), 0);
    wanted = "contribution 0: a payload of filter zlib is damaged, or stands for too many bytes";
  }
  SUBCASE("of fewer rows") {
    rank.PushPayload({1}, own.Encoded({7}), 0);
    wanted = "contribution 0: a payload stands for 4 bytes, and its rows have 8";
  }
  SUBCASE("nothing") {
    rank.PushPayload({1}, "", 0);
    wanted = "contribution 0: a payload of filter zlib is damaged";
  }
  const std::string error = rank.link().ReceiveError();
  CHECK_MESSAGE(error.find("rank 0 broke the protocol: store key 9") != std::string::npos, error);
  CHECK_MESSAGE(error.find(wanted) != std::string::npos, error);
}

TEST_CASE("store tables: filters that can't be are refused") {
  TestServer server(1);
  TableRank rank(server, 0);
  rank.Spec(TableSpec("asp", "add", "gzip:level=1"));
  const std::string wanted = "this server has no filter gzip; it has factors, float, zlib, all codecs, and others if";
  const std::string error = rank.link().ReceiveError();
  CHECK_MESSAGE(error.find(wanted) != std::string::npos, error);
}

}  // namespace byteps_like::testing
