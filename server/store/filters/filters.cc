#include "server/store/filters/filters.h"

#include <algorithm>
#include <string>

#include "csrc/base/hook.h"
#include "server/store/filters/codec_filter.h"

namespace byteps_like {

Result<FilterPointer> MakeFactors(CodecSpec& spec);
Result<FilterPointer> MakeFixedFloat(CodecSpec& spec);
Result<FilterPointer> MakeZlib(CodecSpec& spec);

namespace {

struct Row {
  const char* name;
  FilterMaker make;
};

constexpr Row kRows[] = {{"factors", MakeFactors}, {"float", MakeFixedFloat}, {"zlib", MakeZlib}};

Result<FilterPointer> MakeFilter(std::string_view text) {
  auto spec = CodecSpec::Parse(text, "filter");
  if (!spec.ok()) return spec.status();
  std::string known;
  for (const Row& row : kRows) {
    if (spec->name() == row.name) return row.make(*spec);
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  auto codec = MakeCodecFilter(text);
  if (!codec.ok() || *codec != nullptr) return codec;
  const FilterFinder find = TheHook<FilterFinder>().Get();
  auto own = find ? find(std::string(text)) : FilterPointer();
  if (!own.ok() || *own != nullptr) return own;
  return Status(Code::kInvalid,
                "this server has no filter " + spec->name() + "; it has " + known +
                    ", all codecs, and others if it is started with --import and the module that registers them");
}

}  // namespace

Result<std::shared_ptr<const Filters>> Filters::Parse(std::string_view texts) {
  auto filters = std::make_shared<Filters>();
  while (!texts.empty()) {
    const size_t end = std::min(texts.find(' '), texts.size());
    auto made = MakeFilter(texts.substr(0, end));
    if (!made.ok()) return made.status();
    if ((*made)->TakesRows() && !filters->empty())
      return Status(Code::kInvalid, "filter " + std::string(texts.substr(0, end)) + " takes rows: let it be the first");
    filters->all_.push_back(made->get());
    if ((*made)->OfValues()) filters->of_values_.push_back(made->get());
    filters->filters_.push_back(std::move(*made));
    texts.remove_prefix(std::min(texts.size(), end + 1));
  }
  return std::shared_ptr<const Filters>(std::move(filters));
}

void SetFilterFinder(FilterFinder finder) { TheHook<FilterFinder>().Set(std::move(finder)); }

Status Filters::Check(DType dtype) const {
  for (const FilterPointer& one : filters_)
    if (Status status = one->Check(dtype); !status.ok()) return status;
  return {};
}

// Of the rows, and of what each filter makes of what comes before it.
std::vector<size_t> Filters::MostOfEach(DType dtype, size_t rows) const {
  std::vector<size_t> most = {rows};
  for (const FilterPointer& one : filters_) most.push_back(one->Most(dtype, most.back()));
  return most;
}

bool Filters::Fits(DType dtype, size_t rows, size_t total) const {
  return filters_.empty() || rows == 0 ? total == rows : total <= MostOfEach(dtype, rows).back();
}

Result<Filtered> Filters::Encode(DType dtype, const Draw& draw, std::span<const std::byte> rows, size_t most,
                                 ShardMemory& memory) const {
  return EncodeBy(all_, dtype, draw, rows, most, memory);
}

Result<Filtered> Filters::EncodeValue(DType dtype, const Draw& draw, std::span<const std::byte> value, size_t most,
                                      ShardMemory& memory) const {
  return EncodeBy(of_values_, dtype, draw, value, most, memory);
}

Result<Filtered> Filters::EncodeBy(const Chain& chain, DType dtype, const Draw& draw, std::span<const std::byte> rows,
                                   size_t most, ShardMemory& memory) {
  Filtered made;
  for (auto one = chain.begin(); one != chain.end() && !rows.empty(); ++one) {
    const size_t room = (*one)->Most(dtype, rows.size());
    ShardBuffer buffer = memory.Take(room);
    if (buffer.size() == 0) return memory.Exhausted();
    auto bytes = (*one)->Encode(dtype, draw, rows, {buffer.data(), room});
    if (!bytes.ok()) return bytes.status();
    made = {std::move(buffer), *bytes};
    rows = {made.buffer.data(), made.bytes};
  }
  if (made.bytes > most)
    return Status(Code::kInvalid, "filters make " + std::to_string(made.bytes) + " bytes of some rows, and " +
                                      std::to_string(most) + " is the limit: read fewer rows at a time");
  return made;
}

Result<Filtered> Filters::Decode(DType dtype, Filtered payload, size_t rows, ShardMemory& memory) const {
  if (rows == 0) return payload;
  const auto most = MostOfEach(dtype, rows);
  for (size_t i = filters_.size(); i-- > 0;) {
    ShardBuffer buffer = memory.Take(most[i]);
    if (buffer.size() == 0) return memory.Exhausted();
    auto bytes = filters_[i]->Decode(dtype, {payload.buffer.data(), payload.bytes}, {buffer.data(), most[i]});
    if (!bytes.ok()) return bytes.status();
    payload = {std::move(buffer), *bytes};
  }
  if (payload.bytes == rows) return payload;
  return Status(Code::kCorrupt, "a payload stands for " + std::to_string(payload.bytes) + " bytes, and its rows have " +
                                    std::to_string(rows));
}

}  // namespace byteps_like
