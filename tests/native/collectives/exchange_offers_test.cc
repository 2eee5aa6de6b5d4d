// Places that peers write to by themselves, from the exchange's side: what is offered, what is withdrawn when a call
// ends early, and that its memory is given back no sooner than nobody writes there.
#include <utility>
#include <vector>

#include "tests/native/collectives/linkless_mesh.h"
#include "tests/native/collectives/mesh_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr uint64_t kLong = 1u << 20;

// One link that takes offers, whose peer answers withdrawals when the test says so.
class OfferMesh final : public LinklessMesh {
 public:
  explicit OfferMesh(EventLoop& loop) : LinklessMesh(loop, WorldOf(0, {{}, {}, {}}, 1, true)) {}
  void Cut(uint32_t peer, const Status& why) override { cut.emplace_back(peer, why); }
  bool TakesOffers(WayTo) override { return true; }
  bool Offer(WayTo from, const Header& about, std::byte* place, uint64_t bytes) override {
    offered.push_back({from, OfferIdOf(about), place, bytes});
    return true;
  }
  bool Withdraw(WayTo from, const OfferId& what) override {
    if (from.peer == without_link) return false;
    withdrawn.emplace_back(from, what);
    return true;
  }

  struct Offered {
    WayTo from;
    OfferId what;
    std::byte* place;
    uint64_t bytes;
  };
  std::vector<Offered> offered;
  std::vector<std::pair<WayTo, OfferId>> withdrawn;
  std::vector<std::pair<uint32_t, Status>> cut;
  uint32_t without_link = ~0u;
};

struct Failing : Call {
  void OnSent(SendMessage&) override {}
  std::byte* PlaceFor(ReceiveMessage& message, uint64_t offset, uint32_t) override {
    return memory.data() + message.tag * kLong + offset;
  }
  void OnBytes(ReceiveMessage&, uint64_t, const std::byte*, uint32_t) override {}
  void OnFailed(const Status& why) override { failed.push_back(why); }
  Bytes memory = Bytes(2 * kLong);
  std::vector<Status> failed;
};

// A call of rank 0 that receives a long message from rank 1 (tag 0) and from rank 2 (tag 1). On the loop's thread.
struct OfferWorld {
  explicit OfferWorld(EventLoop& loop) : mesh(loop) {
    core.Attach(mesh);
    core.Prepare(mesh.world());
    call.id = {7, 3};
    call.ranks = {0, 1, 2};
    REQUIRE(core.Begin(call).ok());
    for (uint32_t tag = 0; tag < 2; ++tag) {
      messages[tag].peer = tag + 1;
      messages[tag].tag = tag;
      messages[tag].length = kLong;
      core.Post(call, messages[tag]);
      core.Offer(messages[tag], call.memory.data() + tag * kLong);
    }
  }
  // A frame from rank tag + 1.
  void Arrive(uint32_t tag, uint64_t offset, uint32_t length) {
    Header header;
    header.type = FrameType::kData;
    header.key = 7;
    header.round = 3;
    header.root = tag;
    header.offset = offset;
    header.length = length;
    header.aux = kLong;
    std::byte* const place = core.PlaceFor(tag + 1, header);
    CHECK(place == call.memory.data() + tag * kLong + offset);
    core.OnFrame(tag + 1, header, place);
  }
  OfferMesh mesh;
  ExchangeCore core;
  Failing call;
  ReceiveMessage messages[2];
};

const Status kWhy(Code::kTimeout, "enough");

void OnLoop(const std::function<void(OfferWorld&)>& test) {
  LoopThread thread;
  std::unique_ptr<OfferWorld> world;
  thread.Do([&] {
    world = std::make_unique<OfferWorld>(thread.loop());
    test(*world);
  });
  thread.Do([&] { world->core.gate()->Close(); });
}

}  // namespace

TEST_CASE("exchange offers: places are offered by lane, call and tag; an end in order takes nothing back") {
  OnLoop([](OfferWorld& world) {
    REQUIRE(world.mesh.offered.size() == 2);
    CHECK(world.mesh.offered[1].from == WayTo(2));
    CHECK(world.mesh.offered[1].what == OfferId{FrameType::kData, 7, (uint64_t{3} << 32) | 1});
    CHECK(world.mesh.offered[1].place == world.call.memory.data() + kLong);
    CHECK(world.mesh.offered[1].bytes == kLong);
    CHECK(world.core.TakesOffers(1, 64u << 10));
    CHECK_FALSE(world.core.TakesOffers(1, (64u << 10) - 1));
    for (uint32_t tag = 0; tag < 2; ++tag) {
      world.Arrive(tag, 0, kLong / 2);
      world.Arrive(tag, kLong / 2, kLong / 2);
    }
    world.core.End(world.call);
    CHECK(world.mesh.withdrawn.empty());
  });
}

