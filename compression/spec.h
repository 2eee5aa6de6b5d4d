// The text form of the parameters of a codec, or of what else has a name: "name:key=value,key=value", keys in the order
// of the alphabet, values plain numbers or words. Written by byteps_like/compression/spec.py, which knows defaults and
// short names; here all keys must be there.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "csrc/base/status.h"

namespace byteps_like {

class CodecSpec {
 public:
  // `what` it is of, for errors.
  static Result<CodecSpec> Parse(std::string_view text, std::string_view what = "codec");

  const std::string& text() const { return text_; }
  const std::string& name() const { return name_; }

  // The value of a key, within bounds; else the first failure is kept for `Done`, and the least value is returned.
  int64_t Integer(const std::string& key, int64_t least, int64_t most);
  double Real(const std::string& key, double least, double most);
  // The same of a key that may have the value `none`, for nullopt.
  std::optional<double> RealOr(const std::string& key, std::string_view none, double least, double most);
  double NonNegative(const std::string& key) { return Below(key, std::numeric_limits<double>::infinity()); }
  double Fraction(const std::string& key) { return Below(key, 1); }  // at least 0 and below 1
  std::string Word(const std::string& key, std::initializer_list<const char*> choices);
  std::string Text(const std::string& key) { return Take(key); }
  uint64_t Seed() { return static_cast<uint64_t>(Integer("seed", 0, INT64_MAX)); }

  // kInvalid if anything was wrong, or if a key is left that nobody asked for.
  Status Done() const;

 private:
  double Below(const std::string& key, double bound);
  std::string Take(const std::string& key);
  Status Invalid(const std::string& why) const;
  void Refuse(const std::string& why);

  std::string what_, text_, name_;
  std::map<std::string, std::string> values_;
  Status failure_;
};

}  // namespace byteps_like
