// What a connection is, by the first bytes that it sends: several kinds share a port then.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "csrc/base/status.h"

namespace byteps_like {

enum class Opening {
  kLink,     // of this job's members, encrypted or not; and all that is nothing else
  kCalls,    // HTTP/2, or TLS whose client offers it by ALPN: calls by gRPC
  kMetrics,  // GET or HEAD of HTTP/1
  kDoor,     // ZeroMQ
};

// As Python names them: "link", "calls", "metrics", "door". kInvalid for others.
Result<Opening> OpeningNamed(std::string_view name);

// More are never needed: who takes that many for a ClientHello has no good reason.
inline constexpr size_t kOpeningBytes = 8u << 10;

// Nothing: more bytes, of kOpeningBytes at most, will tell.
std::optional<Opening> OpeningOf(std::span<const std::byte> first);

}  // namespace byteps_like
