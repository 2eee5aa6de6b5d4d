#include "server/store/shard/spec_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

namespace byteps_like {
namespace {

constexpr std::array<std::string_view, 3> kLines = {"policy ", "combine ", "update "};
constexpr std::string_view kReplicasLine = "\nreplicas ";  // begins the line of those that several servers have
constexpr std::string_view kOfRows = "\nrows ";            // begins the last line, of tables: what rows are at first
constexpr std::string_view kFunctions = "\nfunctions ";    // a line before it, where contributions may ask for some
constexpr std::string_view kFiltered = "\nfilters ";       // a line before that, where payloads go through some
constexpr uint32_t kMostReplicas = 8;

// Of the line behind those that all have, which is taken off; nullopt: it makes no sense.
std::optional<uint32_t> TakeReplicas(std::string_view& text) {
  const size_t at = text.find(kReplicasLine);
  if (at == text.npos) return 1;
  const std::string_view number = text.substr(at + kReplicasLine.size());
  uint32_t replicas = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), replicas);
  text = text.substr(0, at);
  const bool all = error == std::errc() && end == number.data() + number.size();
  return all && replicas >= 2 && replicas <= kMostReplicas ? std::optional(replicas) : std::nullopt;
}

}  // namespace

bool IsOfRows(std::string_view text) { return text.find(kOfRows) != text.npos; }

std::string PolicyIn(std::string_view text) {
  return std::string(text.substr(kLines[0].size(), text.find('\n') - kLines[0].size()));
}

Result<SpecTerms> ParseSpec(std::string_view text) {
  const bool of_rows = IsOfRows(text);
  const size_t last = std::min(text.find(kOfRows), text.size());
  const std::string_view first_values = of_rows ? text.substr(last + kOfRows.size()) : "zeros";
  text = text.substr(0, last);
  const size_t named = of_rows ? std::min(text.find(kFunctions), text.size()) : text.size();
  const std::string_view functions = named == text.size() ? "" : text.substr(named + kFunctions.size());
  text = text.substr(0, named);
  const size_t filtered = std::min(text.find(kFiltered), text.size());
  auto filters = Filters::Parse(filtered == text.size() ? "" : text.substr(filtered + kFiltered.size()));
  if (!filters.ok()) return filters.status();
  text = text.substr(0, filtered);
  const auto replicas = TakeReplicas(text);
  if (!replicas)
    return Status(Code::kInvalid, "replicas of its spec are no number from 2 to " + std::to_string(kMostReplicas));
  std::array<std::string_view, kLines.size()> values;
  for (size_t line = 0; line < kLines.size(); ++line) {
    const size_t end = line + 1 < kLines.size() ? text.find('\n') : text.size();
    if (!text.starts_with(kLines[line]) || end == text.npos)
      return Status(Code::kInvalid, "its spec has no line \"" + std::string(kLines[line]) + "…\"");
    values[line] = text.substr(kLines[line].size(), end - kLines[line].size());
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  auto rules = StoreRules::Parse(values[0], values[1], values[2], functions, first_values);
  if (!rules.ok()) return rules.status();
  return SpecTerms{std::move(*rules), std::move(*filters), *replicas};
}

}  // namespace byteps_like
