// Passes on a connection that is no link to what listens for it on a Unix socket of this process, and the answers back.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/transport/stream.h"

namespace byteps_like {

class Passage {
 public:
  // Descriptors of a connection that is passed on: both ends here, and the one of who listens.
  static constexpr size_t kDescriptors = 3;

  // Never blocks. kSystem if nobody listens at `path`, or has room. `zmtp`: ZeroMQ with CURVE listens there, which
  // tells nobody whom it admits, but says more than kMostUnadmitted only to those.
  static Result<std::unique_ptr<Passage>> Begin(std::unique_ptr<Stream> visitor, const std::string& path, bool zmtp);
  ~Passage();

  // After an event on either. Moves all that can be moved. Once an end has gone, and what it said has been passed on,
  // why it has: kClosed if it is as it should be.
  Status Pump();
  std::vector<int> fds() const;

  // By which who listens knows this connection: the name of its Unix socket.
  const std::string& name() const { return name_; }
  const std::string& visitor() const { return visitor_name_; }
  // Whether the visitor has proven the secret; any thread.
  void Prove() { proven_ = true; }
  bool proven() const { return proven_; }

 private:
  static constexpr size_t kBuffer = 16u << 10;
  // Greeting (64 bytes), WELCOME (170) and ERROR (12); READY alone has 60 more (RFC 26, 37).
  static constexpr uint64_t kMostUnadmitted = 64 + 170 + 12;
  struct Way {  // from one end to the other
    std::array<std::byte, kBuffer> bytes;
    size_t begin = 0, end = 0;
    uint64_t moved = 0;
    Status over;           // why no more comes
    bool blocked = false;  // the other end takes no more
  };

  Passage(std::unique_ptr<Stream> visitor, std::unique_ptr<Stream> inside, std::string name, bool zmtp);
  static bool Move(Stream& from, Stream& to, Way& way);

  const std::unique_ptr<Stream> visitor_, inside_;
  const std::string name_, visitor_name_;
  const bool zmtp_;
  std::atomic<bool> proven_{false};
  Way inwards_, outwards_;
};

}  // namespace byteps_like
