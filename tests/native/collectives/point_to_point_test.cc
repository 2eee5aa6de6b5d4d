// Sends and receives between two ranks: order, any source, early messages, lengths, deadlines, death.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "collectives/communicator.h"
#include "collectives/point_to_point/point_impl.h"
#include "tests/native/collectives/mesh_fixture.h"

namespace byteps_like::testing {
namespace {

struct PointWorld {
  PointWorld(uint32_t size, const std::string& scheme, const std::string& query = "", bool apart = false) {
    std::vector<std::vector<std::string>> urls;
    for (uint32_t rank = 0; rank < size; ++rank) {
      auto made = Communicator::Listen(OptionsFor({FreshUrl(scheme, query)}));
      if (!made.ok()) throw std::runtime_error(made.status().message());
      all.push_back(std::move(*made));
      urls.push_back(all.back()->urls());
      group.push_back(rank);
    }
    for (uint32_t rank = 0; rank < size; ++rank) all[rank]->SetWorld(WorldOf(rank, urls, 1, apart));
  }
  PointOptions Options(uint32_t tag, double timeout) const {
    PointOptions options;
    options.lane = 5;
    options.ranks = group;
    options.tag = tag;
    options.timeout = timeout;
    return options;
  }
  std::shared_ptr<Completion> Send(uint32_t from, uint32_t to, const Bytes& bytes, uint32_t tag = 0,
                                   double timeout = 10, TrafficClass traffic = TrafficClass::kPointToPoint) {
    PointOptions options = Options(tag, timeout);
    options.traffic = traffic;
    return all[from]->point_to_point().Send(std::move(options), to, bytes.data(), bytes.size());
  }
  std::shared_ptr<Completion> Receive(uint32_t at, int32_t from, Bytes& place, uint32_t tag = 0, double timeout = 10) {
    return all[at]->point_to_point().Receive(Options(tag, timeout), from, place.data(), place.size());
  }
  std::vector<std::unique_ptr<Communicator>> all;
  std::vector<uint32_t> group;
};

bool Done(const std::shared_ptr<Completion>& completion, Code code = Code::kOk) {
  return completion->Wait(In(10)) && completion->status().code() == code;
}

// Rank 0 of two, to which the test says what a rank 1 would that breaks the protocol.
struct Victim {
  Victim() {
    TestCall call(ranks[0], {1, 0}, {0, 1}, "a link"), other(ranks[1], {1, 0}, {0, 1}, "a link");
    call.Send(1, 0, Bytes(1));
    other.Receive(0, 0, 1);
    call.Begin();
    other.Begin();
    if (!call.Wait() || !other.Wait()) throw std::runtime_error("there is no link");
    ranks[0].Do([this] { points.emplace(ranks[0].core); });
  }
  ~Victim() {
    ranks[0].Do([this] { points.reset(); });
  }
  std::shared_ptr<Completion> Receive(Bytes& place) {
    PointOptions options;
    options.lane = 5;
    options.ranks = {0, 1};
    options.timeout = 60;
    return points->Receive(std::move(options), 1, place.data(), place.size());
  }
  // `bytes` from `offset` on of rank 1's first message of `length`; `mark`: kEagerMark, or none.
  void Hear(FrameType type, uint64_t offset, uint32_t bytes, uint32_t length, uint32_t mark) {
    ranks[0].Do([&] {
      Header header;
      header.type = type;
      header.member = NumberOf(1);
      header.key = 5 | kPointLane;
      header.offset = offset;
      header.length = bytes;
      header.aux = type == FrameType::kLaunch ? 1 : length;
      header.total = mark;
      std::byte* const place = ranks[0].core.PlaceFor(1, header);
      if (place != kAnywhere && place != nullptr) std::fill_n(place, bytes, std::byte{1});
      ranks[0].core.OnFrame(1, header, place);
    });
  }
  bool Lost() {
    bool lost = false;
    for (const Deadline end = In(10); !lost && Clock::now() < end;) {
      ranks[0].Do([&] { lost = !ranks[0].core.lost(1).ok(); });
    }
    return lost;
  }

