// What a CALL carries, by the bytes of the Python codec (tests/unit/server/test_call.py), and every way to be wrong.
#include "csrc/wire/call.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace byteps_like::testing::calls {
namespace {

// axpy on tensors 7 and 65,536 with a = -0.5.
const std::string kAxpy(
    "\x02\x01\x04"
    "axpy\x07\0\0\0\0\0\x01\0\x01"
    "a\0\0\0\0\0\0\xe0\xbf",
    25);

Result<ServerCall> Decode(std::string_view bytes) {
  return DecodeCall({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

}  // namespace

TEST_CASE("calls: what Python writes is read") {
  auto call = Decode(kAxpy);
  REQUIRE(call.ok());
  CHECK(call->function == "axpy");
  CHECK(call->tensors == std::vector<uint32_t>{7, 65536});
  CHECK(call->scalars == Figures{{"a", -0.5}});
}

// scale on rows 3 to 258 of table 7, of versions beyond 5.
TEST_CASE("calls: a range of rows is read") {
  const std::string scale(
      "\x01\0\x05"
      "scale\x07\0\0\0\x03\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0\x05\0\0\0\0\0\0\0",
      36);
  auto call = Decode(scale);
  REQUIRE((call.ok() && call->rows));
  CHECK(call->rows->low == 3);
  CHECK(call->rows->high == 258);
  CHECK(call->rows->since == 5);
  for (size_t count = 13; count < scale.size(); ++count)
    CHECK(Decode(scale.substr(0, count)).status().code() == Code::kCorrupt);
  CHECK(Decode(kAxpy + std::string(24, '\0')).ok());
}

TEST_CASE("calls: what is cut off, or goes on, or names nothing is refused") {
  for (size_t count = 0; count < kAxpy.size(); ++count)
    CHECK(Decode(kAxpy.substr(0, count)).status().code() == Code::kCorrupt);
  CHECK(Decode(kAxpy + "x").status().code() == Code::kCorrupt);
  CHECK(Decode(std::string("\x01\0\0\x07\0\0\0", 7)).status().code() == Code::kCorrupt);
  CHECK(Decode(std::string("\0\0\x03"
                           "dot",
                           6))
            .status()
            .code() == Code::kCorrupt);
  CHECK(Decode(std::string(kMaxCall + 1, '\x01')).status().code() == Code::kCorrupt);
}

TEST_CASE("calls: figures go out as Python reads them") {
  auto none = EncodeFigures({});
  REQUIRE(none.ok());
  CHECK(*none == std::string(1, '\0'));
  auto some = EncodeFigures({{"dot", 1.5}});
  REQUIRE(some.ok());
  CHECK(*some == std::string("\x01\x03"
                             "dot\0\0\0\0\0\0\xf8\x3f",
                             13));
  CHECK(EncodeFigures({{"", 1}}).status().code() == Code::kInvalid);
  CHECK(EncodeFigures({{std::string(65, 'x'), 1}}).status().code() == Code::kInvalid);
  CHECK(EncodeFigures(Figures(256, {"x", 1})).status().code() == Code::kInvalid);
}

}  // namespace byteps_like::testing::calls