TEST_CASE("exchange offers: a call that is given up has its memory when all peers have answered") {
  OnLoop([](OfferWorld& world) {
    world.Arrive(0, 0, kLong / 2);
    CHECK_FALSE(world.core.Abort(world.call, kWhy));
    CHECK_FALSE(world.core.Abort(world.call, kWhy));  // it is known
    REQUIRE(world.mesh.withdrawn.size() == 2);
    world.core.OnWithdrawn(1, world.mesh.offered[0].what);
    world.core.OnWithdrawn(1, world.mesh.offered[0].what);
    CHECK(world.call.failed.empty());
    world.core.OnWithdrawn(2, world.mesh.offered[1].what);
    REQUIRE(world.call.failed.size() == 1);
    CHECK(world.call.failed[0].message() == "enough");
    CHECK(world.mesh.cut.empty());
  });
}

TEST_CASE("exchange offers: what has come whole is not withdrawn") {
  OnLoop([](OfferWorld& world) {
    world.Arrive(1, 0, kLong);
    CHECK_FALSE(world.core.Abort(world.call, kWhy));
    REQUIRE(world.mesh.withdrawn.size() == 1);
    CHECK(world.mesh.withdrawn[0].first == WayTo(1));
    world.core.OnWithdrawn(1, world.mesh.offered[0].what);
    CHECK(world.call.failed.size() == 1);
  });
}

TEST_CASE("exchange offers: by a link that is closed nobody writes any more") {
  OnLoop([](OfferWorld& world) {
    CHECK_FALSE(world.core.Abort(world.call, kWhy));
    world.core.OnLinkGone(1);
    world.core.OnLinkGone({2, Way::kUrgent});  // nothing was offered that way
    CHECK(world.call.failed.empty());
    world.core.OnLinkGone(2);
    REQUIRE(world.call.failed.size() == 1);
    CHECK(world.call.failed[0].message() == "enough");
  });
}

TEST_CASE("exchange offers: a call that fails by a lost peer waits for the others") {
  LoopThread thread;
  std::unique_ptr<OfferWorld> world;
  thread.Do([&] {
    world = std::make_unique<OfferWorld>(thread.loop());
    world->mesh.without_link = 1;
    world->core.OnPeerLost(1, Status(Code::kPeerLost, "gone"));
  });
  thread.Do([] {});
  thread.Do([&] {
    CHECK(world->call.failed.empty());
    REQUIRE(world->mesh.withdrawn.size() == 1);
    world->core.OnWithdrawn(2, world->mesh.offered[1].what);
    REQUIRE(world->call.failed.size() == 1);
    CHECK(world->call.failed[0].message() == "gone");
    world->core.gate()->Close();
  });
}

TEST_CASE("exchange offers: a link whose peer does not answer is cut, at once if nobody can wait") {
  LoopThread thread;
  std::unique_ptr<OfferWorld> patient, hasty;
  const Deadline began = Clock::now();
  thread.Do([&] {
    patient = std::make_unique<OfferWorld>(thread.loop());
    hasty = std::make_unique<OfferWorld>(thread.loop());
    for (OfferWorld* world : {patient.get(), hasty.get()}) CHECK_FALSE(world->core.Abort(world->call, kWhy));
    hasty->core.Sever(hasty->call);
    CHECK(hasty->mesh.cut.size() == 2);
    patient->core.OnWithdrawn(2, patient->mesh.offered[1].what);
    CHECK(patient->mesh.cut.empty());
  });
  bool over = false;
  while (!over && Clock::now() < began + std::chrono::seconds(5)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    thread.Do([&] { over = !patient->call.failed.empty(); });
  }
  CHECK(Clock::now() > began + std::chrono::milliseconds(1900));
  thread.Do([&] {
    REQUIRE(patient->call.failed.size() == 1);
    REQUIRE(patient->mesh.cut.size() == 1);
    CHECK(patient->mesh.cut[0].first == 1);
    CHECK(patient->mesh.cut[0].second.message().find("not said in time") != std::string::npos);
    CHECK(hasty->call.failed.empty());
    for (OfferWorld* world : {patient.get(), hasty.get()}) world->core.gate()->Close();
  });
}

}  // namespace byteps_like::testing
