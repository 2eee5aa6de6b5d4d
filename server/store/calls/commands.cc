#include "server/store/calls/commands.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "csrc/base/hook.h"

namespace byteps_like {
namespace {

struct Row {
  std::string_view name;
  CommandPointer (*make)();
};

constexpr Row kRows[] = {
    {"dot", MakeDot},
    {"axpy", MakeAxpy},
    {"scale", MakeScale},
    {"copy", MakeCopy},
    {"merge", MakeMerge},
    {"portions.begin", MakeBeginPass},
    {"portions.take", MakeTakePortion},
    {"portions.claim", MakeClaimPortion},
    {"portions.finish", MakeFinishPortion},
};

}  // namespace

void SetCommandFinder(CommandFinder finder) { TheHook<CommandFinder>().Set(std::move(finder)); }

Result<CommandPointer> FindCommand(const std::string& name) {
  const auto row = std::ranges::find(kRows, name, &Row::name);
  if (row != std::end(kRows)) return row->make();
  const CommandFinder find = TheHook<CommandFinder>().Get();
  CommandPointer own = find ? find(name) : nullptr;
  if (own != nullptr) return own;
  std::string known;
  for (const Row& one : kRows) known += (known.empty() ? "" : ", ") + std::string(one.name);
  return Status(Code::kInvalid, "this server has no function " + name + "; it has " + known +
                                    ", and others if it is started with --import and the module that registers them");
}

void AddTo(Figures& figures, const std::string& name, double amount) {
  const auto known = std::ranges::find(figures, name, &std::pair<std::string, double>::first);
  if (known == figures.end()) {
    figures.emplace_back(name, amount);
  } else {
    known->second += amount;
  }
}

}  // namespace byteps_like
