// The text form of a codec's parameters: "name:key=value,key=value", keys in the order of the alphabet, values plain
// numbers or words. Written by byteps_like/compression/spec.py, which knows defaults and short names; here all keys
// must be there.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "csrc/base/status.h"

namespace byteps_like {

class CodecSpec {
 public:
  static Result<CodecSpec> Parse(std::string_view text);

  const std::string& text() const { return text_; }
  const std::string& name() const { return name_; }

  // The value of a key, within bounds; else the first failure is kept for `Done`, and the least value is returned.
  int64_t Integer(const std::string& key, int64_t least, int64_t most);
  double Real(const std::string& key, double least, double most);
  std::string Word(const std::string& key, std::initializer_list<const char*> choices);
  std::string Text(const std::string& key) { return Take(key); }
  uint64_t Seed() { return static_cast<uint64_t>(Integer("seed", 0, INT64_MAX)); }

  // kInvalid if anything was wrong, or if a key is left that nobody asked for.
  Status Done() const;

 private:
  std::string Take(const std::string& key);
  void Refuse(const std::string& why);

  std::string text_, name_;
  std::map<std::string, std::string> values_;
  Status failure_;
};

}  // namespace byteps_like
