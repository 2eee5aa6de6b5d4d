#include "server/store/shard/spec_text.h"

#include <algorithm>
#include <array>
#include <utility>

namespace byteps_like {
namespace {

constexpr std::array<std::string_view, 3> kLines = {"policy ", "combine ", "update "};
constexpr std::string_view kOfRows = "\nrows zeros";  // the last line, of tables
constexpr std::string_view kFiltered = "\nfilters ";  // a line before it, where payloads go through some

}  // namespace

bool IsOfRows(std::string_view text) { return text.ends_with(kOfRows); }

std::string PolicyIn(std::string_view text) {
  return std::string(text.substr(kLines[0].size(), text.find('\n') - kLines[0].size()));
}

Result<SpecTerms> ParseSpec(std::string_view text) {
  const bool of_rows = IsOfRows(text);
  if (of_rows) text.remove_suffix(kOfRows.size());
  const size_t filtered = std::min(text.find(kFiltered), text.size());
  auto filters = Filters::Parse(filtered == text.size() ? "" : text.substr(filtered + kFiltered.size()));
  if (!filters.ok()) return filters.status();
  text = text.substr(0, filtered);
  std::array<std::string_view, kLines.size()> values;
  for (size_t line = 0; line < kLines.size(); ++line) {
    const size_t end = line + 1 < kLines.size() ? text.find('\n') : text.size();
    if (!text.starts_with(kLines[line]) || end == text.npos)
      return Status(Code::kInvalid, "its spec has no line \"" + std::string(kLines[line]) + "…\"");
    values[line] = text.substr(kLines[line].size(), end - kLines[line].size());
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  auto rules = StoreRules::Parse(values[0], values[1], values[2]);
  if (!rules.ok()) return rules.status();
  return SpecTerms{std::move(*rules), std::move(*filters)};
}

}  // namespace byteps_like
