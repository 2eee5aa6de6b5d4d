// The accepting end of a handshake for tests that are the server themselves: blocks, and lets in whoever proves the
// secret, whomever it means.
#pragma once

#include <span>

#include "csrc/transport/entrance/reception.h"
#include "csrc/transport/stream.h"

namespace byteps_like::testing {

// kRefused with what the client was told, or what the stream said.
inline Result<Introduction> ServerHandshake(Stream& stream, const Credentials& credentials, Deadline deadline) {
  auto keys = handshake::Keys::Of(credentials.secret);
  if (!keys.ok()) return keys.status();
  stream.UseKeys({credentials.secret, {}});
  Reception reception(*keys, credentials.job);
  while (!reception.room().empty()) {
    const size_t size = reception.room().size();
    if (Status read = ReadFull(stream, reception.room(), deadline); !read.ok()) return read;
    auto answer = reception.Take(size, stream.binding());
    if (!answer.ok()) return answer.status();
    if (!*answer) continue;
    if (Status sent = WriteFull(stream, **answer, deadline); !sent.ok()) return sent;
  }
  if (reception.state() == Reception::State::kRefused) return Status(Code::kRefused, reception.why());
  auto welcome = reception.Welcome();
  if (!welcome.ok()) return welcome.status();
  if (Status sent = WriteFull(stream, *welcome, deadline); !sent.ok()) return sent;
  return reception.who();
}

}  // namespace byteps_like::testing
