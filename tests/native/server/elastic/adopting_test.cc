// Which ranks hear what of a key whose server is gone, by the word of all.
#include <doctest/doctest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/adopting/adoptions.h"

namespace byteps_like {
namespace {

constexpr uint64_t kKey = 7;

struct Told {
  uint32_t rank;
  Header header;
  std::string payload;
};

class Host final : public AdoptionHost {
 public:
  void Answer(uint32_t rank, Header header, std::string payload) override {
    told.push_back({rank, header, std::move(payload)});
  }
  void Refuse(uint32_t, const std::string& what) override { refused = what; }
  void FailAdoption(uint64_t, const Status& why) override { failure = why; }
  bool IsHere(uint32_t rank) const override { return !gone.contains(rank); }

  std::vector<Told> Take() { return std::exchange(told, {}); }

  std::vector<Told> told;
  std::set<uint32_t> gone;
  Status failure;
  std::string refused;
};

struct World {
  explicit World(uint32_t ranks) { adoptions.Reset(ranks); }

  void Adopt(uint32_t rank, uint32_t next, uint32_t aux) {
    adoptions.OnAdopt(rank, {.type = FrameType::kAdopt, .key = kKey, .round = next, .aux = aux});
  }
  void Go(uint32_t rank) {
    host.gone.insert(rank);
    adoptions.OnGone(rank);
  }
  void TakeFrom(uint32_t rank, uint32_t round, uint64_t offset) {
    adoptions.OnTake(rank, {.type = FrameType::kTake, .key = kKey, .round = round, .offset = offset});
  }
  void Give(uint32_t rank, uint32_t to, uint32_t round, uint64_t offset, const std::string& bytes, uint32_t total) {
    Header header{.type = FrameType::kGive, .key = kKey, .round = round, .offset = offset};
    header.length = static_cast<uint32_t>(bytes.size());
    header.total = total;
    header.root = to;
    adoptions.OnGive(rank, header, reinterpret_cast<const std::byte*>(bytes.data()));
  }

