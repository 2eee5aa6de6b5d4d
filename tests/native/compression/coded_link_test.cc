// What an engine says of coded partitions, frame by frame, to a server that the test plays: order, names of codecs, a
// new link in the middle, and results that are none.
#include <doctest/doctest.h>

#include <string>

#include "tests/native/compression/coded_fixture.h"
#include "tests/native/server/raw_worker.h"

namespace byteps_like::testing {
namespace {

constexpr uint32_t kNumel = 1024;

class OneServer {
 public:
  OneServer() {
    auto listening = Listen(FreshUrl("inproc"));
    if (!listening.ok()) throw std::runtime_error(listening.status().message());
    listener_ = std::move(*listening);
    EngineOptions options;
    options.bounce_bytes = 0;
    options.credentials = credentials_;
    options.on_event = [this](Code code, const std::string& text, bool fatal) {
      std::lock_guard lock(mutex_);
      if (fatal) failure_ = Status(code, text);
    };
    std::thread accept([this] { Accept(); });
    auto started = Engine::Start(options, {{0, 0, {listener_->url()}}});
    accept.join();
    if (!started.ok()) throw std::runtime_error(started.status().message());
    engine_ = std::move(*started);
  }

  Engine& engine() { return *engine_; }
  RawLink& link() { return *link_; }
  void Break() {
    link_.reset();
    Accept();
  }
  Message Next() {
    auto frame = link_->Receive();
    REQUIRE(frame.has_value());
    return *frame;
  }
  void Answer(Header header, uint32_t total, const Bytes& payload) {
    header.type = FrameType::kResult;
    header.offset = 0;
    header.length = static_cast<uint32_t>(payload.size());
    header.total = total;
    link_->Send(header, payload);
  }

  // A tensor of `parts` partitions with keys from `key` on, and its round.
  std::shared_ptr<Operation> Submit(uint64_t key, uint32_t parts, const CodecUse& use, int32_t priority) {
    std::vector<PartitionSpec> specs;
    for (uint32_t part = 0; part < parts; ++part)
      specs.push_back({key + part, uint64_t{part} * kNumel * 4, kNumel * 4, 0});
    memory_.emplace_back(parts * kNumel, 1.0f);
    auto tensor = engine_->DeclareCoded(specs, use);
    REQUIRE(tensor.ok());
    auto operation = engine_->Submit({.tensor = *tensor,
                                      .address = reinterpret_cast<std::byte*>(memory_.back().data()),
                                      .last_part = parts,
                                      .priority = priority});
    REQUIRE(operation.ok());
    return *operation;
  }
  Status Wait(Operation& operation) { return engine_->Wait(operation, In(5)); }

 private:
  void Accept() {
    auto stream = listener_->Accept(In(5));
    if (stream.ok() && ServerHandshake(**stream, credentials_, In(5)).ok()) link_.emplace(std::move(*stream));
  }

