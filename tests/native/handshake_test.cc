// The handshake on the wire: a real server end on tcp, the other end built by hand from docs/protocol.md.
#include "csrc/transport/handshake.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/socket.h>

#include "csrc/base/fd.h"
#include "csrc/base/log.h"
#include "tests/native/transport_fixture.h"

namespace byteps_like::testing {
namespace {

const Credentials kGood{"the-job", std::string(32, 's'), 7};

Credentials With(void (*change)(Credentials&)) {
  Credentials credentials = kGood;
  change(credentials);
  return credentials;
}

// A listener whose server end runs ServerHandshake once per Begin; collects what it logged.
class Server {
 public:
  Server() : listener_(std::move(*Listen("tcp://127.0.0.1:0"))) {
    SetLogSink([this](LogLevel, std::string_view text) {
      std::lock_guard lock(mutex_);
      log_ += std::string(text) + "\n";
    });
  }
  ~Server() {
    Finish();
    SetLogSink({});
  }
  void Begin(double seconds = 5) {
    Finish();
    thread_ = std::thread([this, seconds] {
      auto stream = listener_->Accept(In(10));
      if (!stream.ok()) {
        status = stream.status();
        return;
      }
      auto identity = ServerHandshake(**stream, kGood, In(seconds));
      status = identity.status();
      if (identity.ok()) peer = *identity;
    });
  }
  void Finish() {
    if (thread_.joinable()) thread_.join();
  }
  std::string url() const { return listener_->url(); }
  std::string log() {
    std::lock_guard lock(mutex_);
    return log_;
  }

  Status status;
  PeerIdentity peer;

