#include "csrc/engine/keeping/kept_keys.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace byteps_like {
KeptKeys::KeptKeys(EngineContext& context, KeepSink& sink, std::function<void()> kick)
    : context_(context),
      sink_(sink),
      kick_(std::move(kick)),
      calls_([this](uint64_t key, uint64_t order) { return HasSent(key, order); }, *this),
      saving_([this](uint64_t key, uint64_t order) { return HasSent(key, order); }, *this) {}

// What is asked for

void KeptKeys::Open(KeySpec spec, const std::string& text, const std::byte* initial, KeepTicket opening) {
  if (ended_) return sink_.Settled(opening, *ended_, {});
  spec.text = NumberOf(text);
  KeepSink& own = *this;
  const auto [found, is_new] = keys_.try_emplace(spec.key);
  if (!is_new)
    if (Status other = CheckKind(spec.key, false); !other.ok()) return sink_.Settled(opening, other, {});
  if (is_new) found->second.value = std::make_unique<KeptKey>(spec, own);
  Open(found->second, spec, initial, std::move(opening));
}

void KeptKeys::OpenTable(KeySpec spec, const std::string& text, KeepTicket opening) {
  if (ended_) return sink_.Settled(opening, *ended_, {});
  spec.text = NumberOf(text);
  KeepSink& own = *this;
  const auto [found, is_new] = keys_.try_emplace(spec.key);
  if (!is_new)
    if (Status other = CheckKind(spec.key, true); !other.ok()) return sink_.Settled(opening, other, {});
  if (is_new) found->second.table = std::make_unique<KeptTable>(spec, own);
  Open(found->second, spec, nullptr, std::move(opening));
}

void KeptKeys::Open(Entry& entry, const KeySpec& spec, const std::byte* initial, KeepTicket opening) {
  ++under_way_;
  if (entry.kept().opened()) {
    entry.kept().Change(spec.text, std::move(opening));
  } else {
    entry.kept().Open(initial, std::move(opening));
  }
  Queue(entry);
}

void KeptKeys::Push(uint64_t key, KeepPush push) {
  const auto found = keys_.find(key);
  const bool table = push.idle && found != keys_.end() ? found->second.table != nullptr : push.rows != nullptr;
  Entry* const entry = Opened(key, table, push.ticket);
  if (entry == nullptr) return;
  if (entry->table) {
    entry->table->Push(std::move(push));
  } else {
    entry->value->Push(std::move(push));
  }
  Queue(*entry);
}

void KeptKeys::Read(uint64_t key, KeepRead read) {
  Entry* const entry = Opened(key, false, read.ticket);
  if (entry == nullptr) return;
  entry->value->Read(std::move(read));
  Queue(*entry);
}

void KeptKeys::Fetch(uint64_t key, KeepFetch fetch) {
  Entry* const entry = Opened(key, true, fetch.ticket);
  if (entry == nullptr) return;
  entry->table->Fetch(std::move(fetch));
  Queue(*entry);
}

void KeptKeys::Call(KeepCall call) { Ask(calls_, std::move(call)); }

void KeptKeys::Ask(KeepCall request) { Ask(saving_, std::move(request)); }

void KeptKeys::Ask(KeptCalls& among, KeepCall call) {
  for (const uint64_t key : call.keys)
    if (const Status never = CheckOpened(key); !never.ok()) return sink_.Settled(call.ticket, never, {});
  ++under_way_;
  among.Call(std::move(call));
  kick_();
}

// For something that is under way from here on; nullptr: it has failed.
KeptKeys::Entry* KeptKeys::Opened(uint64_t key, bool table, const KeepTicket& ticket) {
  if (const Status never = CheckKind(key, table); !never.ok()) {
    sink_.Settled(ticket, never, {});
    return nullptr;
  }
  ++under_way_;
  return &keys_.at(key);
}

Status KeptKeys::CheckKind(uint64_t key, bool table) const {
  if (Status never = CheckOpened(key); !never.ok()) return never;
  if ((keys_.at(key).table != nullptr) == table) return Status();
  return Status(Code::kInvalid, "store key " + std::to_string(key) + (table ? " is no table" : " is a table"));
}

Status KeptKeys::CheckOpened(uint64_t key) const {
  if (ended_) return *ended_;
  if (keys_.contains(key)) return Status();
  return Status(Code::kInvalid, "store key " + std::to_string(key) + " was not opened");
}

bool KeptKeys::Forget(uint64_t key) {
  const auto found = keys_.find(key);
  if (found == keys_.end() || found->second.kept().busy()) return false;
  Dequeue(found->second);
  keys_.erase(found);
  return true;
}

void KeptKeys::Dequeue(Entry& entry) {
  std::priority_queue<Turn> others;
  for (; !turns_.empty(); turns_.pop())
    if (turns_.top().entry != &entry) others.push(turns_.top());
  turns_.swap(others);
  std::erase(starved_, &entry);
  entry.queued = false;
}

void KeptKeys::Move(uint64_t key, KeptKeys& to) {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return;
  Dequeue(found->second);
  KeepSink& sink = to;
  found->second.kept().Move(sink, [&](uint32_t text) { return to.NumberOf(texts_[text]); });
  found->second.kept().OnNewLink();
  const size_t moves = found->second.kept().under_way();
  under_way_ -= moves;
  to.under_way_ += moves;
  auto node = keys_.extract(found);
  to.Queue(to.keys_.insert(std::move(node)).position->second);
}

