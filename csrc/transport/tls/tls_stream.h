// tls+tcp: TLS 1.3 over the bytes of another stream. Its keys are made of the job's secret: it moves nothing before
// UseKeys, and nothing of its user's before both ends have proven them. Each read and write drives the negotiation, so
// the handshake of links needs to know nothing of it.
#pragma once

#include <memory>

#include "csrc/transport/stream.h"

namespace byteps_like {

// `records_per_key`: after so many a direction gets a new key (KeyUpdate). RFC 8446, section 5.5, allows 2^24.5.
struct TlsOptions {
  uint64_t records_per_key = 1u << 22;
};

std::unique_ptr<Stream> WrapInTls(std::unique_ptr<Stream> inner, bool dials, const TlsOptions& options = {});

// Wraps the streams that the listener accepts.
std::unique_ptr<Listener> WrapListenerInTls(std::unique_ptr<Listener> inner);

}  // namespace byteps_like
