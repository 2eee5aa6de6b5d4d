#include "compression/spec.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

namespace byteps_like {
namespace {

template <typename T>
bool Number(const std::string& text, T* value) {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stopped == end;
}

}  // namespace

Result<CodecSpec> CodecSpec::Parse(std::string_view text, std::string_view what) {
  CodecSpec spec;
  spec.what_ = what;
  spec.text_ = text;
  const size_t colon = text.find(':');
  spec.name_ = text.substr(0, colon);
  std::string_view rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) return spec.Invalid(std::string(item) + " is not key=value");
    const auto added = spec.values_.emplace(item.substr(0, equals), item.substr(equals + 1));
    if (!added.second) return spec.Invalid(added.first->first + " comes twice");
  }
  return spec;
}

Status CodecSpec::Invalid(const std::string& why) const {
  return Status(Code::kInvalid, what_ + " " + text_ + ": " + why);
}

void CodecSpec::Refuse(const std::string& why) {
  if (failure_.ok()) failure_ = Invalid(why);
}

std::string CodecSpec::Take(const std::string& key) {
  const auto node = values_.extract(key);
  if (node.empty()) Refuse(key + " is missing");
  return node.empty() ? "" : node.mapped();
}

int64_t CodecSpec::Integer(const std::string& key, int64_t least, int64_t most) {
  const std::string text = Take(key);
  int64_t value = 0;
  if (Number(text, &value) && value >= least && value <= most) return value;
  Refuse(key + "=" + text + " must be a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  return least;
}

double CodecSpec::Real(const std::string& key, double least, double most) {
  const std::string text = Take(key);
  double value = 0;
  if (Number(text, &value) && value >= least && value <= most) return value;
  Refuse(key + "=" + text + " must be a number from " + std::to_string(least) + " to " + std::to_string(most));
  return least;
}

std::optional<double> CodecSpec::RealOr(const std::string& key, std::string_view none, double least, double most) {
  if (const auto found = values_.find(key); found != values_.end() && found->second == none) {
    values_.erase(found);
    return std::nullopt;
  }
  return Real(key, least, most);
}

double CodecSpec::Below(const std::string& key, double bound) {
  const std::string text = Take(key);
  double value = 0;
  if (Number(text, &value) && value >= 0 && value < bound) return value;
  Refuse(key + "=" + text + " must be a " +
         (bound == 1 ? "number of at least 0 and below 1" : "finite number of at least 0"));
  return 0;
}

std::string CodecSpec::Word(const std::string& key, std::initializer_list<const char*> choices) {
  std::string text = Take(key);
  std::string known;
  for (const char* const choice : choices) {
    if (text == choice) return text;
    known += (known.empty() ? "" : ", ") + std::string(choice);
  }
  Refuse(key + "=" + text + " must be one of " + known);
  return *choices.begin();
}

Status CodecSpec::Done() const {
  if (!failure_.ok()) return failure_;
  if (!values_.empty()) return Invalid("there is no " + values_.begin()->first);
  return Status();
}

}  // namespace byteps_like
