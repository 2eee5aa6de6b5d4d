#include "server/store/chain/record.h"

#include <algorithm>
#include <utility>

#include "csrc/wire/frame.h"
#include "csrc/wire/note.h"
#include "server/store/fields.h"

namespace byteps_like {
namespace {

constexpr uint32_t kMostFields = 1u << 20;  // of a kind, in a text

Status Misfits(const char* what) { return Status(Code::kCorrupt, std::string("what goes to its copy has no ") + what); }

void AppendPush(std::string& to, const StorePush& push) {
  Append(to, push.source);
  Append(to, push.clock);
  Append(to, push.base);
  Append(to, push.weight);
  Append(to, push.loss);
  Append(to, push.bytes);
  Append(to, push.idle);
  Append(to, push.last);
  Append(to, push.function);
}

bool TakePush(Fields& from, StorePush* push) {
  return from.Take(&push->source) && from.Take(&push->clock) && from.Take(&push->base) && from.Take(&push->weight) &&
         from.Take(&push->loss) && from.Take(&push->bytes) && from.Take(&push->idle) && from.Take(&push->last) &&
         from.Take(&push->function);
}

// Who is in a version is the same for all that settle with it.
enum Sharing : uint8_t { kAlone = 0, kNamed = 1, kAsBefore = 2 };

void AppendAnswers(std::string& to, std::span<const PushAnswer> answers) {
  Append(to, static_cast<uint32_t>(answers.size()));
  const std::vector<uint32_t>* before = nullptr;
  for (const PushAnswer& one : answers) {
    AppendPush(to, one.push);
    Append(to, static_cast<uint8_t>(one.applied));
    Append(to, one.version);
    const std::vector<uint32_t>* const several = one.several.get();
    const Sharing how = several == nullptr ? kAlone : several == before ? kAsBefore : kNamed;
    Append(to, static_cast<uint8_t>(how));
    if (how == kNamed) Append(to, std::string_view(EncodeRanks(*several)));
    if (several != nullptr) before = several;
  }
}

bool TakeCount(Fields& from, uint32_t* count) { return from.Take(count) && *count <= kMostFields; }

bool TakeAnswer(Fields& from, PushAnswer* answer, std::shared_ptr<const std::vector<uint32_t>>& before) {
  uint8_t applied = 0, how = 0;
  if (!TakePush(from, &answer->push) || !from.Take(&applied) || !from.Take(&answer->version) || !from.Take(&how))
    return false;
  if (applied > static_cast<uint8_t>(Applied::kNotFinite) || how > kAsBefore) return false;
  answer->applied = static_cast<Applied>(applied);
  std::string ranks;
  if (how == kNamed) {
    if (!from.Take(&ranks)) return false;
    before = std::make_shared<const std::vector<uint32_t>>(DecodeRanks(std::as_bytes(std::span(ranks))));
  }
  if (how != kAlone) answer->several = before;
  return how == kAlone || before != nullptr;
}

bool TakeAnswers(Fields& from, std::vector<PushAnswer>* answers) {
  uint32_t count = 0;
  if (!TakeCount(from, &count)) return false;
  std::shared_ptr<const std::vector<uint32_t>> before;
  for (uint32_t i = 0; i < count; ++i)
    if (!TakeAnswer(from, &answers->emplace_back(), before)) return false;
  return true;
}

void AppendTerms(std::string& to, const KeyTerms& terms) {
  Append(to, std::string_view(terms.spec));
  Append(to, std::string_view(terms.former));
  Append(to, static_cast<uint8_t>(terms.dtype));
  Append(to, terms.total);
  Append(to, terms.width);
  Append(to, terms.begun_by);
  Append(to, terms.first);
  Append(to, terms.home);
}

bool TakeTerms(Fields& from, KeyTerms* terms) {
  uint8_t dtype = 0;
  if (!from.Take(&terms->spec) || !from.Take(&terms->former) || !from.Take(&dtype) || dtype >= kDTypeCount)
    return false;
  terms->dtype = static_cast<DType>(dtype);
  return from.Take(&terms->total) && from.Take(&terms->width) && from.Take(&terms->begun_by) &&
         from.Take(&terms->first) && from.Take(&terms->home) && terms->total <= kMaxPartition && terms->width != 0;
}

bool TakeSources(Fields& from, std::vector<CopiedSource>* sources) {
  uint32_t count = 0;
  if (!TakeCount(from, &count)) return false;
  for (uint32_t i = 0; i < count; ++i) {
    CopiedSource& one = sources->emplace_back();
    if (!from.Take(&one.clock) || !from.Take(&one.unfinished) || !from.Take(&one.forgotten)) return false;
  }
  return true;
}

bool TakeServers(Fields& from, std::vector<uint32_t>* servers) {
  uint32_t count = 0;
  if (!TakeCount(from, &count)) return false;
  for (uint32_t i = 0; i < count; ++i)
    if (!from.Take(&servers->emplace_back())) return false;
  return true;
}

bool TakeMade(Fields& from, CopyUpdate::Made* made) {
  uint32_t count = 0;
  if (!from.Take(&made->version.version) || !from.Take(&made->version.lr) || !TakeCount(from, &count)) return false;
  for (uint32_t i = 0; i < count; ++i)
    if (!TakePush(from, &made->version.made_of.emplace_back())) return false;
  return from.Take(&made->bytes) && from.Take(&made->ids) && made->bytes <= kMaxPartition && made->ids <= kMaxPartition;
}

}  // namespace

std::string TextOf(const WholeCopy& whole) {
  std::string text;
  AppendTerms(text, whole.terms);
  Append(text, static_cast<uint32_t>(whole.before.size()));
  for (const uint32_t server : whole.before) Append(text, server);
  Append(text, whole.copies);
  Append(text, whole.version);
  Append(text, static_cast<uint32_t>(whole.sources.size()));
  for (const CopiedSource& one : whole.sources) {
    Append(text, one.clock);
    Append(text, one.unfinished);
    Append(text, one.forgotten);
  }
  AppendAnswers(text, whole.unheard);
  return text;
}

Result<WholeCopy> ReadWhole(std::span<const std::byte> text) {
  Fields from(text);
  WholeCopy whole;
  if (!TakeTerms(from, &whole.terms)) return Misfits("terms");
  if (!TakeServers(from, &whole.before) || !from.Take(&whole.copies) || !from.Take(&whole.version))
    return Misfits("place in its chain, or no version");
  if (!TakeSources(from, &whole.sources)) return Misfits("clocks");
  if (!TakeAnswers(from, &whole.unheard) || !from.rest().empty()) return Misfits("answers");
  return whole;
}

CopyRecord RecordOf(int64_t version, std::span<const PushAnswer> settled, std::span<const int64_t> heard,
                    std::vector<MadeVersion> made, size_t bytes) {
  CopyRecord record;
  std::string& text = record.text;
  Append(text, version);
  AppendAnswers(text, settled);
  for (const int64_t clock : heard) Append(text, clock);
  Append(text, static_cast<uint32_t>(made.size()));
  for (MadeVersion& one : made) {
    Append(text, one.version);
    Append(text, one.lr);
    Append(text, static_cast<uint32_t>(one.made_of.size()));
    for (const StorePush& push : one.made_of) AppendPush(text, push);
    const size_t rows = one.gradient.rows == nullptr ? 0 : one.gradient.rows->count;
    const size_t all = one.gradient.rows == nullptr ? bytes : rows * bytes;
    Append(text, static_cast<uint64_t>(all));
    Append(text, static_cast<uint64_t>(rows));
    AddGradient(record, std::move(one.gradient), all);
  }
  return record;
}

// Behind the ids of its rows.
void AddGradient(CopyRecord& to, CombinedGradient gradient, size_t bytes) {
  if (gradient.rows != nullptr)
    to.bulk.push_back({gradient.rows->bytes.data(), gradient.rows->count * sizeof(uint64_t), gradient.rows});
  auto keep = std::make_shared<const ShardBuffer>(std::move(gradient.bytes));
  to.bulk.push_back({keep->data(), bytes, keep});
}

Result<CopyUpdate> ReadUpdate(std::span<const std::byte> text) {
  Fields from(text);
  CopyUpdate update;
  if (!from.Take(&update.version) || !TakeAnswers(from, &update.settled)) return Misfits("answers");
  for (size_t i = 0; i < update.settled.size(); ++i)
    if (!from.Take(&update.heard.emplace_back())) return Misfits("word of what was heard");
  uint32_t count = 0;
  if (!TakeCount(from, &count)) return Misfits("versions");
  for (uint32_t i = 0; i < count; ++i)
    if (!TakeMade(from, &update.made.emplace_back())) return Misfits("versions");
  if (!from.rest().empty()) return Misfits("end where it should");
  return update;
}

}  // namespace byteps_like
