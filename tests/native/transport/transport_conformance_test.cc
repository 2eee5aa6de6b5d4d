// One suite for the streams of every transport, plain and wrapped by chaos. What links make of them is in link_test.cc.
#include <doctest/doctest.h>

#include <random>

#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {
namespace {

template <typename Test>
void OnEveryTransport(Test test) {
  for (const std::string& url : TestedUrls()) {
    CAPTURE(url);
    test(MakeStreams(url));
  }
}

Result<size_t> WriteSome(Stream& stream, const Bytes& bytes) {
  const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return stream.Write(std::span(&piece, 1));
}

// Pushes `bytes` through in pieces of random size.
Status WriteInPieces(Stream& stream, const Bytes& bytes, uint32_t seed) {
  std::minstd_rand random(seed);
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = std::min<size_t>(bytes.size() - at, 1 + random() % (random() % 2 == 0 ? 100 : 200'000));
    const Status written = WriteFull(stream, std::span(bytes).subspan(at, size), In(20));
    if (!written.ok()) return written;
    at += size;
  }
  return {};
}

Status ReadInPieces(Stream& stream, Bytes& bytes, uint32_t seed) {
  std::minstd_rand random(seed);
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = std::min<size_t>(bytes.size() - at, 1 + random() % (random() % 2 == 0 ? 100 : 200'000));
    const Status read = ReadFull(stream, std::span(bytes).subspan(at, size), In(20));
    if (!read.ok()) return read;
    at += size;
  }
  return {};
}

}  // namespace

TEST_CASE("transport: bytes arrive in order and whole, whatever the sizes of reads and writes") {
  const Bytes sent = Pattern(6'000'001, 1);
  OnEveryTransport([&](StreamPair streams) {
    Status written;
    std::thread writer([&] { written = WriteInPieces(*streams.client, sent, 2); });
    Bytes received(sent.size());
    const Status read = ReadInPieces(*streams.server, received, 3);
    writer.join();
    REQUIRE_MESSAGE(written.ok(), written.message());
    REQUIRE_MESSAGE(read.ok(), read.message());
    CHECK(received == sent);
  });
}

TEST_CASE("transport: several pieces go out in one write") {
  OnEveryTransport([](StreamPair streams) {
    const Bytes sent = Pattern(1000, 4);
    auto* data = const_cast<std::byte*>(sent.data());
    const iovec pieces[] = {{data, 10}, {data + 10, 0}, {data + 10, 490}, {data + 500, 500}};
    auto written = streams.client->Write(pieces);
    REQUIRE(written.ok());
    CHECK(*written == 1000);
    Bytes received(1000);
    CHECK(ReadFull(*streams.server, received, In(5)).ok());
    CHECK(received == sent);
  });
}

TEST_CASE("transport: what is read ahead follows what was asked for") {
  const Bytes sent = Pattern(1000, 9);
  OnEveryTransport([&](StreamPair streams) {
    REQUIRE(WriteFull(*streams.client, sent, In(5)).ok());
    Bytes received;
    const auto limit = In(5);
    while (received.size() < sent.size() && Clock::now() < limit) {
      Bytes place(150), ahead(100);
      auto got = streams.server->ReadAhead(place.data(), place.size(), ahead);
      REQUIRE(got.ok());
      place.insert(place.end(), ahead.begin(), ahead.end());
      received.insert(received.end(), place.begin(), place.begin() + static_cast<ptrdiff_t>(*got));
    }
    CHECK(received == sent);
  });
}

TEST_CASE("transport: a writer is held back while nobody reads, and goes on afterwards") {
  const Bytes block = Pattern(1 << 20, 5);
  OnEveryTransport([&](StreamPair streams) {
    size_t written = 0;
    const auto limit = In(10);
    while (Clock::now() < limit) {  // until it is full, also of what a chaotic end holds back
      auto more = WriteSome(*streams.client, block);
      REQUIRE(more.ok());
      written += *more;
      REQUIRE(written < (256u << 20));
      if (*more == 0 && written > 0) break;
    }
    Bytes received(written);
    CHECK(ReadFull(*streams.server, received, In(10)).ok());
    CHECK(WriteFull(*streams.client, std::span(block).first(100), In(10)).ok());
    received.resize(100);
    CHECK(ReadFull(*streams.server, received, In(10)).ok());
    CHECK(std::equal(received.begin(), received.end(), block.begin()));
  });
}

TEST_CASE("transport: what was written before a shutdown is read, then the end") {
  const Bytes sent = Pattern(100'000, 6);
  OnEveryTransport([&](StreamPair streams) {
    REQUIRE(WriteFull(*streams.client, sent, In(5)).ok());
    streams.client->Shutdown();
    Bytes received(sent.size());
    CHECK(ReadFull(*streams.server, received, In(5)).ok());
    CHECK(received == sent);
    std::byte one;
    CHECK(ReadFull(*streams.server, std::span(&one, 1), In(5)).code() == Code::kClosed);
    auto own = streams.client->Read(&one, 1);
    CHECK_FALSE(own.ok());
    Status write;  // a peer that is gone is noticed within a few writes
    for (int i = 0; i < 100 && write.ok(); ++i) write = WriteFull(*streams.server, sent, In(1));
    const bool typed = write.code() == Code::kClosed || write.code() == Code::kPeerLost;
    CHECK_MESSAGE(typed, write.message());
  });
}

TEST_CASE("transport: the end of one end is the end for the other") {
  OnEveryTransport([](StreamPair streams) {
    streams.client.reset();
    std::byte one;
    CHECK(ReadFull(*streams.server, std::span(&one, 1), In(5)).code() == Code::kClosed);
  });
}

TEST_CASE("transport: shutdown from another thread wakes a reader on either end") {
  OnEveryTransport([](StreamPair streams) {
    std::byte byte[2];
    Status own, peer;
    std::thread reader([&] { own = ReadFull(*streams.client, std::span(byte, 1), In(10)); });
    std::thread other([&] { peer = ReadFull(*streams.server, std::span(byte + 1, 1), In(10)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    streams.client->Shutdown();
    reader.join();
    other.join();
    CHECK(own.code() == Code::kClosed);
    CHECK(peer.code() == Code::kClosed);
  });
}

TEST_CASE("transport: a deadline ends a wait, and no sooner") {
  OnEveryTransport([](StreamPair streams) {
    std::byte one;
    const auto begin = Clock::now();
    CHECK(ReadFull(*streams.client, std::span(&one, 1), In(0.05)).code() == Code::kTimeout);
    CHECK(Clock::now() - begin >= std::chrono::milliseconds(50));
    CHECK(Clock::now() - begin < std::chrono::seconds(5));
  });
}

TEST_CASE("transport: an address without a listener, a bad one and a taken one are errors that name it") {
  for (const std::string& scheme : TestedSchemes()) {
    CAPTURE(scheme);
    auto listener = Listen(FreshUrl(scheme));
    REQUIRE(listener.ok());
    const std::string url = (*listener)->url();
    auto twice = Listen(url);
    CHECK(twice.status().code() == Code::kSystem);
    const std::string place = url.substr(url.find("://") + 3);
    CHECK(twice.status().message().find(place) != std::string::npos);
    listener->reset();
    auto nobody = Connect(url, In(5));
    CHECK(nobody.status().code() == Code::kPeerLost);
    CHECK(nobody.status().message().find(place) != std::string::npos);
  }
  for (const char* bad : {"", "nonsense", "tcp://", "ftp://x", "tcp://127.0.0.1", "tcp://::1:5", "shm://a?b=c",
                          "chaos+inproc://a?drop=2", "chaos+inproc://a?dorp=0.1", "chaos+inproc://a?drop"}) {
    CAPTURE(bad);
    CHECK(Connect(bad, In(1)).status().code() == Code::kInvalid);
    CHECK(Listen(bad).status().code() == Code::kInvalid);
  }
}

TEST_CASE("transport: both ends name the transport first in what they call the other") {
  for (const std::string& scheme : TestedSchemes()) {
    CAPTURE(scheme);
    const StreamPair streams = MakeStreams(FreshUrl(scheme));
    CHECK(streams.client->peer().starts_with(scheme + " "));
    CHECK(streams.server->peer().starts_with(scheme + " "));
  }
}

TEST_CASE("transport: accept has a deadline and ends when the listener is closed") {
  for (const std::string& scheme : TestedSchemes()) {
    CAPTURE(scheme);
    auto listener = Listen(FreshUrl(scheme));
    REQUIRE(listener.ok());
    CHECK((*listener)->Accept(In(0.03)).status().code() == Code::kTimeout);
    std::thread closer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      (*listener)->Close();
    });
    CHECK((*listener)->Accept(In(10)).status().code() == Code::kClosed);
    closer.join();
    CHECK((*listener)->Accept(In(10)).status().code() == Code::kClosed);
    CHECK_FALSE(Connect((*listener)->url(), In(1)).ok());
  }
}

TEST_CASE("transport: shared memory is passed where there is some, and refused where there is none") {
  OnEveryTransport([](StreamPair streams) {
    auto buffer = SharedBuffer::Create(3 << 20);
    REQUIRE(buffer.ok());
    (*buffer)->data()[12345] = std::byte{42};
    const Status passed = streams.client->PassBuffer(**buffer);
    if (!streams.client->shares_memory()) {
      CHECK(passed.code() == Code::kInvalid);
      CHECK(streams.server->TakeBuffer().status().code() == Code::kInvalid);
      return;
    }
    REQUIRE(passed.ok());
    auto taken = streams.server->TakeBuffer();
    REQUIRE_MESSAGE(taken.ok(), taken.status().message());
    CHECK((*taken)->size() == (*buffer)->size());
    CHECK((*taken)->data()[12345] == std::byte{42});
    (*taken)->data()[5] = std::byte{7};
    CHECK((*buffer)->data()[5] == std::byte{7});
    CHECK(streams.server->TakeBuffer().status().code() == Code::kCorrupt);
  });
}

TEST_CASE("transport: tcp over IPv6 and by name") {
  for (const char* url : {"tcp://[::1]:0", "tcp://localhost:0"}) {
    CAPTURE(url);
    auto listener = Listen(url);
    if (!listener.ok()) {
      MESSAGE("skipped: ", listener.status().message());
      continue;
    }
    CHECK((*listener)->url().find(":0") == std::string::npos);
    auto client = Connect((*listener)->url(), In(5));
    REQUIRE_MESSAGE(client.ok(), client.status().message());
    auto server = (*listener)->Accept(In(5));
    REQUIRE(server.ok());
    CHECK(WriteFull(**client, Pattern(10, 0), In(5)).ok());
    Bytes received(10);
    CHECK(ReadFull(**server, received, In(5)).ok());
    CHECK((*server)->peer().starts_with("tcp "));
  }
}

}  // namespace byteps_like::testing
