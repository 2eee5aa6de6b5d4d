#include "compression/quantised/thc_table.h"

#include <charconv>

#include "compression/quantised/thc_tables.h"

namespace byteps_like {
namespace {

constexpr double kOneCode = 65536;

Status Invalid(const std::string& why) { return Status(Code::kInvalid, "codec thc: " + why); }

// The points in `text`, or a granularity of 0.
ThcPoints Parse(int bits, const std::string& text) {
  ThcPoints table;
  const char *at = text.data(), *const end = at + text.size();
  const size_t codes = size_t{1} << bits;
  for (size_t code = 0; code < codes; ++code) {
    const auto [stopped, error] = std::from_chars(at, end, table.points[code]);
    const bool last = code + 1 == codes;
    const bool rises = code == 0 ? table.points[0] == 0 : table.points[code] > table.points[code - 1];
    if (error != std::errc() || !rises || (last ? stopped != end : stopped == end || *stopped != '.')) return {};
    at = stopped + 1;
  }
  table.bits = bits;
  table.granularity = table.points[codes - 1];
  return table;
}

std::string Uniform(int bits) {
  std::string text = "0";
  for (int code = 1; code < 1 << bits; ++code) text += "." + std::to_string(code);
  return text;
}

// The finest that 8 bits, or else 16, can sum; tables stand in rising order.
ThcPoints Best(int bits, int clamp, uint32_t world) {
  for (const uint32_t most : {uint32_t{UINT8_MAX}, uint32_t{UINT16_MAX}}) {
    ThcPoints best;
    for (const ThcTable& row : kThcTables) {
      if (row.bits != bits || row.clamp != clamp) continue;
      const ThcPoints table = Parse(bits, row.points);
      if (table.granularity * uint64_t{world} <= most) best = table;
    }
    if (best.granularity != 0) return best;
  }
  return {};
}

}  // namespace

Result<ThcPoints> ThcPoints::Find(int bits, int clamp, const std::string& name, uint32_t world) {
  ThcPoints table = name == "auto" ? Best(bits, clamp, world) : Parse(bits, name == "uniform" ? Uniform(bits) : name);
  for (const ThcClamp& row : kThcClamps)
    if (row.one_in == clamp) table.limit = row.limit;
  if (table.limit == 0) return Invalid("clamp=" + std::to_string(clamp) + " must be 16, 32 or 64");
  if (name != "auto" && table.granularity == 0)
    return Invalid("table=" + name + " must be auto, uniform or " + std::to_string(1 << bits) +
                   " numbers up to 255 that rise from 0, as in 0.4.7.11");
  if (table.granularity == 0 || table.granularity * uint64_t{world} > UINT16_MAX)
    return Invalid("sums of " + std::to_string(world) + " contributions of " + std::to_string(bits) +
                   " bits don't fit into 16 bits");
  return table;
}

size_t ThcPoints::Ramps(float norm, float factor, ThcRamp* ramps) const {
  const double unit = granularity / (2 * limit * static_cast<double>(norm)) / static_cast<double>(factor);
  const size_t cells = (size_t{1} << bits) - 1;
  size_t count = 0;
  for (size_t begin = 0; begin < cells;) {
    const int width = points[begin + 1] - points[begin];
    size_t end = begin + 1;
    while (end < cells && points[end + 1] - points[end] == width) ++end;
    const double slope = kOneCode / width;
    ramps[count++] = {static_cast<float>(unit * slope), static_cast<float>((granularity / 2.0 - points[begin]) * slope),
                      static_cast<float>(kOneCode * static_cast<double>(end - begin))};
    begin = end;
  }
  return count;
}

}  // namespace byteps_like