  const Credentials credentials_{"job", std::string(32, 's'), 1};
  std::unique_ptr<Listener> listener_;
  std::optional<RawLink> link_;
  std::mutex mutex_;
  Status failure_;
  std::deque<Floats> memory_;
  std::unique_ptr<Engine> engine_;
};

std::string TextOf(const Message& message) {
  return std::string(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
}

}  // namespace

TEST_CASE("coded frames: a codec is named before its first payload; the urgent overtake what waits to be encoded") {
  OneServer server;
  const auto gate = std::make_shared<GatedCodec>(CodecOf(kOnebit, 1));
  server.Submit(100, 3, {gate, "twoway " + kOnebit}, 0);
  gate->AwaitEncode();
  server.Submit(200, 1, {CodecOf(kOnebit, 1), kOnebit}, 7);
  gate->Open();
  std::vector<uint64_t> keys;
  std::vector<std::string> texts;
  while (keys.size() < 4) {
    const Message message = server.Next();
    if (message.header.type == FrameType::kCodec) {
      CHECK(message.header.aux == (TextOf(message) == kOnebit ? 1 : 0));
      texts.push_back(TextOf(message));
      continue;
    }
    CHECK(message.header.flags == kEncoded);
    CHECK(message.header.aux == (message.header.key < 200 ? 0 : 1));
    CHECK(message.header.dtype == DType::kFloat32);
    CHECK(message.header.total == 16 + kNumel / 8 + 2 * 4);
    CHECK(message.payload.size() == message.header.total);
    const auto header = DecodePayloadHeader(message.payload);
    CHECK((header.ok() && message.payload[0] == std::byte{6}));
    keys.push_back(message.header.key);
  }
  std::sort(texts.begin(), texts.end());
  CHECK(texts == std::vector<std::string>{kOnebit, "twoway " + kOnebit});
  const auto urgent = std::find(keys.begin(), keys.end(), 200);
  CHECK(urgent - keys.begin() <= 1);  // the first was being encoded already
  CHECK(keys.back() == 100);
}

TEST_CASE("coded frames: on a new link the codec is named again and the payload resumed") {
  OneServer server;
  auto operation = server.Submit(100, 1, {CodecOf(kOnebit, 1), kOnebit}, 0);
  CHECK(server.Next().header.type == FrameType::kCodec);
  const Message push = server.Next();
  server.Break();
  CHECK(TextOf(server.Next()) == kOnebit);
  Header resume = server.Next().header;
  CHECK(resume.type == FrameType::kResume);
  CHECK(resume.flags == kEncoded);
  CHECK(resume.offset == 0);
  CHECK(resume.total == push.header.total);
  resume.type = FrameType::kResumed;
  resume.flags = 0;
  resume.offset = 64;  // of the payload
  server.link().Send(resume);
  const Message rest = server.Next();
  CHECK(rest.header.offset == 64);
  CHECK(Bytes(push.payload.begin() + 64, push.payload.end()) == rest.payload);
  // Half of the result, and the link breaks again: it goes on where it was.
  const Bytes half(push.payload.begin(), push.payload.begin() + 80),
      other(push.payload.begin() + 80, push.payload.end());
  server.Answer(push.header, push.header.total, half);
  while (server.engine().counters().payload_received < half.size()) std::this_thread::yield();
  server.Break();
  server.Next();
  resume = server.Next().header;
  CHECK(resume.offset == half.size());
  Header tail = push.header;
  tail.type = FrameType::kResult;
  tail.offset = half.size();
  tail.length = static_cast<uint32_t>(other.size());
  server.link().Send(tail, other);
  CHECK(server.Wait(*operation).ok());
}

TEST_CASE("coded frames: a merged result lands beside its payload, which can be sent again from anywhere") {
  const std::string blocks = "blocksparse:block=256,dense=0.8";
  for (const uint32_t counted : {2000u, 0u}) {
    OneServer server;
    server.engine().SetSegment(1024);
    auto operation = server.Submit(100, 1, {CodecOf(blocks, 1), blocks}, 0);
    CHECK(TextOf(server.Next()) == blocks);
    Message push = server.Next();
    Bytes payload = push.payload;
    CHECK(push.header.total == 16 + 4 + kNumel * 4);  // of ones: whole
    while (payload.size() < push.header.total) {
      const Message more = server.Next();
      CHECK(more.header.offset == payload.size());
      payload.insert(payload.end(), more.payload.begin(), more.payload.end());
    }
    Bytes result = payload;
    for (size_t i = 20; i < result.size(); i += 4) result[i + 2] ^= std::byte{0x40};  // other numbers
    server.Answer(push.header, push.header.total, Bytes(result.begin(), result.begin() + 3000));
    while (server.engine().counters().payload_received < 3000) std::this_thread::yield();
    server.Break();
    CHECK(TextOf(server.Next()) == blocks);
    Header resume = server.Next().header;
    CHECK(resume.type == FrameType::kResume);
    CHECK(resume.offset == 3000);
    resume.type = FrameType::kResumed;
    resume.flags = 0;
    resume.offset = counted;
    server.link().Send(resume);
    if (counted == 0) {  // then the result can't have come from there
      CHECK(server.Wait(*operation).code() == Code::kPeerLost);
      continue;
    }
    Bytes again(payload.begin(), payload.begin() + counted);
    while (again.size() < payload.size()) {
      const Message more = server.Next();
      CHECK(more.header.offset == again.size());
      again.insert(again.end(), more.payload.begin(), more.payload.end());
    }
    CHECK(again == payload);
    Header tail = push.header;
    tail.type = FrameType::kResult;
    tail.offset = 3000;
    tail.length = static_cast<uint32_t>(result.size() - 3000);
    server.link().Send(tail, Bytes(result.begin() + 3000, result.end()));
    CHECK(server.Wait(*operation).ok());
  }
}

TEST_CASE("coded frames: a result that is none fails the job and names the key") {
  for (const int kind : {0, 1, 2}) {
    OneServer server;
    auto operation = server.Submit(100, 1, {CodecOf(kOnebit, 1), kOnebit}, 0);
    server.Next();
    Message push = server.Next();
    if (kind == 0) server.Answer(push.header, 1 << 20, push.payload);  // larger than any
    if (kind == 1) push.payload[4] ^= std::byte{1};                    // of other elements
    if (kind == 2) push.payload.pop_back();                            // a byte is missing
    if (kind != 0) server.Answer(push.header, static_cast<uint32_t>(push.payload.size()), push.payload);
    const Status status = server.Wait(*operation);
    CHECK(status.code() == Code::kCorrupt);
    CHECK(status.message().find("key 100") != std::string::npos);
  }
}

TEST_CASE("coded frames: a prelude goes before payloads of equal priority and needs no credit") {
  OneServer server;
  server.engine().SetCredit(64);
  auto first = server.Submit(100, 2, {CodecOf("step", 1), "step"}, 0);
  const Message one = server.Next(), two = server.Next();
  CHECK(one.header.key == (kPreludeKey | 101));
  CHECK(two.header.key == (kPreludeKey | 100));
  CHECK(one.header.op == Op::kMax);
  CHECK(one.header.total == 4);
  CHECK(one.header.flags == 0);
  server.Answer(one.header, 4, one.payload);
  const Message payload = server.Next();
  CHECK(payload.header.key == 101);
  CHECK(payload.header.dtype == DType::kInt32);
  CHECK(payload.header.total == kNumel * 4);
}

}  // namespace byteps_like::testing
