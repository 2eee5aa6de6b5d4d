// "host:port" to and from socket addresses, IPv4 and IPv6 ("[::1]:4711").
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "csrc/base/status.h"

namespace byteps_like {

struct TcpAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  std::string text() const;
};

// All addresses of `place`, in the resolver's order. Blocks as long as the resolver does for names; never for numbers.
Result<std::vector<TcpAddress>> ResolveTcp(const std::string& place, bool to_listen);

}  // namespace byteps_like
