// The header codec against golden bytes (the same as tests/golden/frames.json) and against every way to be wrong.
#include "csrc/wire/frame.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "csrc/kernels/kernels.h"
#include "csrc/wire/bytes.h"
#include "csrc/wire/note.h"

namespace byteps_like::testing {
namespace {

constexpr char kDigits[] = "0123456789abcdef";

using Encoded = std::array<std::byte, kHeaderBytes>;

struct Golden {
  const char* name;
  Header header;
  const char* hex;
};

std::vector<Golden> Goldens() {
  std::vector<Golden> all;
  Header push;
  push.type = FrameType::kPush;
  push.dtype = DType::kBFloat16;
  push.op = Op::kAverage;
  push.view = 7;
  push.member = 3;
  push.key = 0x0001000200030004;
  push.round = 9;
  push.priority = -5;
  push.offset = 0x40000;
  push.length = 9;
  push.total = 0x400000;
  push.payload_crc = 0xE3069283;
  push.root = 2;
  all.push_back({"a segment of a contribution", push,
                 "42504c32010301000700000003000000040003000200010009000000fbffffff"
                 "00000400000000000900000000004000839206e3000000000200000073eddb12"});
  Header reference;
  reference.type = FrameType::kResult;
  reference.flags = kByReference;
  reference.view = 0xFFFFFFFF;
  reference.member = 1;
  reference.key = 0xFFFFFFFFFFFFFFFF;
  reference.round = 0xFFFFFFFF;
  reference.priority = 2147483647;
  reference.offset = 1ull << 40;
  reference.total = kMaxPartition;
  reference.aux = 12;
  all.push_back({"a result by reference", reference,
                 "42504c3202000001ffffffff01000000ffffffffffffffffffffffffffffff7f"
                 "00000000000100000000000000000040000000000c0000000000000052910b79"});
  Header resume;
  resume.type = FrameType::kResume;
  resume.dtype = DType::kInt64;
  resume.op = Op::kBroadcast;
  resume.view = 1;
  resume.offset = 4096;
  resume.total = 4096;
  resume.root = 1;
  all.push_back({"a resume of all that there is", resume,
                 "42504c3203070500010000000000000000000000000000000000000000000000"
                 "00100000000000000000000000100000000000000000000001000000fbbedc6e"});
  Header region;
  region.type = FrameType::kRegion;
  region.view = 2;
  region.offset = 3ull << 30;
  region.aux = 5;
  all.push_back({"a region of 3 GiB", region,
                 "42504c3205000000020000000000000000000000000000000000000000000000"
                 "000000c000000000000000000000000000000000050000000000000061964433"});
  Header error;
  error.type = FrameType::kError;
  error.length = 5;
  error.payload_crc = kernels::Crc32c(0, "hello", 5);
  error.aux = static_cast<uint32_t>(Code::kStalled);
  all.push_back({"an error with text", error,
                 "42504c3206000000000000000000000000000000000000000000000000000000"
                 "000000000000000005000000000000004cbb719a0300000000000000793369ac"});
  Header codec;
  codec.type = FrameType::kCodec;
  codec.view = 3;
  codec.member = 1;
  codec.length = 6;
  codec.payload_crc = kernels::Crc32c(0, "onebit", 6);
  codec.aux = 2;
  all.push_back({"a codec", codec,
                 "42504c3210000000030000000100000000000000000000000000000000000000"
                 "00000000000000000600000000000000e224ee4802000000000000002b18bdc7"});
  Header encoded;
  encoded.type = FrameType::kPush;
  encoded.op = Op::kAverage;
  encoded.flags = kEncoded | kMovable;
  encoded.view = 3;
  encoded.member = 1;
  encoded.key = 0x20001;
  encoded.round = 4;
  encoded.offset = 0x1000;
  encoded.length = 9;
  encoded.total = 0x1009;
  encoded.payload_crc = 0xE3069283;
  encoded.aux = 2;
  all.push_back({"the end of an encoded contribution", encoded,
                 "42504c3201000106030000000100000001000200000000000400000000000000"
                 "00100000000000000900000009100000839206e30200000000000000b7099851"});
  Header again = encoded;
  again.type = FrameType::kResume;
  again.flags = kEncoded;
  again.offset = 0x2000;
  again.length = 0;
  again.payload_crc = 0;
  all.push_back({"a resume of an encoded round whose result is larger than its payload", again,
                 "42504c3203000104030000000100000001000200000000000400000000000000"
                 "002000000000000000000000091000000000000002000000000000002ceab65f"});
  Header absent;
  absent.type = FrameType::kPush;
  absent.op = Op::kAverage;
  absent.flags = kAbsent | kMovable;
  absent.view = 3;
  absent.member = 1;
  absent.key = 0x200000000020001;
  absent.round = 4;
  absent.total = 0x1000;
  all.push_back({"a word of an absent rank", absent,
                 "42504c320100010a030000000100000001000200000000020400000000000000"
                 "000000000000000000000000001000000000000000000000000000007c790f7b"});
  Header goodbye;
  goodbye.type = FrameType::kGoodbye;
  all.push_back({"a goodbye", goodbye,
                 "42504c3208000000000000000000000000000000000000000000000000000000"
                 "00000000000000000000000000000000000000000000000000000000ecaf48ee"});
  Header spec;
  spec.type = FrameType::kSpec;
  spec.view = 3;
  spec.member = 1;
  spec.key = 0x20001;
  spec.length = 6;
  spec.total = 0x1000;
  spec.payload_crc = kernels::Crc32c(0, "update", 6);
  spec.aux = 4;
  all.push_back({"the spec of a store key", spec,
                 "42504c3211000000030000000100000001000200000000000000000000000000"
                 "000000000000000006000000001000009f42edc30400000000000000890c32d3"});
  Header noted;
  noted.type = FrameType::kPush;
  noted.flags = kNoted | kSilent;
  noted.view = 3;
  noted.member = 1;
  noted.key = 0x20001;
  noted.round = 12;
  noted.length = 41;
  noted.total = 9;
  noted.payload_crc = 0xE3069283;
  all.push_back({"a noted contribution to a store key", noted,
                 "42504c3201000030030000000100000001000200000000000c00000000000000"
                 "00000000000000002900000009000000839206e300000000000000009f11ae73"});
  Header opened;
  opened.type = FrameType::kOpened;
  opened.view = 3;
  opened.member = 1;
  opened.key = 0x20001;
  opened.round = 12;
  opened.offset = 0x200000000;
  all.push_back({"a store key is opened", opened,
                 "42504c3212000000030000000100000001000200000000000c00000000000000"
                 "00000000020000000000000000000000000000000000000000000000f9d758ae"});
  Header applied;
  applied.type = FrameType::kApplied;
  applied.view = 3;
  applied.member = 1;
  applied.key = 0x20001;
  applied.round = 12;
  applied.offset = 40;
  applied.aux = 1;
  all.push_back({"a contribution is late", applied,
                 "42504c3213000000030000000100000001000200000000000c00000000000000"
                 "280000000000000000000000000000000000000001000000000000000aa26b01"});
  applied.aux = 0;
  applied.length = 2;
  applied.payload_crc = 0x4D72FE8E;
  all.push_back({"a contribution is in a version with others", applied,
                 "42504c3213000000030000000100000001000200000000000c00000000000000"
                 "280000000000000002000000000000008efe724d00000000000000009eb4891b"});
  Header pull;
  pull.type = FrameType::kPull;
  pull.view = 3;
  pull.member = 1;
  pull.key = 0x20001;
  pull.round = 12;
  pull.offset = 2048;
  pull.total = 0x1000;
  pull.aux = 5;
  pull.root = 4;
  all.push_back({"a pull of the end of a value", pull,
                 "42504c3214000000030000000100000001000200000000000c00000000000000"
                 "000800000000000000000000001000000000000005000000040000007a230819"});
  Header value;
  value.type = FrameType::kValue;
  value.dtype = DType::kFloat64;
  value.view = 3;
  value.member = 1;
  value.key = 0x20001;
  value.round = 12;
  value.offset = 2048;
  value.length = 9;
  value.total = 0x1000;
  value.payload_crc = 0xE3069283;
  value.root = 6;
  all.push_back({"a segment of a value", value,
                 "42504c3215010000030000000100000001000200000000000c00000000000000"
                 "00080000000000000900000000100000839206e3000000000600000084e0663d"});
  Header keys;
  keys.type = FrameType::kKeys;
  keys.view = 3;
  keys.member = 1;
  keys.key = 0x20001;
  keys.offset = 16;
  keys.length = 8;
  keys.total = 24;
  keys.payload_crc = 0x11223344;
  keys.aux = 7;
  keys.root = 0x55667788;
  all.push_back({"a list of ids of a table", keys,
                 "42504c3216000000030000000100000001000200000000000000000000000000"
                 "10000000000000000800000018000000443322110700000088776655342ea4da"});
  Header rows;
  rows.type = FrameType::kRows;
  rows.flags = kNoted | kSilent;
  rows.view = 3;
  rows.member = 1;
  rows.key = 0x20001;
  rows.round = 12;
  rows.length = 44;
  rows.total = 24;
  rows.payload_crc = 0xE3069283;
  rows.aux = 7;
  rows.root = 0x55667788;
  all.push_back({"a noted contribution of rows", rows,
                 "42504c3217000030030000000100000001000200000000000c00000000000000"
                 "00000000000000002c00000018000000839206e3070000008877665565232909"});
  Header fetch;
  fetch.type = FrameType::kFetch;
  fetch.view = 3;
  fetch.member = 1;
  fetch.key = 0x20001;
  fetch.round = 13;
  fetch.offset = 3;
  fetch.length = 16;
  fetch.total = 5;
  fetch.payload_crc = 0xE3069283;
  fetch.aux = 7;
  fetch.root = 0x55667788;
  all.push_back({"a request for rows that are three versions older", fetch,
                 "42504c3218000000030000000100000001000200000000000d00000000000000"
                 "03000000000000001000000005000000839206e307000000887766556bc6c053"});
  Header range;
  range.type = FrameType::kFetch;
  range.view = 3;
  range.member = 1;
  range.key = 0x20001;
  range.round = 13;
  range.priority = -2;
  range.length = 16;
  range.total = 6;
  range.payload_crc = 0xE3069283;
  range.aux = kRange;
  all.push_back({"a request for a range of rows", range,
                 "42504c3218000000030000000100000001000200000000000d000000feffffff"
                 "00000000000000001000000006000000839206e3ffffffff00000000d66ebc69"});
  Header nack;
  nack.type = FrameType::kNack;
  nack.view = 3;
  nack.member = 1;
  nack.key = 0x20001;
  nack.round = 13;
  nack.offset = 5;
  nack.total = 2;
  nack.aux = 7;
  nack.root = 0x55667788;
  all.push_back({"a list that the server doesn't have", nack,
                 "42504c3219000000030000000100000001000200000000000d00000000000000"
                 "0500000000000000000000000200000000000000070000008877665556eb159f"});
  Header call;
  call.type = FrameType::kCall;
  call.view = 3;
  call.member = 1;
  call.key = 0x20001;
  call.round = 7;
  call.priority = std::numeric_limits<int32_t>::max();
  call.length = 9;
  call.total = 12;
  call.payload_crc = 0xE3069283;
  call.aux = 3;
  all.push_back({"a call of a function on some partitions", call,
                 "42504c321d0000000300000001000000010002000000000007000000ffffff7f"
                 "0000000000000000090000000c000000839206e3030000000000000045b48027"});
  call.priority = 0;
  call.total = 9;
  call.aux = 1;
  all.push_back({"the answer that it can't be", call,
                 "42504c321d000000030000000100000001000200000000000700000000000000"
                 "00000000000000000900000009000000839206e30100000000000000d1e394a5"});
  Header cut;
  cut.type = FrameType::kCut;
  cut.view = 3;
  cut.member = 1;
  cut.key = 0x20001;
  cut.round = 5;
  cut.priority = std::numeric_limits<int32_t>::max();
  cut.length = 9;
  cut.payload_crc = 0xE3069283;
  all.push_back({"a rank that has come to a cut", cut,
                 "42504c321c0000000300000001000000010002000000000005000000ffffff7f"
                 "00000000000000000900000000000000839206e30000000000000000601af64a"});
  Header state;
  state.type = FrameType::kState;
  state.view = 3;
  state.member = 1;
  state.key = 0x20001;
  state.round = 6;
  state.length = 9;
  state.payload_crc = 0xE3069283;
  state.aux = 1;
  all.push_back({"the answer to a request that makes no sense", state,
                 "42504c321f000000030000000100000001000200000000000600000000000000"
                 "00000000000000000900000000000000839206e30100000000000000b5b7c8d4"});
  Header cutoff;
  cutoff.type = FrameType::kCutoff;
  cutoff.view = 3;
  cutoff.member = 1;
  cutoff.key = 0x20001;
  cutoff.round = 6;
  cutoff.offset = 41;
  all.push_back({"a version is about to be made without a rank", cutoff,
                 "42504c321b000000030000000100000001000200000000000600000000000000"
                 "2900000000000000000000000000000000000000000000000000000074bcb5f3"});
  Header contributors;
  contributors.type = FrameType::kContributors;
  contributors.view = 3;
  contributors.member = 1;
  contributors.key = 0x20001;
  contributors.round = 6;
  contributors.offset = 4096;
  contributors.total = 16384;
  contributors.root = 2;
  all.push_back({"a part of a contribution is in a round", contributors,
                 "42504c3220000000030000000100000001000200000000000600000000000000"
                 "001000000000000000000000004000000000000000000000020000001b2aec94"});
  Header adopt;
  adopt.type = FrameType::kAdopt;
  adopt.view = 3;
  adopt.member = 1;
  adopt.key = 0x20001;
  adopt.round = 6;
  adopt.aux = kHoldsResult | kWaits;
  all.push_back({"a rank brings a key to another server", adopt,
                 "42504c3223000000030000000100000001000200000000000600000000000000"
                 "0000000000000000000000000000000000000000030000000000000016f7bf31"});
  Header give = adopt;
  give.type = FrameType::kGive;
  give.flags = kEncoded | kMovable;
  give.aux = 0;
  give.root = 2;
  give.offset = 4096;
  give.length = 4096;
  give.total = 16384;
  all.push_back({"a segment of a result that another rank lacks", give,
                 "42504c3226000006030000000100000001000200000000000600000000000000"
                 "001000000000000000100000004000000000000000000000020000006d5971d0"});
  Header copy;
  copy.type = FrameType::kCopy;
  copy.view = 3;
  copy.member = 9;
  copy.key = 0x20001;
  copy.round = 6;
  copy.offset = 2 * kDefaultSegment;
  copy.length = kDefaultSegment;
  all.push_back({"bytes of a value on the way to its copy", copy,
                 "42504c3227000000030000000900000001000200000000000600000000000000"
                 "00000400000000000000020000000000000000000000000000000000371628d1"});
  Header copied = copy;
  copied.type = FrameType::kCopied;
  copied.member = 8;
  copied.offset = copied.length = 0;
  all.push_back({"a copy has it all", copied,
                 "42504c3228000000030000000800000001000200000000000600000000000000"
                 "00000000000000000000000000000000000000000000000000000000a6a14e55"});
  return all;
}

std::string Hex(const Encoded& bytes) {
  std::string hex;
  for (const std::byte byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", std::to_integer<unsigned>(byte));
    hex += digits;
  }
  return hex;
}

// The file that the Python codec is held to as well.
std::string SharedGoldens() {
  std::ifstream file(std::filesystem::path(BYTEPS_LIKE_SOURCE_DIR) / "tests/golden/frames.json");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Encoded Encode(const Header& header) {
  Encoded bytes;
  EncodeHeader(header, bytes);
  return bytes;
}

// A valid PUSH with `bytes` of it replaced from `at` on, and the checksum made right again.
Encoded Mutant(size_t at, uint64_t value, size_t size) {
  Encoded bytes = Encode(Goldens()[0].header);
  for (size_t i = 0; i < size; ++i) bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
  PutLittle(bytes.data() + 60, kernels::Crc32c(0, bytes.data(), 60));
  return bytes;
}

void CheckRefused(const Encoded& bytes, const char* field) {
  CAPTURE(field);
  auto decoded = DecodeHeader(bytes);
  REQUIRE_FALSE(decoded.ok());
  CHECK(decoded.status().code() == Code::kCorrupt);
  CHECK(decoded.status().message().find(field) != std::string::npos);
}

}  // namespace

TEST_CASE("frame: golden bytes both ways") {
  const std::string shared = SharedGoldens();
  for (const Golden& golden : Goldens()) {
    CAPTURE(golden.name);
    const Encoded bytes = Encode(golden.header);
    CHECK(Hex(bytes) == std::string(golden.hex));
    CHECK(shared.find(golden.hex) != std::string::npos);
    auto decoded = DecodeHeader(bytes);
    REQUIRE_MESSAGE(decoded.ok(), decoded.status().message());
    CHECK(Encode(*decoded) == bytes);
    CHECK(decoded->key == golden.header.key);
    CHECK(decoded->priority == golden.header.priority);
    CHECK(decoded->offset == golden.header.offset);
    CHECK(decoded->root == golden.header.root);
  }
}

TEST_CASE("frame: every wrong field is refused by name") {
  CheckRefused(Mutant(0, 0, 1), "magic");
  CheckRefused(Mutant(4, 0, 1), "type");
  CheckRefused(Mutant(4, kFrameTypeCount, 1), "type");
  for (const uint8_t type : kUnassigned) CheckRefused(Mutant(4, type, 1), "type");
  CheckRefused(Mutant(5, kDTypeCount, 1), "dtype");
  CheckRefused(Mutant(6, kOpCount, 1), "op");
  CheckRefused(Mutant(7, 64, 1), "flags");
  CheckRefused(Mutant(7, kNoted, 1), "offset");
  CheckRefused(Mutant(7, kNoted | kEncoded, 1), "flags");
  CheckRefused(Mutant(7, kSilent | kByReference, 1), "flags");
  CheckRefused(Mutant(7, kAbsent | kByReference, 1), "flags");
  CheckRefused(Mutant(7, kAbsent | kEncoded, 1), "flags");
  CheckRefused(Mutant(7, kAbsent, 1), "length");
  CheckRefused(Mutant(7, kEncoded | kByReference, 1), "flags");
  CheckRefused(Mutant(32, 1ull << 50, 8), "offset");
  CheckRefused(Mutant(32, ~0ull, 8), "offset");  // offset + length would wrap
  CheckRefused(Mutant(32, 0x400000 - 8, 8), "offset");
  CheckRefused(Mutant(40, kMaxPayload + 1, 4), "length");
  CheckRefused(Mutant(44, kMaxPartition + 1, 4), "total");
  CheckRefused(Mutant(7, kByReference, 1), "length");
  CheckRefused(Mutant(4, static_cast<uint8_t>(FrameType::kRegion), 1), "length");
  CheckRefused(Mutant(4, static_cast<uint8_t>(FrameType::kGoodbye), 1), "length");
  Header text;
  text.type = FrameType::kWarning;
  text.length = kMaxText + 1;
  CheckRefused(Encode(text), "length");
  for (const FrameType type : {FrameType::kCut, FrameType::kState}) {
    text.type = type;
    text.length = kMaxState + 1;
    CheckRefused(Encode(text), "length");
  }
  text.type = FrameType::kWarning;
  text.length = 0;
  text.flags = kByReference;
  CheckRefused(Encode(text), "flags");
  Header push;
  push.type = FrameType::kPush;
  push.flags = kEncoded | kByReference;
  CheckRefused(Encode(push), "flags");
  push.flags = kNoted;
  push.length = kNoteBytes - 1;
  CheckRefused(Encode(push), "length");
  push.length = kNoteBytes + 1;
  CheckRefused(Encode(push), "total");
  push.length = 0;
  for (const FrameType type : {FrameType::kResult, FrameType::kPull, FrameType::kValue}) {
    push.type = type;
    CheckRefused(Encode(push), "flags");
  }
  push.flags = 0;
  push.offset = 1;
  for (const FrameType type : {FrameType::kPull, FrameType::kValue, FrameType::kContributors, FrameType::kGive}) {
    push.type = type;
    CheckRefused(Encode(push), "total");
  }
  push.offset = 0;
  push.type = FrameType::kApplied;
  push.length = kMaxRanks + 1;
  CheckRefused(Encode(push), "length");
  for (const FrameType type : {FrameType::kOpened, FrameType::kPull}) {
    push.type = type;
    push.length = push.total = 1;
    CheckRefused(Encode(push), "length");
  }
  push.length = push.total = 0;
  push.aux = kMostLists;
  for (const FrameType type : {FrameType::kKeys, FrameType::kRows, FrameType::kFetch}) {
    push.type = type;
    CheckRefused(Encode(push), "aux");
  }
  push.aux = kRange;
  CheckRefused(Encode(push), "length");
  push.aux = 0;
  push.length = push.total = 12;
  for (const FrameType type : {FrameType::kKeys, FrameType::kFetch}) {
    push.type = type;
    CheckRefused(Encode(push), "length");
  }
  push.length = 0;
  push.type = FrameType::kKeys;
  CheckRefused(Encode(push), "total");
  push.total = 8;
  push.offset = 4;
  CheckRefused(Encode(push), "offset");
  push.offset = 16;
  for (const FrameType type : {FrameType::kKeys, FrameType::kRows}) {
    push.type = type;
    CheckRefused(Encode(push), "total");
  }
  push.offset = 0;
  push.type = FrameType::kRows;
  for (const uint8_t flags : {kByReference, kMovable, kEncoded, kAbsent}) {
    push.flags = flags;
    CheckRefused(Encode(push), "flags");
  }
  push.flags = 0;
  push.type = FrameType::kNack;
  push.length = 8;
  CheckRefused(Encode(push), "length");
  push.length = push.total = 0;
  push.type = FrameType::kResumed;
  push.flags = kEncoded;
  CheckRefused(Encode(push), "flags");
  push.type = FrameType::kResume;
  push.offset = kMaxPartition + 1;
  CheckRefused(Encode(push), "offset");
}

TEST_CASE("note: sets of ranks are bits, and come back") {
  CHECK(EncodeRanks({}).empty());
  const std::vector<uint32_t> some = {9, 0, 2};
  CHECK(EncodeRanks(some) == "\x05\x02");  // as tests/unit/server/test_note.py has it
  const auto decoded = [](const std::string& bits) { return DecodeRanks(std::as_bytes(std::span(bits))); };
  CHECK(decoded(EncodeRanks(some)) == std::vector<uint32_t>{0, 2, 9});
  CHECK(decoded("").empty());
  CHECK(decoded(std::string("\0\x80\0", 3)) == std::vector<uint32_t>{15});
}

TEST_CASE("note: golden bytes both ways, and every wrong field is refused by name") {
  const Note note{7, 2.5F, 0.125F, std::numeric_limits<float>::quiet_NaN(), 0.25F, 3, 2, kLastBlock | kPartial};
  std::array<std::byte, kNoteBytes> bytes;
  EncodeNote(note, bytes);
  std::string hex;
  for (const std::byte byte : bytes) hex += {kDigits[size_t(byte) >> 4], kDigits[size_t(byte) & 15]};
  CHECK(
      hex ==
      "07000000000020400000003e0000c07f0000803e030000000200000003000000");  // as tests/unit/server/test_note.py has it
  auto decoded = DecodeNote(bytes);
  REQUIRE(decoded.ok());
  CHECK(decoded->base == 7);
  CHECK(decoded->weight == 2.5F);
  CHECK(decoded->lr == 0.125F);
  CHECK(std::isnan(decoded->loss));
  CHECK(decoded->time == 0.25F);
  CHECK(decoded->function == 3);
  CHECK(decoded->source == 2);
  CHECK(decoded->bits == 3);
  const auto refused = [&](Note wrong, const char* field) {
    EncodeNote(wrong, bytes);
    auto got = DecodeNote(bytes);
    CHECK((!got.ok() && got.status().code() == Code::kCorrupt));
    CHECK(got.status().message().find(field) != std::string::npos);
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float weight : {0.0F, -1.0F, kInfinity, note.loss}) refused({.weight = weight}, "weight");
  for (const float lr : {-1.0F, kInfinity}) refused({.lr = lr}, "lr");
  for (const float time : {-1.0F, kInfinity, note.loss}) refused({.time = time}, "time");
  refused({.bits = 8}, "bits");
}

TEST_CASE("frame: any single wrong bit is noticed") {
  const Encoded good = Encode(Goldens()[0].header);
  for (size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    Encoded bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    CHECK_FALSE(DecodeHeader(bad).ok());
  }
}

}  // namespace byteps_like::testing
