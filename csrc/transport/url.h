// Addresses of links: "scheme://place?name=value&...", with "chaos+" before the scheme to wrap it.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "csrc/base/status.h"

namespace byteps_like {

struct Url {
  bool chaos = false;
  std::string scheme;  // "tcp"
  std::string place;   // "10.0.0.2:4711"
  std::map<std::string, std::string> query;
  std::string query_text;  // as given, for printing

  // Without chaos, and with those options alone that the transport itself knows; they leave the query.
  std::string TakeInner(std::span<const std::string_view> options);
};

// kInvalid names the error in the text.
Result<Url> ParseUrl(const std::string& text);

}  // namespace byteps_like
