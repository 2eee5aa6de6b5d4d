#include <cmath>
#include <cstdlib>

#include "csrc/transport/chaos/chaos.h"

namespace byteps_like {
namespace {

constexpr double kDefaultStall = 0.001;
constexpr double kDefaultStallMs = 50;
constexpr double kNoLimit = 1e15;

struct Option {
  const char* name;
  double ChaosOptions::* value;
  double limit;
};

constexpr Option kOptions[] = {
    {"delay_ms", &ChaosOptions::delay_ms, 60'000},
    {"rate", &ChaosOptions::rate, kNoLimit},
    {"drop", &ChaosOptions::drop, 1},
    {"corrupt", &ChaosOptions::corrupt, 1},
    {"stall", &ChaosOptions::stall, 1},
    {"stall_ms", &ChaosOptions::stall_ms, 600'000},
};

Status Set(const std::string& name, const std::string& text, ChaosOptions* options) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool number = !text.empty() && *end == '\0' && std::isfinite(value);
  if (name == "seed" && number && value >= 0 && value <= kNoLimit) {
    options->seed = static_cast<uint64_t>(value);
    return {};
  }
  for (const Option& option : kOptions) {
    if (name != option.name) continue;
    if (!number || value < 0 || value > option.limit) break;
    options->*option.value = value;
    return {};
  }
  return Status(Code::kInvalid, "chaos option " + name + "=" + text + " is unknown or out of range");
}

}  // namespace

Result<ChaosOptions> ParseChaosOptions(const Url& url) {
  ChaosOptions options;
  for (const auto& [name, text] : url.query) {
    if (Status set = Set(name, text, &options); !set.ok()) return set;
  }
  if (options.stall > 0 && options.stall_ms == 0) options.stall_ms = kDefaultStallMs;
  if (options.stall_ms > 0 && options.stall == 0) options.stall = kDefaultStall;
  return options;
}

}  // namespace byteps_like