  Ranks ranks{2, "inproc"};
  std::optional<PointImpl> points;
};

bool Names(const std::shared_ptr<Completion>& completion, const std::string& text) {
  return completion->status().message().find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("point to point: sizes and transports, receives posted before and after") {
  for (const std::string scheme : {"inproc", "shm", "tcp", "chaos+tcp"}) {
    CAPTURE(scheme);
    PointWorld world(2, scheme, scheme.starts_with("chaos") ? "?seed=2&delay_ms=1" : "");
    for (const size_t size : {0, 1, 5000, 65536, 65537, 3'000'000 / int(kSlow)}) {
      for (const bool early : {true, false}) {
        CAPTURE(size);
        const Bytes sent = Pattern(size, 1);
        Bytes place(size);
        std::shared_ptr<Completion> receive, send;
        if (!early) receive = world.Receive(1, 0, place);
        send = world.Send(0, 1, sent);
        if (early) {
          if (size <= 65536) CHECK(Done(send));
          receive = world.Receive(1, 0, place);
        }
        CHECK(Done(receive));
        CHECK(Done(send));
        CHECK(place == sent);
        CHECK(receive->bytes() == size);
        CHECK(receive->source() == 0);
      }
    }
  }
}

TEST_CASE("point to point: one tag's messages come in order, tags are apart") {
  PointWorld world(2, "shm");
  std::minstd_rand random(3);
  std::deque<Bytes> sent, places;
  std::vector<std::shared_ptr<Completion>> all;
  std::vector<std::pair<uint32_t, size_t>> order;  // tag, size
  for (int i = 0; i < 200; ++i) order.push_back({random() % 3, random() % 8 == 0 ? 200'000 : random() % 2000});
  for (uint32_t i = 0; i < order.size(); ++i) {
    sent.push_back(Pattern(order[i].second, i));
    all.push_back(world.Send(0, 1, sent.back(), order[i].first));
  }
  std::vector<uint32_t> places_of(order.size());
  for (const uint32_t tag : {2, 0, 1}) {
    for (uint32_t i = 0; i < order.size(); ++i) {
      if (order[i].first != tag) continue;
      places.emplace_back(order[i].second);
      places_of[i] = static_cast<uint32_t>(places.size() - 1);
      all.push_back(world.Receive(1, 0, places.back(), tag));
    }
  }
  for (auto& completion : all) REQUIRE(Done(completion));
  for (uint32_t i = 0; i < order.size(); ++i) CHECK(places[places_of[i]] == sent[i]);
}

TEST_CASE("point to point: tags that share a line are apart, and each comes in order") {
  PointWorld world(2, "shm");
  constexpr uint32_t kTags = 3, kEach = 20;
  std::vector<std::shared_ptr<Completion>> sends, receives;
  std::vector<Bytes> sent, places(kTags * kEach, Bytes(64));
  for (uint32_t i = 0; i < kTags * kEach; ++i) sent.push_back(Pattern(64, i));
  for (uint32_t i = 0; i < kTags * kEach; ++i) sends.push_back(world.Send(0, 1, sent[i], 5 + i % kTags * kPointLines));
  for (uint32_t tag = kTags; tag-- > 0;) {
    for (uint32_t n = 0; n < kEach; ++n) {
      receives.push_back(world.Receive(1, 0, places[n * kTags + tag], 5 + tag * kPointLines));
    }
  }
  for (const auto& each : sends) REQUIRE(Done(each));
  for (const auto& each : receives) REQUIRE(Done(each));
  CHECK(places == sent);
}

TEST_CASE("point to point: messages of different classes go different ways, and are matched in order all the same") {
  for (const std::string scheme : {"tcp", "chaos+tcp"}) {
    CAPTURE(scheme);
    PointWorld world(2, scheme, scheme.starts_with("chaos") ? "?seed=2&delay_ms=1&rate=50e6" : "", true);
    std::minstd_rand random(5);
    std::deque<Bytes> sent, places;
    std::vector<std::shared_ptr<Completion>> all;
    for (uint32_t i = 0; i < 200; ++i) {
      sent.push_back(Pattern(random() % 8 == 0 ? 200'000 : random() % 2000, i));
      const TrafficClass traffic = random() % 2 == 0 ? TrafficClass::kBulk : TrafficClass::kPointToPoint;
      all.push_back(world.Send(i % 4 == 0, i % 4 != 0, sent.back(), 0, 10, traffic));
    }
    for (uint32_t i = 0; i < 200; ++i) {
      places.emplace_back(sent[i].size());
      all.push_back(world.Receive(i % 4 != 0, i % 4 == 0, places.back()));
    }
    for (auto& completion : all) REQUIRE(Done(completion));
    for (uint32_t i = 0; i < 200; ++i) CHECK(places[i] == sent[i]);
  }
}

TEST_CASE("point to point: a second link is made for a message in a hurry, between hosts") {
  for (const bool apart : {true, false}) {
    CAPTURE(apart);
    PointWorld world(2, "tcp", "", apart);
    const Bytes bytes = Pattern(100, 1);
    Bytes place(100);
    const auto frames = [&] { return world.all[0]->counters().frames_sent + world.all[1]->counters().frames_sent; };
    CHECK(frames() == 0);
    for (const TrafficClass traffic : {TrafficClass::kBulk, TrafficClass::kPointToPoint, TrafficClass::kAllToAll}) {
      REQUIRE(Done(world.Send(0, 1, bytes, 0, 10, traffic)));
      REQUIRE(Done(world.Receive(1, 0, place)));
    }
    CHECK(frames() == 3 + (apart ? 2 : 1));  // and a welcome on each link
  }
}

TEST_CASE("point to point: who is in a hurry tells those from whom bulk comes, between hosts, and not each time") {
  for (const bool apart : {true, false}) {
    CAPTURE(apart);
    PointWorld world(3, "tcp", "", apart);
    const Bytes bytes = Pattern(100, 1);
    Bytes place(100);
    const auto frames_after = [&](uint32_t from, TrafficClass traffic) {
      REQUIRE(Done(world.Send(from, 1, bytes, 0, 10, traffic)));
      REQUIRE(Done(world.Receive(1, static_cast<int32_t>(from), place)));
      DoOn(world.all[1]->loop(), [] {});
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return world.all[1]->counters(0).frames_sent;
    };
    frames_after(0, TrafficClass::kPointToPoint);  // makes a link
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    const uint64_t before = frames_after(0, TrafficClass::kBulk);
    CHECK(frames_after(2, TrafficClass::kPointToPoint) == before);
    CHECK(frames_after(0, TrafficClass::kBulk) == before + (apart ? 1 : 0));
    CHECK(frames_after(0, TrafficClass::kBulk) == before + (apart ? 1 : 0));
  }
}

TEST_CASE("point to point: messages nobody wants stay within the limit of each way, and come to their receives") {
  PointWorld world(2, "tcp", "", true);
  std::deque<Bytes> sent;
  std::vector<std::shared_ptr<Completion>> sends;
  for (uint32_t i = 0; i < 100; ++i) {
    sent.push_back(Pattern(40'000, i));
    const TrafficClass traffic = i % 2 == 0 ? TrafficClass::kBulk : TrafficClass::kPointToPoint;
    sends.push_back(world.Send(0, 1, sent.back(), 0, 10, traffic));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(world.all[1]->counters(0).payload_received <= kWays * kEagerBytes);
  for (uint32_t i = 0; i < 100; ++i) {
    Bytes place(40'000);
    REQUIRE(Done(world.Receive(1, 0, place)));
    CHECK(place == sent[i]);
  }
  for (auto& send : sends) CHECK(Done(send));
}

TEST_CASE("point to point: from any source, in the order of arrival") {
  PointWorld world(3, "inproc");
  const Bytes one = Pattern(100, 1), two = Pattern(100, 2);
  Bytes first(100), second(100), third(100);
  auto posted = world.Receive(0, PointToPoint::kAnySource, first);
  CHECK(Done(world.Send(2, 0, two)));
  REQUIRE(Done(posted));
  CHECK(posted->source() == 2);
  CHECK(first == two);
  CHECK(Done(world.Send(1, 0, one)));
  CHECK(Done(world.Send(2, 0, two)));
  auto from_two = world.Receive(0, 2, second);
  auto any = world.Receive(0, PointToPoint::kAnySource, third);
  REQUIRE(Done(from_two));
  REQUIRE(Done(any));
  CHECK(any->source() == 1);
  CHECK(second == two);
  CHECK(third == one);
}

TEST_CASE("point to point: another length is a mismatch with both lengths, and the next message is fine") {
  for (const size_t size : {100, 1'000'000}) {
    CAPTURE(size);
    PointWorld world(2, "tcp");
    const Bytes sent = Pattern(size, 1);
    Bytes place(80);
    auto receive = world.Receive(1, 0, place);
    auto send = world.Send(0, 1, sent);
    REQUIRE(Done(receive, Code::kMismatch));
    for (const std::string& part : {std::to_string(size), std::string("80"), RankName(0), RankName(1)}) {
      CHECK(Names(receive, part));
    }
    REQUIRE(send->Wait(In(5)));
    // A short message had gone: its sender is told by the next.
    if (send->status().ok()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      send = world.Send(0, 1, sent);
    }
    REQUIRE(Done(send, Code::kMismatch));
    CHECK(Names(send, "expects 80"));
    Bytes right(size);
    receive = world.Receive(1, 0, right);
    send = world.Send(0, 1, sent);
    CHECK(Done(receive));
    CHECK(Done(send));
    CHECK(right == sent);
  }
}

TEST_CASE("point to point: a message that is refused without a reason is not sent") {
  for (const uint32_t number : {0u, 256u, 77u}) {
    Refuser refuser(number);
    auto sender = Communicator::Listen(OptionsFor({FreshUrl("inproc")}));
    REQUIRE(sender.ok());
    const std::vector<std::vector<std::string>> urls{(*sender)->urls(), refuser.mesh->urls()};
    (*sender)->SetWorld(WorldOf(0, urls));
    refuser.mesh->SetWorld(WorldOf(1, urls));
    PointOptions options;
    options.lane = 5;
    options.ranks = {0, 1};
    options.timeout = 10;
    const Bytes bytes = Pattern(4'000'000, 1);
    auto send = (*sender)->point_to_point().Send(std::move(options), 1, bytes.data(), bytes.size());
    CHECK(Done(send, Code::kCorrupt));
  }
}

TEST_CASE("point to point: deadlines say who is waited for, and messages go on after one") {
  PointWorld world(3, "shm");
  Bytes place(1'000'000);
  auto receive = world.Receive(1, 0, place, 7, 0.1);
  REQUIRE(Done(receive, Code::kTimeout));
  CHECK(Names(receive, RankName(0) + " has not sent a message of 1000000 bytes with tag 7 to " + RankName(1)));
  auto any = world.Receive(1, PointToPoint::kAnySource, place, 7, 0.1);
  REQUIRE(Done(any, Code::kTimeout));
  CHECK(Names(any, "none of " + RankName(0) + ", " + RankName(2)));
  const Bytes sent = Pattern(1'000'000, 1), again = Pattern(1'000'000, 2);
  auto send = world.Send(0, 1, sent, 7, 0.1);
  REQUIRE(Done(send, Code::kTimeout));
  CHECK(Names(send, RankName(1) + " has not received a message of 1000000 bytes with tag 7"));
  Bytes word(1);
  receive = world.Receive(1, 0, word, 8);  // behind the news that the message was given up
  REQUIRE(Done(world.Send(0, 1, Pattern(1, 3), 8)));
  REQUIRE(Done(receive));
  send = world.Send(0, 1, again, 7);
  receive = world.Receive(1, 0, place, 7);
  CHECK(Done(receive));
  CHECK(Done(send));
  CHECK(place == again);
}

TEST_CASE("point to point: when a lane is cancelled its messages end at both ends, and the next ones are fine") {
  for (const std::string scheme : {"shm", "tcp"}) {
    CAPTURE(scheme);
    PointWorld world(3, scheme);
    const Bytes large = Pattern(1'000'000, 1), again = Pattern(1'000'000, 2);
    Bytes place(large.size()), other(large.size());
    auto send = world.Send(0, 1, large);                              // that is not received
    auto posted = world.Receive(0, 2, place);                         // that nobody sends
    auto any = world.Receive(0, PointToPoint::kAnySource, other, 1);  // likewise
    world.all[0]->CancelLane(6, Status(Code::kInvalid, "another lane"));
    world.all[0]->CancelLane(5, Status(Code::kClosed, "the group has shrunk"));
    for (const auto& one : {send, posted, any}) {
      CHECK(Done(one, Code::kClosed));
      CHECK(Names(one, "the group has shrunk"));
    }
    Bytes word(1);
    auto behind = world.Receive(1, 0, word, 3);
    CHECK(Done(world.Send(0, 1, Pattern(1, 3), 3)));
    CHECK(Done(behind));
    auto next = world.Send(0, 1, again);
    CHECK(Done(world.Receive(1, 0, place)));
    CHECK(Done(next));
    CHECK(place == again);
  }
}

TEST_CASE("point to point: a dead peer is named at once, and so is closing") {
  for (const std::string scheme : {"shm", "tcp", "tcp apart"}) {
    PointWorld world(3, scheme.substr(0, 3), "", scheme.ends_with("apart"));
    Bytes place(10), other(10);
    const Bytes bytes = Pattern(10, 1);
    auto warm = world.Receive(0, 1, place);
    CHECK(Done(world.Send(1, 0, bytes)));
    CHECK(Done(warm));
    auto receive = world.Receive(0, 1, place);
    auto mine = world.Receive(1, 2, other);
    world.all[1].reset();  // says goodbye
    REQUIRE(Done(mine, Code::kClosed));
    REQUIRE(Done(receive, Code::kPeerLost));
    CHECK(Names(receive, RankName(1)));
    auto send = world.Send(0, 1, bytes);
    CHECK(Done(send, Code::kPeerLost));
    world.all[2]->Fail(Status(Code::kStalled, "the job has failed"));
    auto failed = world.Receive(2, 0, other);
    REQUIRE(Done(failed, Code::kStalled));
  }
}

TEST_CASE("point to point: who has closed lets nobody in") {
  PointWorld world(2, "tcp");
  const std::string url = world.all[0]->urls()[0];
  CHECK(Connect(url, In(5)).ok());
  world.all[0]->Close();
  CHECK_FALSE(Connect(url, In(5)).ok());
}

TEST_CASE("point to point: messages nobody wants stay within the limit") {
  PointWorld world(2, "inproc");
  std::deque<Bytes> sent;
  std::vector<std::shared_ptr<Completion>> sends;
  for (uint32_t i = 0; i < 100; ++i) {
    sent.push_back(Pattern(40'000, i));
    sends.push_back(world.Send(0, 1, sent.back()));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(world.all[1]->counters(0).payload_received <= kEagerBytes);
  for (uint32_t i = 0; i < 100; ++i) {
    Bytes place(40'000);
    REQUIRE(Done(world.Receive(1, 0, place)));
    CHECK(place == sent[i]);
  }
  for (auto& send : sends) CHECK(Done(send));
}

TEST_CASE("point to point: wrong arguments are the completion's status") {
  PointWorld world(2, "inproc");
  Bytes place(10);
  CHECK(Done(world.Send(0, 0, place), Code::kInvalid));
  CHECK(Done(world.Send(0, 2, place), Code::kInvalid));
  CHECK(Done(world.Receive(0, 0, place), Code::kInvalid));
  auto queue = std::make_shared<CompletionQueue>();
  auto receive = world.Receive(0, 1, place);
  receive->NotifyTo(queue, 42);
  world.Send(1, 0, place);
  CHECK(queue->Pop(In(5)) == 42);
}

TEST_CASE("point to point: bytes that were not due make no message whole") {
  for (const uint32_t mark : {kEagerMark, 0u}) {
    Victim victim;
    Bytes place(64);
    auto receive = victim.Receive(place);
    for (int twice = 0; twice < 2; ++twice) victim.Hear(FrameType::kData, 0, 32, 64, mark);
    CHECK(victim.Lost());
    CHECK(receive->Wait(In(10)));
    CHECK(!receive->status().ok());
    CHECK(Names(receive, "out of order"));
  }
}

TEST_CASE("point to point: nobody waits for the rest of what a lost peer had begun to send") {
  for (const bool announced : {true, false}) {
    Victim victim;
    if (announced) victim.Hear(FrameType::kLaunch, 64, 0, 64, 0);
    if (!announced) victim.Hear(FrameType::kData, 0, 32, 64, kEagerMark);
    victim.Hear(FrameType::kData, 1, 32, 64, kEagerMark);
    REQUIRE(victim.Lost());
    Bytes place(64);
    CHECK(Done(victim.Receive(place), Code::kPeerLost));
  }
}

}  // namespace byteps_like::testing
