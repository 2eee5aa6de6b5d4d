// Which of two crossing connections is taken, and when none is, by what one end sees.
#include "collectives/mesh/rendezvous.h"

#include <doctest/doctest.h>

#include "tests/native/collectives/mesh_fixture.h"

namespace byteps_like::testing {
namespace {

class IdleStream final : public Stream {
 public:
  explicit IdleStream(bool* shut) : shut_(shut) {}
  Result<size_t> Read(std::byte*, size_t) override { return size_t{0}; }
  Result<size_t> Write(std::span<const iovec>) override { return size_t{0}; }
  std::vector<int> fds() const override { return {}; }
  void Shutdown() override { *shut_ = true; }
  std::string peer() const override { return "nobody"; }

 private:
  bool* const shut_;
};

// One end that makes no links of the streams it is to try. Nobody listens at the other's address.
class End final : public Rendezvous::Owner {
 public:
  End(uint32_t rank, uint32_t peer, double connect_timeout = 5)
      : options_(OptionsFor({}, connect_timeout)),
        world_(WorldOf(rank, {{"inproc://nobody-0"}, {"inproc://nobody-1"}})),
        context_{thread_.loop(), core_, options_, world_, dialers_, nullptr, nullptr},
        rendezvous_(context_, WayTo(peer), *this) {}
  ~End() { dialers_.Close(); }

  void Try(std::unique_ptr<Stream> stream) override { tried.push_back(std::move(stream)); }
  void Met() override { met = true; }
  void Missed(const Status& why) override { missed = why; }

  void Do(const std::function<void(Rendezvous&)>& task) {
    thread_.Do([&] { task(rendezvous_); });
  }
  // The peer dials us. True: its connection is shut at once.
  bool IsRefused() {
    bool shut = false;
    Do([&](Rendezvous& rendezvous) { rendezvous.Offer(std::make_unique<IdleStream>(&shut)); });
    return shut;
  }
  bool OwesWelcome() {
    Outgoing next;
    bool owes = false;
    Do([&](Rendezvous& rendezvous) { owes = rendezvous.NextWelcome(next); });
    if (owes) CHECK(next.header.type == FrameType::kCredit);
    return owes;
  }
  bool Wait(const std::function<bool()>& condition) {
    for (const Deadline end = In(10); Clock::now() < end; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      bool holds = false;
      Do([&](Rendezvous&) { holds = condition(); });
      if (holds) return true;
    }
    return false;
  }

  std::vector<std::unique_ptr<Stream>> tried;
  bool met = false;
  Status missed;

 private:
  const MeshOptions options_;
  const MeshWorld world_;
  ExchangeCore core_;
  MeshDialers dialers_;
  LoopThread thread_;
  const MeshContext context_;
  Rendezvous rendezvous_;
};

TEST_CASE("rendezvous: who has not dialed takes the peer's connection, and owes one welcome") {
  End end(0, 1);
  CHECK_FALSE(end.OwesWelcome());
  CHECK_FALSE(end.IsRefused());
  CHECK(end.met);
  CHECK(end.tried.size() == 1);
  CHECK(end.OwesWelcome());
  CHECK_FALSE(end.OwesWelcome());
  CHECK(end.IsRefused());
  CHECK(end.tried.size() == 1);
}

TEST_CASE("rendezvous: where both dial, the higher rank takes the lower's connection") {
  End higher(1, 0);
  higher.Do([](Rendezvous& rendezvous) { rendezvous.Begin(); });
  CHECK_FALSE(higher.IsRefused());
  CHECK(higher.met);
}

TEST_CASE("rendezvous: where both dial, the lower rank keeps the higher's connection until its own has failed") {
  End lower(0, 1, 0.2);
  lower.Do([&](Rendezvous& rendezvous) {
    static bool shut = false;
    rendezvous.Begin();
    rendezvous.Offer(std::make_unique<IdleStream>(&shut));
    CHECK_FALSE(lower.met);
    CHECK(lower.tried.empty());
  });
  CHECK(lower.Wait([&] { return lower.met; }));
  CHECK(lower.missed.ok());
  CHECK(lower.OwesWelcome());
}

TEST_CASE("rendezvous: who can't reach the peer, and is not reached, has missed it") {
  End end(0, 1, 0.05);
  end.Do([](Rendezvous& rendezvous) { rendezvous.Begin(); });
  CHECK(end.Wait([&] { return !end.missed.ok(); }));
  CHECK(end.missed.code() == Code::kPeerLost);
  CHECK_FALSE(end.met);
}

TEST_CASE("rendezvous: after its end, or the last try, nobody comes in") {
  for (const auto leave : {&Rendezvous::End, &Rendezvous::LastTry}) {
    for (const bool dials : {false, true}) {
      End end(1, 0);
      end.Do([&](Rendezvous& rendezvous) {
        if (dials) rendezvous.Begin();
        (rendezvous.*leave)();
        rendezvous.Begin();
      });
      CHECK(end.IsRefused());
      CHECK(end.tried.empty());
      CHECK_FALSE(end.met);
    }
  }
}

TEST_CASE("rendezvous: the welcome has to be that of the peer in this world") {
  End end(0, 1);
  const auto answer = [&](uint32_t epoch, uint32_t member, FrameType type) {
    Header header;
    header.type = type;
    header.view = epoch;
    header.member = member;
    Status status;
    end.Do([&](Rendezvous& rendezvous) { status = rendezvous.TakeWelcome(header); });
    return status.code();
  };
  CHECK(answer(2, NumberOf(1), FrameType::kCredit) == Code::kCorrupt);
  CHECK(answer(1, NumberOf(0), FrameType::kCredit) == Code::kCorrupt);
  CHECK(answer(1, NumberOf(1), FrameType::kData) == Code::kCorrupt);
  CHECK_FALSE(end.met);
  CHECK(answer(1, NumberOf(1), FrameType::kCredit) == Code::kOk);
  CHECK(end.met);
}

}  // namespace
}  // namespace byteps_like::testing
