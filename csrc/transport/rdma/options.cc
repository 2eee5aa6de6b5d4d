#include "csrc/transport/rdma/options.h"

#include <charconv>

#include "csrc/transport/url.h"

namespace byteps_like::rdma {
namespace {

std::vector<std::string> SplitAtCommas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

class Reader {  // of the query of one address
 public:
  Reader(const std::string& text, const Url& url) : text_(text), url_(url) {}

  Status Number(const char* name, uint32_t least, uint32_t most, auto* to) const {
    const auto found = url_.query.find(name);
    if (found == url_.query.end()) return {};
    const std::string& digits = found->second;
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < least || value > most) {
      return Wrong(std::string(name) + "=" + digits + " is not a number from " + std::to_string(least) + " to " +
                   std::to_string(most));
    }
    *to = static_cast<std::remove_pointer_t<decltype(to)>>(value);
    return {};
  }

  Status Names(const char* name, std::vector<std::string>* to) const {
    const auto found = url_.query.find(name);
    if (found == url_.query.end()) return {};
    *to = SplitAtCommas(found->second);
    for (const std::string& one : *to) {
      if (one.empty()) return Wrong(std::string(name) + "=" + found->second + " has an empty name");
    }
    return {};
  }

  Status Wrong(const std::string& what) const { return Status(Code::kInvalid, "address " + text_ + ": " + what); }

 private:
  const std::string& text_;
  const Url& url_;
};

Status ParsePlace(const Reader& reader, const std::string& place, Options* options) {
  const size_t colon = place.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == place.size()) {
    return reader.Wrong("\"" + place + "\" is not host:port (several rails: host,host:port)");
  }
  options->port = place.substr(colon + 1);
  options->hosts = SplitAtCommas(place.substr(0, colon));
  for (const std::string& host : options->hosts) {
    const bool bracketed = host.starts_with('[') && host.ends_with(']');
    if (host.empty()) return reader.Wrong("a host is empty");
    if (!bracketed && host.find(':') != std::string::npos) {
      return reader.Wrong("an IPv6 host must be in brackets, as in [fd00::1]:4711");
    }
  }
  return {};
}

bool IsMtu(uint32_t mtu) { return mtu == 256 || mtu == 512 || mtu == 1024 || mtu == 2048 || mtu == 4096; }

}  // namespace

Result<Options> ParseOptions(const std::string& text) {
  auto url = ParseUrl(text);
  if (!url.ok()) return url.status();
  const Reader reader(text, *url);
  Options options;
  for (const Status& status :
       {ParsePlace(reader, url->place, &options), reader.Names("device", &options.devices),
        reader.Number("gid", 0, 255, &options.gid), reader.Number("mtu", 256, 4096, &options.mtu),
        reader.Number("qps", 1, kMaxQueuePairs, &options.qps),
        reader.Number("ack_timeout", 1, 31, &options.ack_timeout)}) {
    if (!status.ok()) return status;
  }
  if (options.mtu != 0 && !IsMtu(options.mtu)) return reader.Wrong("mtu must be one of 256, 512, 1024, 2048, 4096");
  if (options.queue_pairs() > kMaxQueuePairs) {
    return reader.Wrong("more than " + std::to_string(kMaxQueuePairs) + " queue pairs");
  }
  return options;
}

std::string Options::url() const {
  std::string text = "rdma://";
  for (const std::string& host : hosts) text += (text.ends_with('/') ? "" : ",") + host;
  text += ":" + port;
  if (qps != Options().qps) text += "?qps=" + std::to_string(qps);
  if (ack_timeout == Options().ack_timeout) return text;
  return text + (text.find('?') == std::string::npos ? "?" : "&") + "ack_timeout=" + std::to_string(ack_timeout);
}

}  // namespace byteps_like::rdma
