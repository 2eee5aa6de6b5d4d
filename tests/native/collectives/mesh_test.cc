// Links between workers: made when needed, one per pair and way, and lost once.
#include <doctest/doctest.h>

#include <set>

#include "tests/native/collectives/mesh_fixture.h"

namespace byteps_like::testing {
namespace {

// Sends numbered frames of text to peers and records what comes and who is lost.
class Talker final : public MeshHandler {
 public:
  explicit Talker(const std::string& url, double connect_timeout = 5) {
    auto made = Mesh::Listen(OptionsFor({url}, connect_timeout), *this);
    if (!made.ok()) throw std::runtime_error(made.status().message());
    mesh = std::move(*made);
  }
  ~Talker() override { mesh.reset(); }  // before what its handler uses

  void Say(WayTo peer, uint64_t count) {
    // Not the owner's pointer: it is cleared before the loop has stopped.
    mesh->loop().Post([this, own = mesh.get(), peer, count] {
      to_send_[peer] += count;
      own->Kick(peer);
    });
  }
  // A frame that the peer refuses: it closes this link.
  void Offend(WayTo peer) {
    mesh->loop().Post([this, own = mesh.get(), peer] {
      offends_.insert(peer);
      own->Kick(peer);
    });
  }
  bool Wait(const std::function<bool()>& condition, double seconds = 10) {
    std::unique_lock lock(mutex);
    return changed.wait_until(lock, In(seconds), condition);
  }