 private:
  std::unique_ptr<Listener> listener_;
  std::thread thread_;
  std::mutex mutex_;
  std::string log_;
};

// A socket without any of our code between it and the server.
class Raw {
 public:
  explicit Raw(const std::string& url) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    const timeval limit{10, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  void Send(const std::string& bytes) {
    REQUIRE(::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  }
  std::string Receive(size_t size) {  // fewer at the end of the stream
    std::string bytes(size, '\0');
    const ssize_t got = ::recv(fd_.get(), bytes.data(), size, MSG_WAITALL);
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }
  void Close() { fd_.Reset(); }

 private:
  Fd fd_;
};

std::string Little(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

std::string Hello(const std::string& nonce, uint16_t version = 1, uint32_t epoch = 7, std::string job = "the-job") {
  std::string hello = "BPLH" + Little(version, 2) + Little(1, 1) + Little(job.size(), 1) + Little(epoch, 4) +
                      Little(3, 4) + Little(2, 4) + Little(0, 4);
  job.resize(64);
  return hello + job + nonce;
}

std::string Proof(const std::string& secret, const std::string& hello, const std::string& challenge,
                  const std::string& label = "byteps_like client") {
  const std::string text = label + hello + challenge;
  unsigned char mac[32];
  unsigned int size = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac, &size);
  return std::string(reinterpret_cast<char*>(mac), size);
}

// The refusal's reason, or 0 if the answer is something else.
int RefusalReason(const std::string& answer) {
  return answer.size() == 40 && answer[0] == 3 ? static_cast<int>(answer[1]) : 0;
}

}  // namespace

TEST_CASE("handshake: both ends agree on every transport") {
  for (const std::string& scheme : TestedSchemes()) {
    CAPTURE(scheme);
    StreamPair streams = MakeStreams(FreshUrl(scheme));
    Status client;
    std::thread thread([&] { client = ClientHandshake(*streams.client, kGood, {Role::kWorker, 5, 3}, In(5)); });
    auto peer = ServerHandshake(*streams.server, kGood, In(5));
    thread.join();
    REQUIRE_MESSAGE(peer.ok(), peer.status().message());
    REQUIRE_MESSAGE(client.ok(), client.message());
    CHECK(peer->role == Role::kWorker);
    CHECK(peer->rank == 5);
    CHECK(peer->shard == 3);
  }
}

TEST_CASE("handshake: each refusal is typed, told to the client and logged by the server") {
  struct Case {
    Credentials client;
    const char* reason;
  };
  const Case cases[] = {
      {With([](Credentials& c) { c.secret = std::string(32, 't'); }), "proof is wrong"},
      {With([](Credentials& c) { c.job = "another"; }), "another job"},
      {With([](Credentials& c) { c.job = ""; }), "another job"},
      {With([](Credentials& c) { c.epoch = 6; }), "epoch 6, the server is in epoch 7"},
  };
  Server server;
  for (const Case& one : cases) {
    CAPTURE(one.reason);
    server.Begin();
    auto stream = Connect(server.url(), In(5));
    REQUIRE(stream.ok());
    const Status client = ClientHandshake(**stream, one.client, {Role::kWorker, 1, 0}, In(5));
    server.Finish();
    CHECK(client.code() == Code::kRefused);
    CHECK(client.message().find(one.reason) != std::string::npos);
    CHECK(server.status.code() == Code::kRefused);
    CHECK(server.log().find(one.reason) != std::string::npos);
    CHECK(server.log().find("tcp 127.0.0.1:") != std::string::npos);
  }
}

TEST_CASE("handshake: the bytes are those of docs/protocol.md") {
  Server server;
  server.Begin();
  Raw raw(server.url());
  const std::string hello = Hello(std::string(32, 'n'));
  raw.Send(hello);
  const std::string challenge = raw.Receive(40);
  REQUIRE(challenge.size() == 40);
  CHECK(challenge[0] == 1);
  const std::string proof = Proof(kGood.secret, hello, challenge);
  raw.Send(proof);
  const std::string welcome = raw.Receive(40);
  server.Finish();
  REQUIRE(server.status.ok());
  CHECK(server.peer.rank == 3);
  CHECK(server.peer.shard == 2);
  REQUIRE(welcome.size() == 40);
  CHECK(welcome[0] == 2);
  CHECK(welcome.substr(8) == Proof(kGood.secret, hello, challenge + proof, "byteps_like server"));
}

TEST_CASE("handshake: a replayed recording of a good exchange is refused") {
  Server server;
  server.Begin();
  const std::string hello = Hello(std::string(32, 'n'));
  std::string proof;
  {
    Raw raw(server.url());
    raw.Send(hello);
    proof = Proof(kGood.secret, hello, raw.Receive(40));
    raw.Send(proof);
    CHECK(raw.Receive(40)[0] == 2);
    server.Finish();
    REQUIRE(server.status.ok());
  }
  server.Begin();
  Raw replay(server.url());
  replay.Send(hello + proof);
  CHECK(replay.Receive(40)[0] == 1);
  CHECK(RefusalReason(replay.Receive(40)) == 5);
  server.Finish();
  CHECK(server.status.code() == Code::kRefused);
  CHECK(server.log().find("replay") != std::string::npos);
}

TEST_CASE("handshake: another version, garbage, a cut message and a slow peer end typed and in time") {
  Server server;
  {
    server.Begin();
    Raw raw(server.url());
    raw.Send(Hello(std::string(32, 'n'), 9).substr(0, 8));  // the rest may be laid out otherwise
    const std::string answer = raw.Receive(40);
    CHECK(RefusalReason(answer) == 2);
    CHECK(answer.substr(4, 4) == Little(1, 4));
    server.Finish();
    CHECK(server.status.message().find("protocol version 9, the server speaks 1") != std::string::npos);
  }
  {
    server.Begin();
    Raw raw(server.url());
    raw.Send("GET / HTTP/1.1\r\n\r\n");
    CHECK(RefusalReason(raw.Receive(40)) == 1);
    server.Finish();
    CHECK(server.status.code() == Code::kRefused);
    CHECK(server.status.message().find("malformed") != std::string::npos);
  }
  {
    server.Begin();
    Raw raw(server.url());
    std::string hello = Hello(std::string(32, 'n'));
    hello[7] = static_cast<char>(200);  // longer than a job's name may be
    raw.Send(hello);
    CHECK(RefusalReason(raw.Receive(40)) == 1);
    server.Finish();
    CHECK(server.status.code() == Code::kRefused);
  }
  {
    server.Begin();
    Raw raw(server.url());
    raw.Send(Hello(std::string(32, 'n')).substr(0, 50));
    raw.Close();
    server.Finish();
    CHECK(server.status.code() == Code::kClosed);
  }
  {
    const auto begin = Clock::now();
    server.Begin(0.2);
    Raw raw(server.url());
    raw.Send("BPLH");
    server.Finish();
    CHECK(server.status.code() == Code::kTimeout);
    CHECK(Clock::now() - begin < std::chrono::seconds(3));
  }
}

TEST_CASE("handshake: a client is not fooled by a server without the secret") {
  StreamPair streams = MakeStreams(FreshUrl("inproc"));
  std::thread impostor([&] {
    std::byte hello[120];
    CHECK(ReadFull(*streams.server, hello, In(5)).ok());
    std::byte answer[40] = {std::byte{1}};
    CHECK(WriteFull(*streams.server, answer, In(5)).ok());
    std::byte proof[32];
    CHECK(ReadFull(*streams.server, proof, In(5)).ok());
    answer[0] = std::byte{2};
    CHECK(WriteFull(*streams.server, answer, In(5)).ok());
  });
  const Status status = ClientHandshake(*streams.client, kGood, {}, In(5));
  impostor.join();
  CHECK(status.code() == Code::kRefused);
  CHECK(status.message().find("does not hold the job's secret") != std::string::npos);
}

TEST_CASE("handshake: credentials are checked before anything is sent") {
  StreamPair streams = MakeStreams(FreshUrl("inproc"));
  const auto shorter = With([](Credentials& c) { c.secret = "short"; });
  const auto longer = With([](Credentials& c) { c.job = std::string(65, 'j'); });
  CHECK(ClientHandshake(*streams.client, shorter, {}, In(1)).code() == Code::kInvalid);
  CHECK(ClientHandshake(*streams.client, longer, {}, In(1)).code() == Code::kInvalid);
  CHECK(ServerHandshake(*streams.server, shorter, In(1)).status().code() == Code::kInvalid);
}

}  // namespace byteps_like::testing
