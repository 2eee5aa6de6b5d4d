// Streams that encrypt, over a wire in memory whose bytes the test may cut up, change, repeat and end. What all streams
// promise is in transport_conformance_test.cc, which runs on tls+tcp as well.
#include <doctest/doctest.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <deque>
#include <random>

#include "csrc/transport/entrance/admission.h"
#include "csrc/transport/tls/certificate.h"
#include "csrc/transport/tls/tls_stream.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {
namespace {

const StreamKeys kKeys{std::string(32, 's'), {std::byte{1}, std::byte{2}}};

// One direction of the wire.
struct Lane {
  std::deque<std::byte> bytes;
  bool ended = false;
  size_t most = SIZE_MAX;  // of one read or write
  size_t passed = 0;
  std::optional<size_t> flip;  // of all that passes, the byte to change

  void Put(std::byte byte) { bytes.push_back(flip == passed++ ? byte ^ std::byte{0x10} : byte); }
};

struct Wire {
  Lane to_server, to_client;
};

class WireEnd final : public Stream {
 public:
  WireEnd(std::shared_ptr<Wire> wire, Lane& in, Lane& out) : wire_(std::move(wire)), in_(in), out_(out) {}
  ~WireEnd() override { WireEnd::Shutdown(); }

  Result<size_t> Read(std::byte* data, size_t size) override {
    if (shut_ || (in_.bytes.empty() && in_.ended)) return Status(Code::kClosed, peer() + " closed the connection");
    const size_t count = std::min({size, in_.most, in_.bytes.size()});
    std::copy_n(in_.bytes.begin(), count, data);
    in_.bytes.erase(in_.bytes.begin(), in_.bytes.begin() + static_cast<ptrdiff_t>(count));
    return count;
  }
  Result<size_t> Write(std::span<const iovec> pieces) override {
    if (out_.ended) return Status(Code::kPeerLost, peer() + " is gone");
    size_t count = 0;
    for (const iovec& piece : pieces) {
      for (size_t i = 0; i < piece.iov_len && count < out_.most; ++i, ++count) {
        out_.Put(static_cast<const std::byte*>(piece.iov_base)[i]);
      }
    }
    return count;
  }
  std::vector<int> fds() const override { return {}; }
  void Shutdown() override { shut_ = out_.ended = true; }
  std::string peer() const override { return "wire end:1"; }

 private:
  const std::shared_ptr<Wire> wire_;
  Lane& in_;
  Lane& out_;
  bool shut_ = false;
};

struct Ends {
  std::shared_ptr<Wire> wire = std::make_shared<Wire>();
  std::unique_ptr<Stream> client, server;