void KeptKeys::End(const Status& why) {
  ended_ = why;
  turns_ = {};
  starved_.clear();
  for (auto& [number, entry] : keys_) entry.kept().End(why);
  calls_.End(why);
  saving_.End(why);
}

uint32_t KeptKeys::NumberOf(const std::string& text) {
  const auto known = std::ranges::find(texts_, text);
  const auto number = static_cast<uint32_t>(known - texts_.begin());
  if (known == texts_.end()) texts_.push_back(text);
  return number;
}

// Whose turn it is

void KeptKeys::OnNewLink() {
  announced_.clear();
  turns_ = {};
  starved_.clear();
  unanswered_ = lent_ = 0;
  calls_.OnNewLink();
  saving_.OnNewLink();
  for (auto& [number, entry] : keys_) {
    entry.kept().OnNewLink();
    entry.queued = false;
    Queue(entry);
  }
}

void KeptKeys::Queue(Entry& entry) {
  const auto next = entry.kept().next();
  if (!next || std::exchange(entry.queued, true)) return;
  turns_.push({*next, &entry});
  kick_();
}

// Those of which one goes next, before all else; nullptr: none does.
KeptCalls* KeptKeys::DueCalls() { return calls_.due() ? &calls_ : saving_.due() ? &saving_ : nullptr; }

std::optional<int32_t> KeptKeys::NextPriority() {
  if (DueCalls() != nullptr) return std::numeric_limits<int32_t>::max();
  while (!turns_.empty()) {
    Entry& entry = *turns_.top().entry;
    const auto begins = entry.kept().begins();
    if (!begins || HasCredit(*begins)) return turns_.top().at.priority;
    turns_.pop();
    entry.queued = false;
    Starve(entry);
  }
  return std::nullopt;
}

void KeptKeys::Next(size_t segment, Outgoing& next) {
  if (KeptCalls* const due = DueCalls()) {
    due->Next(next);
    next.header.view = context_.options.credentials.view;
    next.header.member = context_.options.member;
    return;
  }
  Entry& entry = *turns_.top().entry;
  turns_.pop();
  entry.queued = false;
  unanswered_ -= entry.kept().unanswered();
  entry.kept().Next(segment, next);
  unanswered_ += entry.kept().unanswered();
  next.header.view = context_.options.credentials.view;
  next.header.member = context_.options.member;
  if (next.header.type == FrameType::kSpec && announced_.insert(next.header.aux).second) {
    const std::string& text = texts_[next.header.aux];
    next.header.length = static_cast<uint32_t>(text.size());
    next.payload = reinterpret_cast<const std::byte*>(text.data());
  }
  Queue(entry);
}

// A key that is not used any more has nothing to send.
bool KeptKeys::HasSent(uint64_t key, uint64_t order) {
  const auto found = keys_.find(key);
  return found == keys_.end() || found->second.kept().HasSent(order);
}

// Two of the longest at least: one is on its way while the other is applied. So a server holds no more of a rank.
bool KeptKeys::HasCredit(uint64_t bytes) const {
  return unanswered_ + bytes <= std::max<uint64_t>(context_.credit_bytes + lent_, 2 * bytes);
}

// Until something is answered. What waits at the server for other ranks may wait for what they have in mind to push
// after something that waits here: after a moment without answers credit is lent.
void KeptKeys::Starve(Entry& entry) {
  starved_.push_back(&entry);
  if (std::exchange(lending_armed_, true)) return;
  context_.loop.CallAt(Clock::now() + context_.options.lend_after, [this] { LendCredit(); });
}

void KeptKeys::LendCredit() {
  lending_armed_ = false;
  if (starved_.empty()) return;
  if (Clock::now() - last_answer_ >= context_.options.lend_after) lent_ = std::max(2 * lent_, unanswered_);
  Feed();
}

void KeptKeys::Feed() {
  for (Entry* const entry : std::exchange(starved_, {})) Queue(*entry);
}

// What comes

std::byte* KeptKeys::PlaceFor(const Header& header) { return keys_.at(header.key).kept().PlaceFor(header); }

Status KeptKeys::OnFrame(const Header& header, const std::byte* payload) {
  Entry& entry = keys_.at(header.key);
  const uint64_t before = entry.kept().unanswered();
  Status status = entry.kept().OnFrame(header, payload);
  if (status.code() == Code::kInvalid) return Refuse(entry, status);
  const uint64_t answered = before - entry.kept().unanswered();
  unanswered_ -= answered;
  last_answer_ = Clock::now();
  if (unanswered_ <= context_.credit_bytes) lent_ = 0;
  Queue(entry);
  if (answered != 0) Feed();
  if (calls_.waits() || saving_.waits()) kick_();
  return status;
}

Status KeptKeys::OnAnswer(const Header& header, std::string payload) {
  KeptCalls& asked = header.type == FrameType::kCall ? calls_ : saving_;
  Status status = asked.OnAnswer(header, std::move(payload));
  if (asked.waits()) kick_();
  return status;
}

// It may be opened again, as it should be.
Status KeptKeys::Refuse(Entry& entry, const Status& why) {
  entry.kept().End(why);
  keys_.erase(entry.kept().spec().key);
  return Status();
}

void KeptKeys::Settled(const KeepTicket& ticket, const Status& status, KeepOutcome outcome) {
  --under_way_;
  sink_.Settled(ticket, status, outcome);
}

}  // namespace byteps_like
