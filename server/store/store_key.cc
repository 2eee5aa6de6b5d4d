#include "server/store/store_key.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "csrc/base/decimal.h"
#include "server/update/updates.h"

namespace byteps_like {
namespace {

constexpr std::string_view kNoUpdate = "none";
constexpr double kMostInteger = 9223372036854775808.0;  // one more than int64 holds

std::string RateText(std::optional<double> lr) { return lr ? DecimalOf(*lr) : "None"; }

std::string Pushed(const StorePush& push) { return "rank " + std::to_string(push.source) + " has pushed "; }

Status NotForIntegers() {
  return Status(Code::kInvalid, "contributions of integers can only be summed, with whole numbers as weights");
}

}  // namespace

Result<std::shared_ptr<const StoreRules>> StoreRules::Parse(std::string_view policy, std::string_view combining,
                                                            std::string_view update, std::string_view functions,
                                                            std::string_view first_values) {
  auto decides = MakeStorePolicy(policy);
  if (!decides.ok()) return decides.status();
  auto combines = MakeCombining(combining);
  if (!combines.ok()) return combines.status();
  auto updates = MakeUpdate(update);
  if (!updates.ok()) return updates.status();
  auto first = MakeFirstValues(first_values);
  if (!first.ok()) return first.status();
  if (update == kNoUpdate && !(*decides)->HasRounds())
    return Status(Code::kInvalid, "update none gives what a round has combined, and " +
                                      std::string(policy.substr(0, policy.find(':'))) +
                                      " has no rounds: use bsp, k_of_n or backup, or another update");
  auto rules = std::make_shared<StoreRules>();
  rules->policy = std::move(*decides);
  rules->combining = std::move(*combines);
  rules->update = std::move(*updates);
  rules->first_values = std::move(*first);
  rules->is_idle = update == kNoUpdate;
  while (!functions.empty()) {
    const size_t end = std::min(functions.find(' '), functions.size());
    const std::string name(functions.substr(0, end));
    functions.remove_prefix(std::min(end + 1, functions.size()));
    auto function = MakeUpdate("function:of=" + name);
    if (!function.ok()) return function.status();
    rules->functions.push_back({name, std::move(*function)});
  }
  return std::shared_ptr<const StoreRules>(std::move(rules));
}

Status StoreRules::CheckType(DType dtype) const {
  if (!update->Takes(dtype))
    return Status(Code::kInvalid, std::string("the update takes no values of ") + NameOf(dtype));
  return IsFloat(dtype) || combining->AddsIntegers() ? Status() : NotForIntegers();
}

Status StoreRules::CheckFunctions(const ValueShape& shape) const {
  for (const Function& one : functions)
    if (one.update->StateCount(shape) != 0)
      return Status(Code::kInvalid, "function " + one.name +
                                        " has a state, which only the update of a table has: take it as that, or"
                                        " register it without");
  return {};
}

const ValueUpdate& StoreRules::UpdateOf(const StorePush& push) const {
  return push.function == 0 ? *update : *functions[push.function - 1].update;
}

std::string StoreRules::FunctionOf(const StorePush& push) const {
  return push.function == 0 ? "its update" : "function " + functions[push.function - 1].name;
}

Result<std::unique_ptr<StoreKey>> StoreKey::Make(std::shared_ptr<const StoreRules> rules, StoreValue value,
                                                 uint32_t sources, double now, ShardMemory& memory) {
  if (Status status = rules->CheckType(value.dtype); !status.ok()) return status;
  auto content = DenseContent::Make(*rules->update, std::move(value), memory);
  if (!content.ok()) return content.status();
  std::unique_ptr<StoreKey> key(new StoreKey(std::move(rules), sources, now, memory));
  key->dense_ = content->get();
  key->content_ = std::move(*content);
  return key;
}

Result<std::unique_ptr<StoreKey>> StoreKey::Make(std::shared_ptr<const StoreRules> rules, StoreRows rows,
                                                 uint32_t sources, double now, ShardMemory& memory) {
  if (Status status = rules->CheckType(rows.dtype); !status.ok()) return status;
  if (rules->is_idle)
    return Status(Code::kInvalid, "update none gives what a round has combined, which rows don't have: use another");
  if (Status status = rules->CheckFunctions({1, rows.width}); !status.ok()) return status;
  if (!rules->first_values->Takes(rows.dtype))
    return Status(Code::kInvalid, std::string("rows of ") + NameOf(rows.dtype) + " begin as zeros");
  auto content = RowContent::Make(*rules->update, *rules->first_values, rows.dtype, rows.width, memory);
  if (!content.ok()) return content.status();
  std::unique_ptr<StoreKey> key(new StoreKey(std::move(rules), sources, now, memory));
  key->rows_ = content->get();
  key->content_ = std::move(*content);
  return key;
}

Status StoreKey::Push(WholePush&& whole, double now, std::vector<PushAnswer>* answers) {
  const StorePush push = whole.push;
  if (!ledger_.Knows(push.source)) return Status(Code::kCorrupt, Pushed(push) + "to a key of which it is no source");
  if (HasCome(push)) return AnswerAgain(push, answers);
  if (Status status = Check(whole); !status.ok()) return status;
  ShardBuffer fresh;
  if (Status status = content_->Reserve(&fresh); !status.ok()) return status;
  if (!push.idle)
    if (Status status = content_->Admit(whole); !status.ok()) return status;
  std::vector<Settled> events;
  if (Status status = ledger_.Push(push, now, &events); !status.ok()) return status;
  Stage(std::move(whole));
  if (Status made = Answer(events, std::move(fresh), answers); !made.ok()) return made;
  if (IsHeld(push)) answers->push_back({push, Applied::kHeld, ledger_.version()});
  return {};
}

Status StoreKey::PassTime(double now, std::vector<PushAnswer>* answers) {
  if (const auto due = ReadyAt(); !due || *due > now) return {};
  ShardBuffer fresh;
  if (Status status = content_->Reserve(&fresh); !status.ok()) return status;
  std::vector<Settled> events;
  ledger_.PassTime(now, &events);
  return Answer(events, std::move(fresh), answers);
}

Status StoreKey::Lose(uint32_t source, double now, std::vector<PushAnswer>* answers) {
  ShardBuffer fresh;
  if (Status status = content_->Reserve(&fresh); !status.ok()) return status;
  std::vector<Settled> events;
  ledger_.Lose(source, now, &events);
  Heard(source, INT64_MAX);  // nobody asks any more
  return Answer(events, std::move(fresh), answers);
}

Status StoreKey::Rest(uint32_t source, double now, std::vector<PushAnswer>* answers) {
  ShardBuffer fresh;
  if (Status status = content_->Reserve(&fresh); !status.ok()) return status;
  std::vector<Settled> events;
  ledger_.Rest(source, now, &events);
  return Answer(events, std::move(fresh), answers);
}

Status StoreKey::Change(std::shared_ptr<const StoreRules> rules, double now, std::vector<PushAnswer>* answers) {
  ShardBuffer fresh;
  if (Status status = content_->Reserve(&fresh); !status.ok()) return status;
  const auto before = std::exchange(rules_, std::move(rules));  // whose policy the ledger still has
  std::vector<Settled> events;
  ledger_.Change(*rules_->policy, now, &events);
  return Answer(events, std::move(fresh), answers);
}

Status StoreKey::Restore(ShardBuffer value, ShardBuffer state, int64_t version, double now,
                         std::vector<PushAnswer>* answers) {
  if (value.size() != 0) dense_->Replace(std::move(value));
  if (state.size() != 0) dense_->ReplaceState(std::move(state));
  return Restored(version, now, answers);
}

Result<std::unique_ptr<RowContent>> StoreKey::FreshRows() const {
  return RowContent::Make(*rules_->update, *rules_->first_values, rows_->dtype(), rows_->width(), memory_);
}

// What waits has its places among the rows there were: it goes first.
Status StoreKey::Restore(std::unique_ptr<RowContent> rows, int64_t version, double now,
                         std::vector<PushAnswer>* answers) {
  if (Status status = Restored(version, now, answers); !status.ok()) return status;
  rows_ = rows.get();
  content_ = std::move(rows);
  return {};
}

Status StoreKey::Restored(int64_t version, double now, std::vector<PushAnswer>* answers) {
  std::vector<Settled> late;
  ledger_.Drop(&late);
  const Status status = Answer(late, {}, answers);
  ledger_.Restore(version, now);
  return status;
}

void StoreKey::Heard(uint32_t source, int64_t clock) {
  unheard_.erase(unheard_.lower_bound({source, INT64_MIN}), unheard_.lower_bound({source, clock}));
}

Status StoreKey::Check(const WholePush& whole) const {
  const double weight = whole.push.weight;
  if (Status status = rules_->combining->CheckWeight(weight); !status.ok()) return status;
  if (!whole.push.last && !rules_->combining->TakesBlocks())
    return Status(Code::kInvalid,
                  "a block of a coded gradient can't be decoded: contribute all of it at once, with last=True");
  if (!IsFloat(content_->dtype()) && (weight != std::floor(weight) || weight >= kMostInteger)) return NotForIntegers();
  const double lr = whole.lr.value_or(0);
  if (!(lr >= 0 && std::isfinite(lr)))
    return Status(Code::kInvalid, "lr of a push must be at least 0 and finite, not " + DecimalOf(lr));
  return CheckAlike(whole);
}

// One version can't be made in two ways.
Status StoreKey::CheckAlike(const WholePush& whole) const {
  if (whole.push.idle) return {};
  const auto differ = [&](const Id& id, const std::string& own, const std::string& others, const char* remedy) {
    return Status(Code::kMismatch, Pushed(whole.push) + "with " + own + ", but rank " + std::to_string(id.first) +
                                       " with " + others + ", both computed on version " +
                                       std::to_string(whole.push.base) + ": " + remedy);
  };
  for (const auto& [id, other] : staged_) {
    if (other.whole.push.idle || other.whole.push.base != whole.push.base) continue;
    if (other.whole.lr != whole.lr)
      return differ(id, "lr=" + RateText(whole.lr), "lr=" + RateText(other.whole.lr),
                    "all ranks must have one schedule");
    if (other.whole.push.function != whole.push.function)
      return differ(id, rules_->FunctionOf(whole.push), rules_->FunctionOf(other.whole.push),
                    "all ranks must take the same in a round");
  }
  return {};
}

Status StoreKey::AnswerAgain(const StorePush& push, std::vector<PushAnswer>* answers) const {
  const auto answered = unheard_.find(IdOf(push));
  if (answered != unheard_.end()) {
    answers->push_back(answered->second);
    return {};
  }
  const auto staged = staged_.find(IdOf(push));
  if (staged == staged_.end())
    return Status(Code::kCorrupt, Pushed(push) + "its contribution " + std::to_string(push.clock) +
                                      " again, but it has said that it had the answer, or it has joined later");
  if (IsHeld(push)) answers->push_back({staged->second.whole.push, Applied::kHeld, ledger_.version()});
  return {};
}

void StoreKey::Stage(WholePush whole) {
  const Id id = IdOf(whole.push);
  const bool is_finite =
      whole.push.idle || IsFinite(content_->dtype(), whole.gradient.data(), content_->CountOf(whole));
  staged_.emplace(id, Staged{std::move(whole), is_finite});
}

bool StoreKey::IsHeld(const StorePush& push) const {
  return staged_.contains(IdOf(push)) && !ledger_.open().Has(push.source, push.clock);
}

std::vector<uint32_t> StoreKey::Waiters() const {
  std::vector<uint32_t> sources;
  for (const auto& [id, staged] : staged_)
    if (sources.empty() || sources.back() != id.first) sources.push_back(id.first);
  return sources;
}

Status StoreKey::Answer(std::span<const Settled> events, ShardBuffer fresh, std::vector<PushAnswer>* answers) {
  const size_t before = answers->size();
  while (!events.empty()) {
    const Settled& first = events.front();
    size_t count = 1;
    if (first.version == 0) {
      staged_.erase(IdOf(first.push));
      answers->push_back({first.push, Applied::kLate, ledger_.version()});
    } else {
      while (count < events.size() && events[count].version == first.version) ++count;
      if (Status made = MakeVersion(events.first(count), fresh, answers); !made.ok()) return made;
    }
    events = events.subspan(count);
  }
  const auto is_here = [this](uint32_t source) {
    return ledger_.source(source).live || ledger_.source(source).resting;
  };
  for (const PushAnswer& answer : std::span(*answers).subspan(before))
    if (is_here(answer.push.source)) unheard_.insert_or_assign(IdOf(answer.push), answer);
  return {};
}

Status StoreKey::MakeVersion(std::span<const Settled> made, ShardBuffer& fresh, std::vector<PushAnswer>* answers) {
  const size_t before = answers->size();
  std::vector<WholePush> finite;
  for (const Settled& one : made) {
    Staged staged = std::move(staged_.extract(IdOf(one.push)).mapped());
    answers->push_back({one.push, staged.is_finite ? Applied::kCounted : Applied::kNotFinite, one.version});
    if (staged.is_finite && !one.push.idle) finite.push_back(std::move(staged.whole));
  }
  const std::span those = std::span(*answers).subspan(before);
  if (!finite.empty()) {
    auto applied = Apply(made.front().version, finite, fresh);
    if (!applied.ok()) return applied.status();
    if (!*applied)
      for (PushAnswer& answer : those)
        if (!answer.push.idle) answer.applied = Applied::kNotFinite;
  }
  if (those.size() > 1 || those.front().push.idle) NameContributors(those);
  return {};
}

// To the answers to all contributions for one version.
void StoreKey::NameContributors(std::span<PushAnswer> answers) {
  std::vector<uint32_t> sources;
  for (const PushAnswer& answer : answers)
    if (answer.applied == Applied::kCounted && !answer.push.idle) sources.push_back(answer.push.source);
  std::ranges::sort(sources);
  sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
  const auto several = std::make_shared<const std::vector<uint32_t>>(std::move(sources));
  for (PushAnswer& answer : answers) answer.several = several;
}

// False if they add up to what is not finite, or to nothing: then nothing has changed. An error is the update's.
Result<bool> StoreKey::Apply(int64_t version, std::span<WholePush> pushes, ShardBuffer& fresh) {
  std::vector<StorePush> notes;
  for (const WholePush& one : pushes) notes.push_back(one.push);
  if (rules_->policy->Observes() && pushes.size() > 1)
    if (const auto estimate = content_->Estimate(pushes)) ledger_.Observe(*estimate);
  const std::vector<double> factors = rules_->combining->Factors(notes, version);
  if (factors.empty()) return false;
  const auto newest = std::ranges::max_element(pushes, {}, [](const WholePush& one) { return one.push.base; });
  const ValueUpdate& update = rules_->UpdateOf(newest->push);
  const double lr = newest->lr.value_or(update.lr());
  auto applied = content_->Apply(
      {.version = version, .pushes = pushes, .factors = factors, .lr = lr, .update = update, .made_of = notes}, fresh);
  if (made_ == nullptr || !applied.ok() || !*applied) return applied;
  auto combined = content_->TakeCombined(pushes);
  if (!combined.ok()) return combined.status();
  made_->push_back({version, lr, std::move(notes), std::move(*combined)});
  return true;
}

// Copies

std::vector<PushAnswer> StoreKey::Unheard() const {
  std::vector<PushAnswer> answers;
  answers.reserve(unheard_.size());
  for (const auto& [id, answer] : unheard_) answers.push_back(answer);
  return answers;
}

int64_t StoreKey::FirstUnheard(uint32_t source) const {
  const auto first = unheard_.lower_bound({source, INT64_MIN});
  return first != unheard_.end() && first->first.first == source ? first->first.second : INT64_MAX;
}

// By itself, what the contributions added up to becomes the same again.
Status StoreKey::Follow(MadeVersion& made) {
  constexpr double kOnce = 1;
  ShardBuffer fresh;
  if (Status status = content_->Reserve(&fresh); !status.ok()) return status;
  WholePush whole{.push = {}, .gradient = std::move(made.gradient.bytes), .lr = {}, .rows = {made.gradient.rows, {}}};
  if (Status status = content_->Admit(whole); !status.ok()) return status;
  const auto newest = std::ranges::max_element(made.made_of, {}, &StorePush::base);
  if (newest == made.made_of.end() || newest->function > rules_->functions.size())
    return Status(Code::kCorrupt, "a version is made of nothing, or in a way that there isn't");
  const auto applied = content_->Apply({.version = made.version,
                                        .pushes = {&whole, 1},
                                        .factors = {&kOnce, 1},
                                        .lr = made.lr,
                                        .update = rules_->UpdateOf(*newest),
                                        .made_of = made.made_of},
                                       fresh);
  made.gradient.bytes = std::move(whole.gradient);
  return applied.status();
}

void StoreKey::Follow(int64_t version, std::span<const PushAnswer> settled) {
  ledger_.Follow(version);
  for (const PushAnswer& answer : settled) {
    const StorePush& push = answer.push;
    if (ledger_.source(push.source).clock <= push.clock) ledger_.Follow(push.source, push.clock + 1, !push.last);
    unheard_.insert_or_assign(IdOf(push), answer);
  }
}

}  // namespace byteps_like
