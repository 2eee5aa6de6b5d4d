// The receiving half of a StreamLink: cuts the bytes of a stream into frames, checks them, and puts payloads in place.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/transport/counter.h"
#include "csrc/transport/links/link.h"

namespace byteps_like {

class LinkReader {
 public:
  LinkReader(Link& link, Stream& stream, LinkHandler& handler);

  // Handles about `budget` bytes at most. True: there may be more right now; false: the stream said "nothing now".
  // A failure is final: of the stream, kCorrupt, or `stop` turned true, which ends the call after the frame at hand.
  Result<bool> Receive(size_t budget, const bool& stop);

  bool Redirect(std::byte* place);
  bool saw_goodbye() const { return saw_goodbye_; }

  const Traffic& traffic() const { return traffic_; }  // any thread

 private:
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };

  size_t buffered() const { return end_ - begin_; }
  Result<size_t> Fill();
  Result<size_t> ReadPayload();
  Result<size_t> ReadDirectly(size_t payload, size_t ahead);
  size_t TakeBuffered();
  Status BeginFrame();
  Status EndFrame();
  std::byte* Scratch();
  void Landed(size_t bytes);

  Link& link_;
  Stream& stream_;
  LinkHandler& handler_;
  const bool checks_;  // the checksums of payloads
  std::unique_ptr<std::byte[]> buffer_;
  size_t begin_ = 0, end_ = 0;  // the part of buffer_ that is not consumed
  size_t read_ahead_;           // how much to read when a header is expected
  Header header_;
  std::byte* place_ = nullptr;
  std::vector<CacheLine> scratch_;  // for payloads that may go anywhere
  uint32_t landed_ = 0;             // bytes of the payload in place
  uint32_t crc_ = 0;                // of those
  bool in_payload_ = false;
  bool saw_goodbye_ = false;
  Traffic traffic_;
};

}  // namespace byteps_like