  explicit Ends(const StreamKeys& client_keys = kKeys, const StreamKeys& server_keys = kKeys)
      : client(WrapInTls(Raw(false), true)), server(WrapInTls(Raw(true), false)) {
    client->UseKeys(client_keys);
    server->UseKeys(server_keys);
  }
  std::unique_ptr<Stream> Raw(bool of_server) {
    Lane& in = of_server ? wire->to_server : wire->to_client;
    Lane& out = of_server ? wire->to_client : wire->to_server;
    return std::make_unique<WireEnd>(wire, in, out);
  }
  // Both ends go on as far as they can; the first failure of each.
  std::pair<Status, Status> Negotiate() {
    Status of_client, of_server;
    for (int i = 0; i < 4000 && (client->binding().empty() || server->binding().empty()); ++i) {
      const auto a = client->Write({}), b = server->Write({});
      if (of_client.ok()) of_client = a.status();
      if (of_server.ok()) of_server = b.status();
      if (!of_client.ok() && !of_server.ok()) break;
    }
    return {of_client, of_server};
  }
};

iovec Piece(const Bytes& bytes, size_t from = 0) {
  return {const_cast<std::byte*>(bytes.data()) + from, bytes.size() - from};
}

// Writes all, while the reader takes it; what the reader got, and why it ended.
std::pair<Bytes, Status> Transfer(Stream& from, Stream& to, const Bytes& bytes, std::minstd_rand& random,
                                  size_t longest_read) {
  Bytes received, room(longest_read);
  Status why;
  size_t sent = 0;
  for (int idle = 0; idle < 10'000 && received.size() < bytes.size();) {
    if (sent < bytes.size()) {
      const iovec piece = Piece(bytes, sent);
      auto written = from.Write(std::span(&piece, 1));
      if (!written.ok()) return {received, written.status()};
      sent += *written;
    }
    auto got = to.Read(room.data(), 1 + random() % longest_read);
    if (!got.ok()) return {received, got.status()};
    idle = *got == 0 ? idle + 1 : 0;
    received.insert(received.end(), room.begin(), room.begin() + static_cast<ptrdiff_t>(*got));
  }
  return {received, why};
}

std::vector<Bytes> RecordsOn(Lane& lane) {
  std::vector<Bytes> records;
  while (lane.bytes.size() >= 5) {
    const size_t size = 5 + (std::to_integer<size_t>(lane.bytes[3]) << 8) + std::to_integer<size_t>(lane.bytes[4]);
    records.emplace_back(lane.bytes.begin(), lane.bytes.begin() + static_cast<ptrdiff_t>(size));
    lane.bytes.erase(lane.bytes.begin(), lane.bytes.begin() + static_cast<ptrdiff_t>(size));
  }
  return records;
}

void PutOn(Lane& lane, const Bytes& record) { lane.bytes.insert(lane.bytes.end(), record.begin(), record.end()); }

// Reads to the end: what came, and the end.
std::pair<Bytes, Status> ReadAll(Stream& stream, size_t at_once = 100'000) {
  Bytes all, room(at_once);
  for (;;) {
    auto got = stream.Read(room.data(), room.size());
    if (!got.ok()) return {all, got.status()};
    if (*got == 0) return {all, Status()};
    all.insert(all.end(), room.begin(), room.begin() + static_cast<ptrdiff_t>(*got));
  }
}

bool IsPrefix(const Bytes& part, const Bytes& whole) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

// libssl alone, for the other end of a conversation: without our windows, pieces and keys.
class Reference {
 public:
  Reference(Lane& in, Lane& out, bool dials) : in_(in), out_(out) {
    context_ = SSL_CTX_new(dials ? TLS_client_method() : TLS_server_method());
    SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_psk_use_session_callback(
        context_, [](SSL* ssl, const EVP_MD*, const unsigned char** identity, size_t* size, SSL_SESSION** session) {
          static const std::string name = "0102" + std::string(28, '0');
          *identity = reinterpret_cast<const unsigned char*>(name.data());
          *size = name.size();
          *session = Session(ssl);
          return 1;
        });
    SSL_CTX_set_psk_find_session_callback(context_, [](SSL* ssl, const unsigned char*, size_t, SSL_SESSION** session) {
      *session = Session(ssl);
      return 1;
    });
    SSL_CTX_set_num_tickets(context_, 0);
    ssl_ = SSL_new(context_);
    SSL_set_bio(ssl_, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    dials ? SSL_set_connect_state(ssl_) : SSL_set_accept_state(ssl_);
  }
  ~Reference() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }

  void Write(const Bytes& bytes) {
    size_t written = 0;
    REQUIRE(SSL_write_ex(ssl_, bytes.data(), bytes.size(), &written) == 1);
    Pump();
  }
  Bytes Read() {
    Pump();
    Bytes all(1 << 20);
    size_t size = 0;
    for (size_t got = 0; SSL_read_ex(ssl_, all.data() + size, all.size() - size, &got) == 1;) size += got;
    Pump();
    all.resize(size);
    return all;
  }
  void UpdateKey() { REQUIRE(SSL_key_update(ssl_, SSL_KEY_UPDATE_REQUESTED) == 1); }
  void Close() {
    SSL_shutdown(ssl_);
    Pump();
  }
  bool closed() const { return (SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0; }
  void Step() {
    Pump();
    SSL_do_handshake(ssl_);
    Pump();
  }

 private:
  static SSL_SESSION* Session(SSL* ssl) {
    constexpr unsigned char kSuite[] = {0x13, 0x01};
    auto key = HmacSha256(std::as_bytes(std::span(kKeys.secret)), "byteps_like v2 link tls", {kKeys.incarnation});
    SSL_SESSION* const session = SSL_SESSION_new();
    SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key->data()), key->size());
    SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kSuite));
    SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION);
    return session;
  }
  void Pump() {
    const Bytes in(in_.bytes.begin(), in_.bytes.end());
    in_.bytes.clear();
    if (!in.empty()) BIO_write(SSL_get_rbio(ssl_), in.data(), static_cast<int>(in.size()));
    Bytes out(BIO_ctrl_pending(SSL_get_wbio(ssl_)));
    if (!out.empty()) BIO_read(SSL_get_wbio(ssl_), out.data(), static_cast<int>(out.size()));
    PutOn(out_, out);
  }

  Lane& in_;
  Lane& out_;
  SSL_CTX* context_;
  SSL* ssl_;
};

}  // namespace

