// The handshake on the wire: a real admission on tcp, the other end ours, or built by hand from
// docs/reference/protocol.md.
#include "csrc/transport/entrance/handshake.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <condition_variable>

#include "csrc/base/log.h"
#include "csrc/transport/entrance/admission.h"
#include "tests/native/server/raw_client.h"
#include "tests/native/transport/server_handshake.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {
namespace {

Incarnation Of(char letter) {
  Incarnation incarnation;
  incarnation.fill(static_cast<std::byte>(letter));
  return incarnation;
}

const Credentials kGood{"the-job", std::string(32, 's'), 7, Of('i')};
const Introduction kWho{{Role::kWorker, 5}, {Role::kServer, 9}, 0};

Credentials With(void (*change)(Credentials&)) {
  Credentials credentials = kGood;
  change(credentials);
  return credentials;
}

Introduction Saying(void (*change)(Introduction&)) {
  Introduction who = kWho;
  change(who);
  return who;
}

// Server 3 of the world, member 9, with workers 4 and 5; remembers whom it let in and what it logged.
class Host {
 public:
  explicit Host(bool knows_world = true) {
    SetLogSink([this](LogLevel, std::string_view text) {
      std::lock_guard lock(mutex_);
      log_ += std::string(text) + "\n";
    });
    Admission::Options options;
    options.job = kGood.job;
    options.secret = kGood.secret;
    options.shards = 4;
    options.admit = [this](std::unique_ptr<Stream> stream, const Admitted& who) {
      std::lock_guard lock(mutex_);
      in_.push_back(who);
      streams_.push_back(std::move(stream));
      changed_.notify_all();
    };
    auto opened = Admission::Open({"tcp://127.0.0.1:0"}, std::move(options));
    REQUIRE(opened.ok());
    admission_ = std::move(*opened);
    if (knows_world) SetWorld(7);
  }
  ~Host() {
    admission_.reset();
    SetLogSink({});
  }
  void SetWorld(uint32_t view) { admission_->SetWorld({Of('i'), view, {Role::kServer, 9}, 3, {4, 5}}); }
  std::string url() const { return admission_->urls().front(); }
  std::string log() {
    std::lock_guard lock(mutex_);
    return log_;
  }
  // Whoever is refused may know it before it is logged.
  bool Logs(const std::string& text) {
    const auto limit = In(5);
    while (log().find(text) == std::string::npos) {
      if (Clock::now() > limit) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  Meeting Try(const Credentials& credentials = kGood, const Introduction& who = kWho, double seconds = 5) {
    auto stream = Connect(url(), In(5));
    REQUIRE(stream.ok());
    return Meet(**stream, credentials, who, In(seconds));
  }
  std::vector<Admitted> Await(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, In(5), [&] { return in_.size() >= count; });
    return in_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string log_;
  std::vector<Admitted> in_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::unique_ptr<Admission> admission_;
};

}  // namespace

TEST_CASE("handshake: both ends agree on every transport") {
  for (const std::string& scheme : TestedSchemes()) {
    CAPTURE(scheme);
    StreamPair streams = MakeStreams(FreshUrl(scheme));
    Meeting client;
    const Introduction who{{Role::kWorker, 5}, {Role::kServer, 9}, 3};
    std::thread thread([&] { client = Meet(*streams.client, kGood, who, In(5)); });
    auto peer = ServerHandshake(*streams.server, kGood, In(5));
    thread.join();
    REQUIRE_MESSAGE(peer.ok(), peer.status().message());
    REQUIRE_MESSAGE(client.status.ok(), client.status.message());
    CHECK(peer->from == who.from);
    CHECK(peer->to == who.to);
    CHECK(peer->shard == 3);
  }
}

TEST_CASE("handshake: who is let in has its rank by its number") {
  Host host;
  CHECK(host.Try().status.ok());
  const auto in = host.Await(1);
  REQUIRE(in.size() == 1);
  CHECK(in[0].rank == 1);
  CHECK(in[0].view == 7);
  CHECK(host.Try(kGood, Saying([](Introduction& who) { who.from.number = 4, who.shard = 3; })).status.ok());
  CHECK(host.Await(2)[1].rank == 0);
  CHECK(host.Await(2)[1].shard == 3);
}

TEST_CASE(
    "handshake: each refusal is typed, told to the client and logged; only who holds the secret is certain of it") {
  struct Case {
    Credentials client;
    Introduction who;
    const char* reason;
    bool certain;
  };
  const Case cases[] = {
      {With([](Credentials& c) { c.secret = std::string(32, 't'); }), kWho, "proof is wrong", false},
      {With([](Credentials& c) { c.job = "another"; }), kWho, "another job", true},
      {With([](Credentials& c) { c.job = ""; }), kWho, "another job", true},
      {With([](Credentials& c) { c.view = 6; }), kWho, "epoch 6, the other end is in epoch 7", true},
      {With([](Credentials& c) { c.incarnation = Of('j'); }), kWho, "another start of the same job", true},
      {kGood, Saying([](Introduction& who) { who.to.number = 8; }), "you have reached server 3", true},
      {kGood, Saying([](Introduction& who) { who.to.role = Role::kWorker; }), "you have reached server 3", true},
      {kGood, Saying([](Introduction& who) { who.from.number = 6; }), "no member 6", true},
      {kGood, Saying([](Introduction& who) { who.from.role = Role::kServer; }), "no member 5", true},
      {kGood, Saying([](Introduction& who) { who.shard = 4; }), "malformed", true},
  };
  Host host;
  for (const Case& one : cases) {
    CAPTURE(one.reason);
    const Meeting met = host.Try(one.client, one.who);
    CHECK(met.status.code() == Code::kRefused);
    CHECK(met.status.message().find(one.reason) != std::string::npos);
    CHECK(met.certain == one.certain);
    std::this_thread::sleep_for(std::chrono::milliseconds(130));  // no more than some lines a second are logged
    CHECK(host.Logs(one.reason));
  }
  CHECK(host.Logs("tcp 127.0.0.1:"));
}

TEST_CASE("handshake: the bytes are those of docs/reference/protocol.md") {
  Host host;
  RawClient raw(host.url());
  const RawHello hello;
  REQUIRE(hello.bytes().size() == 176);
  raw.Send(hello.bytes());
  const std::string challenge = raw.Receive(40);
  REQUIRE(challenge.size() == 40);
  CHECK(challenge[0] == 1);
  raw.Send(hello.Proof(challenge));
  const std::string welcome = raw.Receive(40);
  REQUIRE(welcome.size() == 40);
  CHECK(welcome[0] == 2);
  CHECK(welcome.substr(8) == hello.Welcome(challenge));
  CHECK(host.Await(1).size() == 1);
  RawHello elsewhere;
  elsewhere.to = 8;
  RawClient lost(host.url());
  lost.Send(elsewhere.bytes());
  lost.Send(elsewhere.Proof(lost.Receive(40)));
  const std::string refusal = lost.Receive(40);
  CHECK(RefusalReason(refusal) == 6);
  CHECK(refusal.substr(2, 6) == Little(2, 2) + Little(3, 4));
  CHECK(elsewhere.Signed(refusal));
}

TEST_CASE("handshake: a recorded exchange is worthless, and a recorded HELLO gets a challenge at most") {
  Host host;
  const RawHello hello;
  std::string proof;
  {
    RawClient raw(host.url());
    raw.Send(hello.bytes());
    proof = hello.Proof(raw.Receive(40));
    raw.Send(proof);
    CHECK(raw.Receive(40)[0] == 2);
  }
  RawClient replay(host.url());
  replay.Send(hello.bytes() + proof);
  CHECK(replay.Receive(40)[0] == 1);
  CHECK(RefusalReason(replay.Receive(40)) == 5);
  CHECK(host.Logs("replay"));
  CHECK(host.Await(1).size() == 1);
}

TEST_CASE("handshake: a HELLO that was changed on its way gets no challenge") {
  Host host;
  for (const size_t at : {8u, 12u, 16u, 24u, 40u, 112u, 150u}) {
    CAPTURE(at);
    RawClient raw(host.url());
    std::string hello = RawHello().bytes();
    hello[at] = static_cast<char>(hello[at] ^ 1);
    raw.Send(hello);
    CHECK(RefusalReason(raw.Receive(40)) == 5);
  }
}

TEST_CASE("handshake: another version, garbage, a cut message and a silent peer end typed and in time") {
  Host host;
  {
    RawClient raw(host.url());
    RawHello other;
    other.version = 9;
    raw.Send(other.bytes().substr(0, 8));  // the rest may be laid out otherwise
    const std::string answer = raw.Receive(40);
    CHECK(RefusalReason(answer) == 2);
    CHECK(answer.substr(4, 4) == Little(2, 4));
    CHECK(host.Logs("protocol version 9, the other end speaks 2"));
  }
  {
    RawClient raw(host.url());
    raw.Send("GET / HTTP/1.1\r\n\r\n");
    CHECK(RefusalReason(raw.Receive(40)) == 1);
    CHECK(host.Logs("malformed"));
  }
  {
    RawClient raw(host.url());
    std::string hello = RawHello().bytes();
    hello[7] = static_cast<char>(200);  // longer than a job's name may be
    raw.Send(hello);
    CHECK(RefusalReason(raw.Receive(40)) == 1);
  }
  {
    const auto begin = Clock::now();
    RawClient raw(host.url());
    raw.Send("BPLH");
    CHECK(raw.Receive(40).empty());
    CHECK(Clock::now() - begin > std::chrono::milliseconds(900));
    CHECK(Clock::now() - begin < std::chrono::seconds(3));
  }
}

TEST_CASE("handshake: who has heard of the world first waits for the other end to hear of it") {
  Host host(false);
  Meeting early, too_early;
  std::thread first([&] { early = host.Try(); });
  std::thread second([&] { too_early = host.Try(With([](Credentials& c) { c.view = 8; }), kWho, 1); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(host.log().empty());
  host.SetWorld(7);
  first.join();
  second.join();
  CHECK(early.status.ok());
  CHECK(too_early.status.code() == Code::kTimeout);
}

TEST_CASE("handshake: a client is not fooled by a server without the secret, nor ends for what it says") {
  for (const int answer_kind : {1, 3}) {
    CAPTURE(answer_kind);
    StreamPair streams = MakeStreams(FreshUrl("inproc"));
    std::thread impostor([&] {
      std::byte hello[176];
      CHECK(ReadFull(*streams.server, hello, In(5)).ok());
      std::byte answer[40] = {static_cast<std::byte>(answer_kind), std::byte{4}};
      CHECK(WriteFull(*streams.server, answer, In(5)).ok());
      if (answer_kind == 3) return;
      std::byte proof[32];
      CHECK(ReadFull(*streams.server, proof, In(5)).ok());
      answer[0] = std::byte{2};
      CHECK(WriteFull(*streams.server, answer, In(5)).ok());
    });
    const Meeting met = Meet(*streams.client, kGood, kWho, In(5));
    impostor.join();
    CHECK(met.status.code() == Code::kRefused);
    CHECK_FALSE(met.certain);
  }
}

TEST_CASE("handshake: credentials are checked before anything is sent, and before anybody listens") {
  StreamPair streams = MakeStreams(FreshUrl("inproc"));
  const auto shorter = With([](Credentials& c) { c.secret = "short"; });
  const auto longer = With([](Credentials& c) { c.job = std::string(65, 'j'); });
  CHECK(Meet(*streams.client, shorter, kWho, In(1)).status.code() == Code::kInvalid);
  CHECK(Meet(*streams.client, longer, kWho, In(1)).status.code() == Code::kInvalid);
  CHECK(Admission::Open({FreshUrl("inproc")}, {"job", "short", 1, {}}).status().code() == Code::kInvalid);
}

}  // namespace byteps_like::testing