  Host host;
  Adoptions adoptions{host};
};

void CheckAdopted(const std::vector<Told>& told, std::vector<std::pair<uint32_t, uint32_t>> rounds, uint32_t how) {
  REQUIRE(told.size() == rounds.size());
  for (size_t i = 0; i < told.size(); ++i) {
    CHECK(told[i].header.type == FrameType::kAdopted);
    CHECK(told[i].rank == rounds[i].first);
    CHECK(told[i].header.round == rounds[i].second);
    CHECK(told[i].header.aux == how);
  }
}

}  // namespace

TEST_CASE("adopting: nobody goes on before all that are there have said how far they have come") {
  World world(3);
  CHECK(world.adoptions.FirstRound(kKey) == 0);
  world.Adopt(0, 5, kHoldsResult);
  world.Adopt(2, 5, kHoldsResult);
  CHECK(world.host.told.empty());
  CHECK(!world.adoptions.FirstRound(kKey));
  SUBCASE("by the word of the last") { world.Adopt(1, 5, 0); }
  SUBCASE("or when that has died") { world.Go(1); }
  CHECK(world.adoptions.FirstRound(kKey) == 5);
  const size_t here = 3 - world.host.gone.size();
  CHECK(world.host.told.size() == here);
  for (const Told& one : world.host.told) {
    CHECK(one.header.round == 5);
    CHECK(one.header.aux == kIsSummed);
  }
  CHECK(world.adoptions.Begun(kKey, 5).empty());
}

TEST_CASE("adopting: rounds go on where their numbers wrap") {
  World world(2);
  world.Adopt(0, 0, kHoldsResult);
  world.Adopt(1, 0xFFFFFFFF, 0);
  CHECK(world.adoptions.FirstRound(kKey) == 0);
  CHECK(world.host.told[0].header.aux == kIsSummed);
  CHECK(world.host.told[1].header.aux == kIsTaken);
  CHECK(world.host.told[1].header.round == 0xFFFFFFFF);
}

TEST_CASE("adopting: word that is given again is answered again") {
  World world(2);
  world.Adopt(0, 1, 0);
  world.Adopt(0, 1, kWaits);
  CHECK(world.host.told.empty());
  world.Adopt(1, 1, 0);
  world.host.Take();
  world.Adopt(0, 1, kWaits);
  CheckAdopted(world.host.Take(), {{0, 1}}, kIsSummed);
}

TEST_CASE("adopting: a result goes from a rank that has it to those that lack it, in pieces, each once") {
  World world(3);
  world.Adopt(0, 4, 0);
  world.Adopt(1, 5, kHoldsResult);
  world.Adopt(2, 5, kHoldsResult);
  const auto told = world.host.Take();
  CHECK(told[0].header.aux == kIsTaken);
  CHECK(told[1].header.aux == kIsSummed);
  world.TakeFrom(0, 4, 0);
  const auto asked = world.host.Take();
  REQUIRE(asked.size() == 1);
  CHECK(asked[0].rank == 1);
  CHECK(asked[0].header.root == 0);
  world.Give(1, 0, 4, 0, "abcd", 8);
  world.Give(1, 0, 4, 0, "abcd", 8);
  world.Give(2, 0, 4, 4, "efgh", 8);
  auto given = world.host.Take();
  REQUIRE(given.size() == 1);
  CHECK(given[0].rank == 0);
  CHECK(given[0].payload == "abcd");
  SUBCASE("the rest from the same") { world.Give(1, 0, 4, 4, "efgh", 8); }
  SUBCASE("the rest once more, by another link of the giver") {
    world.adoptions.OnBack(1);
    const auto again = world.host.Take();
    REQUIRE(again.size() == 1);
    CHECK(again[0].header.offset == 4);
    world.Give(1, 0, 4, 4, "efgh", 8);
  }
  SUBCASE("the rest from another, when the giver dies") {
    world.Go(1);
    const auto again = world.host.Take();
    REQUIRE(again.size() == 1);
    CHECK(again[0].rank == 2);
    CHECK(again[0].header.offset == 4);
    world.Give(2, 0, 4, 4, "efgh", 8);
  }
  given = world.host.Take();
  REQUIRE(given.size() == 1);
  CHECK(given[0].payload == "efgh");
  world.Give(1, 0, 4, 4, "efgh", 8);
  CHECK(world.host.told.empty());
}

TEST_CASE("adopting: of a longer segment than was expected, the rest goes on") {
  World world(2);
  world.Adopt(0, 4, 0);
  world.Adopt(1, 5, kHoldsResult);
  world.host.Take();
  world.TakeFrom(0, 4, 2);
  world.host.Take();
  world.Give(1, 0, 4, 0, "abcdefgh", 8);
  const auto given = world.host.Take();
  REQUIRE(given.size() == 1);
  CHECK(given[0].header.offset == 2);
  CHECK(given[0].payload == "cdefgh");
}

TEST_CASE("adopting: who wants what it has, or is to sum, is refused") {
  World world(2);
  world.Adopt(0, 5, 0);
  world.Adopt(1, 5, kHoldsResult);
  world.TakeFrom(0, 5, 0);
  CHECK(world.host.refused == "it wants a result that it is to sum, or has");
}

TEST_CASE("adopting: an absent rank takes only word that the round is over") {
  World world(2);
  world.Adopt(0, 4, 0);
  world.Adopt(1, 5, kHoldsResult);
  world.host.Take();
  world.TakeFrom(0, 4, kMaxPartition);
  world.host.Take();
  world.Give(1, 0, 4, 8, "", 8);
  const auto given = world.host.Take();
  REQUIRE(given.size() == 1);
  CHECK(given[0].header.offset == 8);
  CHECK(given[0].payload.empty());
}

TEST_CASE("adopting: a result that nobody has is summed anew, and those beyond it wait until it has begun") {
  World world(3);
  world.Adopt(0, 4, 0);
  world.Adopt(1, 5, kBroughtNothing);
  world.Adopt(2, 4, 0);
  CheckAdopted(world.host.Take(), {{0, 4}, {2, 4}}, kIsSummed);
  CHECK(world.adoptions.FirstRound(kKey) == 4);
  SUBCASE("it begins") {
    CHECK(world.adoptions.Begun(kKey, 4) == std::vector<uint32_t>{1});
    CheckAdopted(world.host.Take(), {{1, 5}}, kIsSummed);
    CHECK(world.adoptions.Begun(kKey, 5).empty());
    world.Adopt(2, 4, kWaits);  // over another link
    CheckAdopted(world.host.Take(), {{2, 4}}, kIsSummed);
  }
  SUBCASE("those that were to bring it die") {
    world.Go(0);
    world.host.Take();
    world.Go(2);
    CheckAdopted(world.host.Take(), {{1, 5}}, kIsSummed);
    CHECK(world.adoptions.FirstRound(kKey) == 5);
  }
}

TEST_CASE("adopting: a result that is lost with all that had it ends the job, and so do ranks that are far apart") {
  World world(2);
  SUBCASE("lost") {
    world.Adopt(0, 4, 0);
    world.Adopt(1, 5, kHoldsResult);
    world.TakeFrom(0, 4, 0);
    world.Go(1);
    CHECK(world.host.failure.code() == Code::kPeerLost);
  }
  SUBCASE("lost by a rank that brought something") {
    world.Adopt(0, 4, 0);
    world.Adopt(1, 5, 0);
    CHECK(world.host.failure.code() == Code::kPeerLost);
  }
  SUBCASE("apart") {
    world.Adopt(0, 4, 0);
    world.Adopt(1, 6, kHoldsResult);
    CHECK(world.host.failure.code() == Code::kMismatch);
  }
}

TEST_CASE("adopting: who waits for whom is told, if anybody does") {
  World world(3);
  world.Adopt(0, 4, 0);
  CHECK(!world.adoptions.LongestWait());
  world.Adopt(0, 4, kWaits);
  const auto wait = world.adoptions.LongestWait();
  REQUIRE(wait);
  CHECK(wait->waiting == std::vector<uint32_t>{0});
  CHECK(wait->text.find("waiting for rank 1, 2 to say how far it has come") == 0);
}

}  // namespace byteps_like