TEST_CASE("tls: records of any size pass, cut up at any place, in reads of any size") {
  std::minstd_rand random(1);
  const size_t lengths[] = {1, 2, 63, 64, 100, 16'383, 16'384, 16'385, 200'001};
  for (const size_t most : {size_t{1}, size_t{7}, size_t{1000}, size_t{20'000}, SIZE_MAX}) {
    Ends ends;
    ends.wire->to_server.most = ends.wire->to_client.most = most;
    REQUIRE(ends.Negotiate().first.ok());
    CHECK(std::ranges::equal(ends.client->binding(), ends.server->binding()));
    for (const size_t length : lengths) {
      if (most == 1 && length > 20'000) continue;  // a minute
      for (const size_t longest : {size_t{1}, size_t{100}, size_t{300'000}}) {
        if (longest == 1 && length > 1000) continue;
        CAPTURE(most);
        CAPTURE(length);
        const Bytes bytes = Pattern(length, static_cast<uint32_t>(length));
        const auto [there, lost] = Transfer(*ends.client, *ends.server, bytes, random, longest);
        CHECK(there == bytes);
        const auto [back, gone] = Transfer(*ends.server, *ends.client, bytes, random, longest);
        CHECK(back == bytes);
      }
    }
    CHECK(*ends.client->Write({}) == 0);
  }
}

TEST_CASE("tls: pieces of a write are gathered into records, and what was not taken is taken later") {
  Ends ends;
  REQUIRE(ends.Negotiate().first.ok());
  const Bytes bytes = Pattern(300'000, 3);
  std::vector<iovec> pieces;
  for (size_t at = 0, size = 0; at < bytes.size(); at += size, size = (size * 3 + 1) % 9000) {
    pieces.push_back({const_cast<std::byte*>(bytes.data()) + at, std::min(size, bytes.size() - at)});
  }
  ends.wire->to_server.most = 50'000;
  size_t taken = 0;
  Bytes received, room(bytes.size());
  for (int i = 0; i < 1000 && received.size() < bytes.size(); ++i) {
    std::vector<iovec> rest;
    size_t skip = taken;
    for (iovec piece : pieces) {
      const size_t skipped = std::min(skip, piece.iov_len);
      skip -= skipped;
      rest.push_back({static_cast<std::byte*>(piece.iov_base) + skipped, piece.iov_len - skipped});
    }
    auto written = ends.client->Write(rest);
    REQUIRE(written.ok());
    taken += *written;
    auto got = ends.server->Read(room.data(), room.size());
    REQUIRE(got.ok());
    received.insert(received.end(), room.begin(), room.begin() + static_cast<ptrdiff_t>(*got));
  }
  CHECK(received == bytes);
  CHECK(taken == bytes.size());
}

TEST_CASE("tls: plain OpenSSL at the other end understands us, with new keys from either end") {
  for (const bool we_dial : {true, false}) {
    CAPTURE(we_dial);
    auto wire = std::make_shared<Wire>();
    Lane &in = we_dial ? wire->to_client : wire->to_server, &out = we_dial ? wire->to_server : wire->to_client;
    auto ours = WrapInTls(std::make_unique<WireEnd>(wire, in, out), we_dial, {.records_per_key = 5});
    ours->UseKeys(kKeys);
    Reference theirs(out, in, !we_dial);
    for (int i = 0; i < 5 && ours->binding().empty(); ++i) {
      REQUIRE(ours->Write({}).ok());
      theirs.Step();
    }
    REQUIRE_FALSE(ours->binding().empty());
    for (uint32_t turn = 0; turn < 8; ++turn) {
      const Bytes there = Pattern(40'000 + turn, turn), back = Pattern(50'000 + turn, 100 + turn);
      const iovec piece = Piece(there);
      REQUIRE(*ours->Write(std::span(&piece, 1)) == there.size());
      CHECK(theirs.Read() == there);
      if (turn % 3 == 1) theirs.UpdateKey();
      theirs.Write(back);
      CHECK(ReadAll(*ours, turn % 2 == 0 ? 100'000 : 777).first == back);
    }
    if (we_dial) {
      theirs.Close();
      CHECK(ReadAll(*ours).second.code() == Code::kClosed);
    } else {
      ours->Shutdown();
      CHECK(theirs.Read().empty());
      CHECK(theirs.closed());
    }
  }
}

TEST_CASE("tls: a connection that ends at any byte before its last word is lost, and not closed") {
  const Bytes bytes = Pattern(3000, 5);
  size_t whole = SIZE_MAX;
  for (size_t cut = 0; cut <= whole; cut += cut < 600 ? 1 : 37) {
    CAPTURE(cut);
    Ends ends;
    REQUIRE(ends.Negotiate().first.ok());
    for (size_t at = 0; at < bytes.size(); at += 1000) {
      const iovec piece{const_cast<std::byte*>(bytes.data()) + at, 1000};
      REQUIRE(*ends.client->Write(std::span(&piece, 1)) == 1000);
    }
    ends.client->Shutdown();
    Lane& lane = ends.wire->to_server;
    whole = lane.bytes.size();
    const bool all = cut >= whole;
    lane.bytes.resize(std::min(cut, whole));
    const auto [got, why] = ReadAll(*ends.server);
    CHECK(IsPrefix(got, bytes));
    CHECK(why.code() == (all ? Code::kClosed : Code::kPeerLost));
    CHECK(Says(why, "tls+wire end:1"));
  }
}

TEST_CASE("tls: a changed bit in any byte of any record is noticed, and what came before it is right") {
  const Bytes bytes = Pattern(2000, 6);
  for (size_t flip = 0; flip < 2 * (1000 + 22); ++flip) {
    Ends ends;
    REQUIRE(ends.Negotiate().first.ok());
    Lane& lane = ends.wire->to_server;
    lane.flip = lane.passed + flip;
    for (size_t at = 0; at < bytes.size(); at += 1000) {
      const iovec piece{const_cast<std::byte*>(bytes.data()) + at, 1000};
      REQUIRE(*ends.client->Write(std::span(&piece, 1)) == 1000);
    }
    lane.ended = true;  // a longer record than was sent is waited for
    const auto [got, why] = ReadAll(*ends.server);
    const size_t in_record = flip % 1022;
    if (why.code() != Code::kCorrupt || got.size() != flip / 1022 * 1000) {
      CAPTURE(flip);
      CHECK(why.code() == Code::kPeerLost);
      CHECK((in_record == 3 || in_record == 4));
      CHECK(IsPrefix(got, bytes));
    }
  }
}

TEST_CASE("tls: a changed bit in any byte of the negotiation lets nobody in") {
  for (const bool of_client : {true, false}) {
    for (size_t flip = 0;; ++flip) {
      CAPTURE(of_client);
      CAPTURE(flip);
      Ends ends;
      Lane& lane = of_client ? ends.wire->to_server : ends.wire->to_client;
      lane.flip = flip;
      (void)ends.Negotiate();
      if (lane.passed <= flip) break;  // all bytes have been changed once
      const bool both = !ends.client->binding().empty() && !ends.server->binding().empty();
      // The version in a record's header means nothing (RFC 8446, section 5.1).
      if (both) CHECK(std::ranges::equal(ends.client->binding(), ends.server->binding()));
      if (both) CHECK(flip < 3);
    }
  }
}

TEST_CASE("tls: records that are repeated, swapped, left out or of another connection are refused") {
  const auto after = [](auto change) {
    Ends ends, others;
    REQUIRE(ends.Negotiate().first.ok());
    REQUIRE(others.Negotiate().first.ok());
    for (Ends* one : {&ends, &others}) {
      for (uint32_t i = 0; i < 3; ++i) {
        const Bytes bytes = Pattern(500, i);
        const iovec piece = Piece(bytes);
        REQUIRE(*one->client->Write(std::span(&piece, 1)) == 500);
      }
    }
    std::vector<Bytes> records = RecordsOn(ends.wire->to_server), foreign = RecordsOn(others.wire->to_server);
    REQUIRE(records.size() == 3);
    change(records, foreign);
    for (const Bytes& record : records) PutOn(ends.wire->to_server, record);
    auto [got, why] = ReadAll(*ends.server);
    CHECK(why.code() == Code::kCorrupt);
    CHECK(Says(why, "tls+wire end:1"));
    return got.size();
  };
  using Records = std::vector<Bytes>;
  CHECK(after([](Records& records, Records&) { records.insert(records.begin() + 1, records[0]); }) == 500);
  CHECK(after([](Records& records, Records&) { std::swap(records[1], records[2]); }) == 500);
  CHECK(after([](Records& records, Records&) { records.erase(records.begin()); }) == 0);
  CHECK(after([](Records& records, Records& foreign) { records[2] = foreign[2]; }) == 1000);
}

TEST_CASE("tls: another secret is refused on both ends, another incarnation left to the handshake of links") {
  Ends ends({std::string(32, 'x'), kKeys.incarnation}, kKeys);
  const auto [client, server] = ends.Negotiate();
  CHECK(client.code() == Code::kRefused);
  CHECK(server.code() == Code::kRefused);
  CHECK(Says(server, "another secret"));
  CHECK(Says(client, "another secret"));
  Ends other({kKeys.secret, {std::byte{9}}}, kKeys);
  CHECK(other.Negotiate().second.ok());
}

TEST_CASE("tls: whoever speaks in the clear is refused, and so is who negotiates without end") {
  for (const bool of_client : {true, false}) {
    for (const std::string& text : {std::string("BPLH plain words of a handshake as it is without tls"),
                                    std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100, '\0')}) {
      CAPTURE(of_client);
      Ends ends;
      Lane& lane = of_client ? ends.wire->to_client : ends.wire->to_server;
      for (const char letter : text) lane.Put(static_cast<std::byte>(letter));
      Stream& stream = of_client ? *ends.client : *ends.server;
      CHECK(stream.Write({}).status().code() == Code::kRefused);
      CHECK(stream.Write({}).status().code() == Code::kRefused);
    }
  }
  Ends ends;
  for (const unsigned char byte : {22, 3, 1, 64, 0, 1, 0, 255, 255}) ends.wire->to_server.Put(std::byte{byte});
  for (int i = 0; i < 200'000; ++i) ends.wire->to_server.Put(std::byte{0});
  CHECK(ends.server->Write({}).status().code() == Code::kRefused);
}

TEST_CASE("tls: a server without the key, which shows a certificate instead, is refused") {
  auto wire = std::make_shared<Wire>();
  auto ours = WrapInTls(std::make_unique<WireEnd>(wire, wire->to_client, wire->to_server), true);
  ours->UseKeys(kKeys);
  auto made = tls::MakeCertificate("a secret of an impostor, quite long");
  REQUIRE(made.ok());
  SSL_CTX* const context = SSL_CTX_new(TLS_server_method());
  BIO* const paper = BIO_new_mem_buf(made->certificate.data(), static_cast<int>(made->certificate.size()));
  BIO* const key = BIO_new_mem_buf(made->key.data(), static_cast<int>(made->key.size()));
  X509* const certificate = PEM_read_bio_X509(paper, nullptr, nullptr, nullptr);
  EVP_PKEY* const private_key = PEM_read_bio_PrivateKey(key, nullptr, nullptr, nullptr);
  REQUIRE(SSL_CTX_use_certificate(context, certificate) == 1);
  REQUIRE(SSL_CTX_use_PrivateKey(context, private_key) == 1);
  SSL* const ssl = SSL_new(context);
  SSL_set_bio(ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  SSL_set_accept_state(ssl);
  REQUIRE(ours->Write({}).ok());
  const Bytes hello(wire->to_server.bytes.begin(), wire->to_server.bytes.end());
  BIO_write(SSL_get_rbio(ssl), hello.data(), static_cast<int>(hello.size()));
  SSL_do_handshake(ssl);
  Bytes answer(BIO_ctrl_pending(SSL_get_wbio(ssl)));
  REQUIRE(answer.size() > 100);
  BIO_read(SSL_get_wbio(ssl), answer.data(), static_cast<int>(answer.size()));
  PutOn(wire->to_client, answer);
  CHECK(ours->Write({}).status().code() == Code::kRefused);
  SSL_free(ssl);
  SSL_CTX_free(context);
  X509_free(certificate);
  EVP_PKEY_free(private_key);
  BIO_free(paper);
  BIO_free(key);
}

TEST_CASE("tls: without keys nothing moves") {
  auto wire = std::make_shared<Wire>();
  auto stream = WrapInTls(std::make_unique<WireEnd>(wire, wire->to_client, wire->to_server), true);
  const Bytes bytes = Pattern(10, 1);
  const iovec piece = Piece(bytes);
  CHECK(stream->Write(std::span(&piece, 1)).status().code() == Code::kInvalid);
  CHECK(wire->to_server.passed == 0);
}

TEST_CASE("tls: the handshake of links runs inside, refuses by name, and is bound to its connection") {
  const auto meet = [](const std::string& scheme, const Credentials& credentials) {
    Admission::Options options;
    options.job = "the-job";
    options.secret = kKeys.secret;
    options.admit = [](std::unique_ptr<Stream> stream, const Admitted&) { CHECK_FALSE(stream->binding().empty()); };
    auto admission = std::move(*Admission::Open({"tls+tcp://127.0.0.1:0"}, std::move(options)));
    admission->SetWorld({kKeys.incarnation, 7, {Role::kServer, 9}, 3, {4, 5}});
    std::string url = admission->urls().front();
    url.replace(0, url.find("://"), scheme);
    auto stream = Connect(url, In(5));
    REQUIRE(stream.ok());
    const auto began = Clock::now();
    const Meeting met = Meet(**stream, credentials, {{Role::kWorker, 5}, {Role::kServer, 9}, 0}, In(5));
    CHECK(SecondsSince(began) < 2);
    return met;
  };
  const Credentials good{"the-job", kKeys.secret, 7, kKeys.incarnation};
  CHECK(meet("tls+tcp", good).status.ok());
  Credentials stale = good;
  stale.incarnation = {std::byte{9}};
  const Meeting left_over = meet("tls+tcp", stale);
  CHECK(left_over.status.code() == Code::kRefused);
  CHECK(left_over.certain);
  CHECK(Says(left_over.status, "another start of the same job"));
  Credentials stranger = good;
  stranger.secret = std::string(32, 'x');
  const Meeting strange = meet("tls+tcp", stranger);
  CHECK(strange.status.code() == Code::kRefused);
  CHECK_FALSE(strange.certain);
  CHECK_FALSE(meet("tcp", good).status.ok());
}

TEST_CASE("tls: a proof holds for its connection alone") {
  auto keys = handshake::Keys::Of(kKeys.secret);
  auto hello = handshake::MakeHello(*keys, {"the-job", kKeys.secret, 7, kKeys.incarnation}, {});
  auto challenge = handshake::MakeChallenge();
  const Bytes one(32, std::byte{1}), other(32, std::byte{2});
  CHECK(*keys->ClientMac(*hello, *challenge, one) == *keys->ClientMac(*hello, *challenge, one));
  CHECK(*keys->ClientMac(*hello, *challenge, one) != *keys->ClientMac(*hello, *challenge, other));
  CHECK(*keys->ClientMac(*hello, *challenge, one) != *keys->ClientMac(*hello, *challenge, {}));
  CHECK(*keys->ServerMac(*hello, *challenge, {}, one) != *keys->ServerMac(*hello, *challenge, {}, other));
}

}  // namespace byteps_like::testing
