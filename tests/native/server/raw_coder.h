// A worker with one codec that says frame by frame what a test wants.
#pragma once

#include <thread>

#include "tests/native/server/encoded_fixture.h"
#include "tests/native/server/test_server.h"

namespace byteps_like::testing {

inline constexpr uint64_t kKey = 7;

inline Header CodecHeader(uint32_t rank, uint32_t number, const std::string& text) {
  Header header;
  header.type = FrameType::kCodec;
  header.view = 1;
  header.member = NumberOf(rank);
  header.aux = number;
  header.length = static_cast<uint32_t>(text.size());
  return header;
}

inline Payload BytesOf(const std::string& text) {
  Payload bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

inline Header EncodedHeader(uint32_t rank, uint64_t key, uint32_t round, size_t total) {
  Header header = PushHeader(rank, key, round, static_cast<uint32_t>(total));
  header.dtype = DType::kFloat32;
  header.flags = kEncoded;
  header.aux = 3;
  return header;
}

// A worker with one codec, which its link calls 3.
class RawCoder {
 public:
  RawCoder(TestServer& server, uint32_t rank, const std::string& text) : rank_(rank), link_(server.Connect(rank)) {
    link_.Send(CodecHeader(rank, 3, text), BytesOf(text));
  }

  // Bytes [begin, end) of a payload, in segments.
  void Push(const Payload& payload, uint32_t round, size_t begin, size_t end, size_t segment, uint64_t key = kKey) {
    for (; begin < end; begin += segment) {
      Header header = EncodedHeader(rank_, key, round, payload.size());
      const size_t length = std::min(segment, end - begin);
      header.offset = begin;
      header.length = static_cast<uint32_t>(length);
      const auto from = payload.begin() + static_cast<ptrdiff_t>(begin);
      link_.Send(header, Payload(from, from + static_cast<ptrdiff_t>(length)));
    }
  }
  void Push(const Payload& payload, uint32_t round, uint64_t key = kKey) {
    Push(payload, round, 0, payload.size(), 64 << 10, key);
  }

  // The rest of a result of which `landed` has come, until there are `until` bytes of it (0: all); nothing if what
  // comes is no such thing.
  Payload Pull(uint32_t round, Payload landed = {}, size_t until = 0, uint64_t key = kKey) {
    for (bool more = true; more;) {
      auto message = link_.Receive();
      if (!message) return {};
      const Header& header = message->header;
      const bool right = header.type == FrameType::kResult && header.flags == kEncoded && header.aux == 3 &&
                         header.key == key && header.round == round && header.offset == landed.size();
      if (!right) return {};
      landed.insert(landed.end(), message->payload.begin(), message->payload.end());
      more = landed.size() < (until == 0 ? header.total : until);
    }
    return landed;
  }

  // What the server has counted of this rank's contribution.
  uint64_t Resume(uint32_t round, size_t total, size_t landed) {
    Header header = EncodedHeader(rank_, kKey, round, total);
    header.type = FrameType::kResume;
    header.length = 0;
    header.offset = landed;
    link_.Send(header);
    const auto answer = link_.Receive();
    REQUIRE(answer.has_value());
    CHECK(answer->header.type == FrameType::kResumed);
    return answer->header.offset;
  }

  RawLink& link() { return link_; }

 private:
  const uint32_t rank_;
  RawLink link_;
};

// Until the server has summed so many bytes of encoded contributions.
inline void AwaitSummed(TestServer& server, uint64_t bytes) {
  const Deadline end = In(10);
  while (server.stats().encoded < bytes && Clock::now() < end) std::this_thread::yield();
  REQUIRE(server.stats().encoded == bytes);
}

// Until the server has so many bytes of payloads and of texts of codecs: a link that breaks before may lose some.
inline void AwaitReceived(TestServer& server, uint64_t bytes) {
  const Deadline end = In(10);
  while (server.stats().payload_received < bytes && Clock::now() < end) std::this_thread::yield();
  REQUIRE(server.stats().payload_received == bytes);
}

}  // namespace byteps_like::testing
