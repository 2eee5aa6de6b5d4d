#include "csrc/transport/tcp/tcp_address.h"

#include <netdb.h>
#include <netinet/in.h>

#include <cstring>
#include <memory>

namespace byteps_like {
namespace {

struct HostPort {
  std::string host, port;
};

Result<HostPort> Split(const std::string& place) {
  const size_t colon = place.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == place.size()) {
    return Status(Code::kInvalid, "tcp address \"" + place + "\" is not host:port");
  }
  std::string host = place.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return Status(Code::kInvalid, "tcp address \"" + place + "\": an IPv6 host goes in brackets, [::1]:4711");
  }
  return HostPort{host, place.substr(colon + 1)};
}

}  // namespace

std::string TcpAddress::text() const {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const int error = ::getnameinfo(get(), size, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) return "unknown address";
  const bool v6 = storage.ss_family == AF_INET6;
  return v6 ? "[" + std::string(host) + "]:" + port : std::string(host) + ":" + port;
}

Result<std::vector<TcpAddress>> ResolveTcp(const std::string& place, bool to_listen) {
  auto split = Split(place);
  if (!split.ok()) return split.status();
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(split->host.c_str(), split->port.c_str(), &hints, &found);
  if (error != 0) return Status(Code::kSystem, "resolve tcp address " + place + ": " + ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  std::vector<TcpAddress> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    TcpAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
  }
  return addresses;
}

}  // namespace byteps_like
