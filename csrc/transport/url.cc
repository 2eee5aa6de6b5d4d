#include "csrc/transport/url.h"

#include <algorithm>

namespace byteps_like {
namespace {

constexpr std::string_view kChaosPrefix = "chaos+";

Status ParseQuery(const std::string& text, Url* url) {
  for (size_t at = 0; at < url->query_text.size();) {
    const size_t end = std::min(url->query_text.find('&', at), url->query_text.size());
    const std::string pair = url->query_text.substr(at, end - at);
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Status(Code::kInvalid, "address " + text + ": \"" + pair + "\" is not name=value");
    }
    url->query[pair.substr(0, equals)] = pair.substr(equals + 1);
    at = end + 1;
  }
  return {};
}

}  // namespace

Result<Url> ParseUrl(const std::string& text) {
  Url url;
  std::string rest = text;
  url.chaos = rest.starts_with(kChaosPrefix);
  if (url.chaos) rest.erase(0, kChaosPrefix.size());
  const size_t scheme_end = rest.find("://");
  if (scheme_end == std::string::npos || scheme_end == 0) {
    return Status(Code::kInvalid, "address " + text + " has no scheme (tcp://host:port, shm://name, inproc://name)");
  }
  url.scheme = rest.substr(0, scheme_end);
  url.place = rest.substr(scheme_end + 3);
  if (const size_t question = url.place.find('?'); question != std::string::npos) {
    url.query_text = url.place.substr(question + 1);
    url.place.erase(question);
  }
  if (url.place.empty()) return Status(Code::kInvalid, "address " + text + " names no place");
  if (Status query = ParseQuery(text, &url); !query.ok()) return query;
  return url;
}

std::string Url::TakeInner(std::span<const std::string_view> options) {
  std::string taken, left;
  for (auto entry = query.begin(); entry != query.end();) {
    const bool own = std::find(options.begin(), options.end(), entry->first) != options.end();
    std::string& text = own ? taken : left;
    text += (text.empty() ? "" : "&") + entry->first + "=" + entry->second;
    entry = own ? query.erase(entry) : std::next(entry);
  }
  if (!taken.empty()) query_text = left;
  return scheme + "://" + place + (taken.empty() ? "" : "?" + taken);
}

}  // namespace byteps_like