  std::byte* PlaceFor(WayTo, const Header&) override { return nullptr; }
  void OnFrame(WayTo peer, const Header& header, std::byte*) override {
    std::lock_guard lock(mutex);
    in_order = in_order && header.key == heard[peer];
    ++heard[peer];
    changed.notify_all();
  }
  bool NextFrame(WayTo peer, Outgoing& next) override {
    if (offends_.erase(peer) != 0) {
      next.header.type = FrameType::kAbort;
      next.header.length = sizeof(offence_);
      next.payload = offence_;
      return true;
    }
    if (to_send_[peer] == 0) return false;
    --to_send_[peer];
    next.header.type = FrameType::kClear;
    next.header.key = said_[peer]++;
    return true;
  }
  void OnSent(WayTo, const Header&) override {}
  void OnPeerLost(uint32_t peer, const Status& why) override {
    std::lock_guard lock(mutex);
    lost[peer].push_back(why);
    changed.notify_all();
  }
  void OnRegion(uint32_t, uint32_t id, std::shared_ptr<SharedBuffer> buffer) override {
    std::lock_guard lock(mutex);
    regions[id] = std::move(buffer);
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::map<WayTo, uint64_t> heard;
  std::map<uint32_t, std::vector<Status>> lost;
  std::map<uint32_t, std::shared_ptr<SharedBuffer>> regions;
  bool in_order = true;
  std::unique_ptr<Mesh> mesh;

 private:
  std::map<WayTo, uint64_t> to_send_, said_;
  std::set<WayTo> offends_;
  std::byte offence_[8]{};
};

struct Talkers {
  Talkers(uint32_t size, const std::string& scheme, const std::string& query = "", double connect_timeout = 5) {
    for (uint32_t rank = 0; rank < size; ++rank) {
      all.push_back(std::make_unique<Talker>(FreshUrl(scheme, query), connect_timeout));
      urls.push_back(all.back()->mesh->urls());
    }
  }
  void Join(uint32_t rank, uint32_t epoch = 1) { all[rank]->mesh->SetWorld(WorldOf(rank, urls, epoch)); }
  Talker& operator[](uint32_t rank) { return *all[rank]; }
  std::vector<std::unique_ptr<Talker>> all;
  std::vector<std::vector<std::string>> urls;
};

const char* const kSchemes[] = {"inproc", "shm", "tcp"};

}  // namespace

TEST_CASE("mesh: everybody talks to everybody at once, one link a pair, nothing lost or twice") {
  constexpr uint32_t kSize = 4, kFrames = 50;
  for (const std::string scheme : {"inproc", "shm", "tcp", "chaos+tcp"}) {
    for (int round = 0; round < 5; ++round) {
      CAPTURE(scheme);
      Talkers talkers(kSize, scheme, scheme.starts_with("chaos") ? "?seed=3&delay_ms=1" : "");
      for (uint32_t rank = 0; rank < kSize; ++rank) talkers.Join(rank);
      for (uint32_t rank = 0; rank < kSize; ++rank) {
        for (uint32_t peer = 0; peer < kSize; ++peer) {
          if (peer != rank) talkers[rank].Say(peer, kFrames);
        }
      }
      for (uint32_t rank = 0; rank < kSize; ++rank) {
        for (uint32_t peer = 0; peer < kSize; ++peer) {
          if (peer == rank) continue;
          CAPTURE(rank);
          CAPTURE(peer);
          CHECK(talkers[rank].Wait([&] { return talkers[rank].heard[peer] == kFrames; }));
          const LinkCounters counters = talkers[rank].mesh->counters(peer);
          CHECK(counters.frames_received >= kFrames);
          CHECK(counters.frames_received <= kFrames + 1);  // and the other's welcome
        }
        CHECK(talkers[rank].mesh->links() ==
              std::map<std::string, uint32_t>{{scheme.substr(scheme.find('+') + 1), kSize - 1}});
        std::lock_guard lock(talkers[rank].mutex);
        CHECK(talkers[rank].in_order);
        CHECK(talkers[rank].lost.empty());
      }
    }
  }
}

TEST_CASE("mesh: both ways of all pairs at once, each in its own order, and counted together") {
  constexpr uint32_t kSize = 3, kFrames = 50;
  for (const std::string scheme : {"shm", "tcp", "chaos+tcp"}) {
    for (int round = 0; round < 5; ++round) {
      CAPTURE(scheme);
      Talkers talkers(kSize, scheme, scheme.starts_with("chaos") ? "?seed=3&delay_ms=1" : "");
      for (uint32_t rank = 0; rank < kSize; ++rank) talkers.Join(rank);
      for (const Way way : {Way::kUrgent, Way::kMain}) {
        for (uint32_t rank = 0; rank < kSize; ++rank) {
          for (uint32_t peer = 0; peer < kSize; ++peer) {
            if (peer != rank) talkers[rank].Say({peer, way}, kFrames);
          }
        }
      }
      for (uint32_t rank = 0; rank < kSize; ++rank) {
        for (uint32_t peer = 0; peer < kSize; ++peer) {
          if (peer == rank) continue;
          for (const Way way : {Way::kMain, Way::kUrgent}) {
            CHECK(talkers[rank].Wait([&] { return talkers[rank].heard[{peer, way}] == kFrames; }));
          }
          const LinkCounters counters = talkers[rank].mesh->counters(peer);
          CHECK(counters.frames_received >= 2 * kFrames);
          CHECK(counters.frames_received <= 2 * kFrames + 2);  // and a welcome on each
        }
        std::lock_guard lock(talkers[rank].mutex);
        CHECK(talkers[rank].in_order);
        CHECK(talkers[rank].lost.empty());
      }
    }
  }
}

TEST_CASE("mesh: whichever way breaks, the peer is lost, once, and both ways are closed") {
  for (const Way broken : {Way::kMain, Way::kUrgent}) {
    for (const bool both : {true, false}) {
      Talkers talkers(2, "tcp");
      for (uint32_t rank = 0; rank < 2; ++rank) talkers.Join(rank);
      for (const Way way : {Way::kMain, Way::kUrgent}) {
        if (!both && way != broken) continue;
        talkers[0].Say({1, way}, 1);
        CHECK(talkers[1].Wait([&] { return talkers[1].heard[{0, way}] == 1; }));
      }
      talkers[0].Offend({1, broken});
      for (uint32_t rank = 0; rank < 2; ++rank) {
        CHECK(talkers[rank].Wait([&] { return talkers[rank].lost[1 - rank].size() == 1; }));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      for (uint32_t rank = 0; rank < 2; ++rank) {
        for (const Way way : {Way::kMain, Way::kUrgent}) talkers[rank].Say({1 - rank, way}, 1);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      for (uint32_t rank = 0; rank < 2; ++rank) {
        std::lock_guard lock(talkers[rank].mutex);
        REQUIRE(talkers[rank].lost[1 - rank].size() == 1);
        CHECK(talkers[rank].lost[1 - rank][0].code() == Code::kPeerLost);
        for (const Way way : {Way::kMain, Way::kUrgent}) CHECK(talkers[rank].heard[{1 - rank, way}] <= 1);
      }
    }
  }
}

TEST_CASE("mesh: a peer has left when both ways have brought its goodbye, and all that was before") {
  constexpr uint32_t kFrames = 3000;  // longer on their way than the goodbye of the other
  Talkers talkers(2, "chaos+tcp", "?rate=1e6");
  for (uint32_t rank = 0; rank < 2; ++rank) talkers.Join(rank);
  talkers[0].Say({1, Way::kUrgent}, 1);
  CHECK(talkers[1].Wait([&] { return talkers[1].heard[{0, Way::kUrgent}] == 1; }));
  talkers[0].Say(1, kFrames);
  CHECK(talkers[1].Wait([&] { return talkers[1].heard[0] > 0; }));
  talkers[0].mesh->loop().Post([own = talkers[0].mesh.get()] { own->Goodbye([] {}); });
  CHECK(talkers[1].Wait([&] { return !talkers[1].lost[0].empty(); }));
  std::lock_guard lock(talkers[1].mutex);
  CHECK(talkers[1].heard[0] == kFrames);
  CHECK(talkers[1].lost[0].size() == 1);
  CHECK(talkers[1].lost[0][0].code() == Code::kClosed);
}

TEST_CASE("mesh: a peer that dials before we know of the world waits for it") {
  Talkers talkers(2, "tcp");
  talkers.Join(0);
  talkers[0].Say(1, 3);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  talkers.Join(1);
  CHECK(talkers[1].Wait([&] { return talkers[1].heard[0] == 3; }));
}

TEST_CASE("mesh: a peer that died is lost once and by name, a goodbye is told apart") {
  for (const std::string scheme : kSchemes) {
    CAPTURE(scheme);
    Talkers talkers(3, scheme);
    for (uint32_t rank = 0; rank < 3; ++rank) talkers.Join(rank);
    for (uint32_t peer : {1, 2}) {
      talkers[0].Say(peer, 1);
      CHECK(talkers[peer].Wait([&] { return talkers[peer].heard[0] == 1; }));
    }
    talkers[1].mesh.reset();
    std::mutex mutex;
    std::condition_variable changed;
    bool said = false;
    talkers[2].mesh->loop().Post([&] {
      talkers[2].mesh->Goodbye([&] {
        std::lock_guard lock(mutex);
        said = true;
        changed.notify_one();
      });
    });
    {
      std::unique_lock lock(mutex);
      CHECK(changed.wait_until(lock, In(5), [&] { return said; }));
    }
    CHECK(talkers[0].Wait([&] { return talkers[0].lost.size() == 2; }));
    std::lock_guard lock(talkers[0].mutex);
    REQUIRE(talkers[0].lost[1].size() == 1);
    CHECK(talkers[0].lost[1][0].code() == Code::kPeerLost);
    CHECK(talkers[0].lost[1][0].message().find("rank 1 (host x, pid 1) is gone: ") == 0);
    REQUIRE(talkers[0].lost[2].size() == 1);
    CHECK(talkers[0].lost[2][0].code() == Code::kClosed);
  }
}

TEST_CASE("mesh: a peer that can't be reached is lost, soon if nobody listens there") {
  for (const std::string scheme : kSchemes) {
    CAPTURE(scheme);
    Talkers talkers(2, scheme, "", 2);
    talkers[1].mesh.reset();
    talkers.Join(0);
    const auto begin = Clock::now();
    talkers[0].Say(1, 1);
    CHECK(talkers[0].Wait([&] { return talkers[0].lost[1].size() == 1; }));
    CHECK(Clock::now() - begin < std::chrono::seconds(1));
    CHECK(talkers[0].lost[1][0].message().find("rank 1 (host x, pid 1) is gone: can't be reached") == 0);
  }
}

TEST_CASE("mesh: another epoch is refused, and both learn why") {
  Talkers talkers(2, "shm");
  talkers.Join(0, 1);
  talkers.Join(1, 2);
  talkers[0].Say(1, 1);
  CHECK(talkers[0].Wait([&] { return talkers[0].lost[1].size() == 1; }));
  CHECK(talkers[0].lost[1][0].message().find("epoch 1") != std::string::npos);
}

TEST_CASE("mesh: corrupt bytes cost the peer, by name") {
  Talkers talkers(2, "chaos+tcp", "?seed=4&corrupt=0.05");
  for (uint32_t rank = 0; rank < 2; ++rank) talkers.Join(rank);
  for (int i = 0; i < 2000; ++i) talkers[0].Say(1, 10);
  const auto gone = [&](Talker& talker, uint32_t peer) {
    return talker.Wait([&] { return talker.lost[peer].size() == 1; });
  };
  CHECK(gone(talkers[0], 1));
  std::lock_guard lock(talkers[0].mutex);
  CHECK(talkers[0].lost[1][0].code() == Code::kPeerLost);
}

TEST_CASE("mesh: memory is passed to peers on this host") {
  for (const std::string scheme : {"inproc", "shm"}) {
    Talkers talkers(2, scheme);
    for (uint32_t rank = 0; rank < 2; ++rank) talkers.Join(rank);
    auto buffer = *SharedBuffer::Create(8192);
    talkers[0].mesh->loop().Post([&] { talkers[0].mesh->PassRegion(1, 7, buffer); });
    REQUIRE(talkers[1].Wait([&] { return talkers[1].regions.contains(7); }));
    buffer->data()[5000] = std::byte{42};
    std::lock_guard lock(talkers[1].mutex);
    CHECK(talkers[1].regions[7]->size() == 8192);
    CHECK(talkers[1].regions[7]->data()[5000] == std::byte{42});
    CHECK(talkers[0].mesh->SameHost(1));
  }
}

}  // namespace byteps_like::testing
