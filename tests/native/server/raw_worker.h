// A worker that says byte by byte what a test wants: what an engine would never send, or not in this order.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "csrc/kernels/kernels.h"
#include "csrc/transport/entrance/handshake.h"
#include "csrc/transport/memory/shared_buffer.h"
#include "tests/native/transport/server_handshake.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {

inline Header PushHeader(uint32_t rank, uint64_t key, uint32_t round, uint32_t total) {
  Header header;
  header.type = FrameType::kPush;
  header.dtype = DType::kInt32;
  header.view = 1;
  header.member = NumberOf(rank);
  header.key = key;
  header.round = round;
  header.total = header.length = total;
  return header;
}

// Frames over a stream, blocking. Either end: a worker that connects, or what a test's own listener accepted.
class RawLink {
 public:
  explicit RawLink(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}

  static RawLink Connect(const std::string& url, uint32_t rank, uint32_t server = 0) {
    auto stream = byteps_like::Connect(url, In(5));
    Must(stream.status());
    const Introduction who{{Role::kWorker, NumberOf(rank)}, {Role::kServer, ServerNumberOf(server)}, 0};
    Must(Meet(**stream, {"job", std::string(32, 's'), 1}, who, In(5)).status);
    return RawLink(std::move(*stream));
  }

  // Only `bytes` of the payload go out, if that is given.
  void Send(Header header, const std::vector<std::byte>& payload, std::optional<size_t> bytes = {}) {
    header.payload_crc = kernels::Crc32c(0, payload.data(), payload.size());
    std::vector<std::byte> out(kHeaderBytes);
    EncodeHeader(header, std::span<std::byte, kHeaderBytes>(out.data(), kHeaderBytes));
    const auto end = payload.begin() + static_cast<ptrdiff_t>(bytes.value_or(payload.size()));
    out.insert(out.end(), payload.begin(), end);
    SendRaw(out);
  }
  void Send(const Header& header) { Send(header, std::vector<std::byte>(header.length)); }
  void SendRaw(std::span<const std::byte> bytes) { Must(WriteFull(*stream_, bytes, In(5))); }

  // The next frame; nothing once the link is closed or after `seconds`.
  std::optional<Message> Receive(double seconds = 5) {
    std::vector<std::byte> raw(kHeaderBytes);
    if (!ReadFull(*stream_, raw, In(seconds)).ok()) return std::nullopt;
    auto header = DecodeHeader(std::span<const std::byte, kHeaderBytes>(raw.data(), kHeaderBytes));
    Must(header.status());
    Message message{*header, Bytes(header->length)};
    if (!ReadFull(*stream_, message.payload, In(seconds)).ok()) return std::nullopt;
    return message;
  }
  // The text of the next ERROR frame; "" if none comes.
  std::string ReceiveError() {
    while (auto message = Receive())
      if (message->header.type == FrameType::kError)
        return std::string(reinterpret_cast<const char*>(message->payload.data()), message->payload.size());
    return "";
  }

  void Share(uint32_t rank, uint32_t id, const SharedBuffer& buffer) {
    Must(stream_->PassBuffer(buffer));
    Header header;
    header.type = FrameType::kRegion;
    header.view = 1;
    header.member = NumberOf(rank);
    header.aux = id;
    header.offset = buffer.size();
    Send(header);
  }

  Stream& stream() { return *stream_; }

 private:
  static void Must(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
  }
  std::unique_ptr<Stream> stream_;
};

}  // namespace byteps_like::testing
