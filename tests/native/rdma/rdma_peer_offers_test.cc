// What a peer over rdma may make its other end remember is bounded, and answers to what it takes back come once.
#include <doctest/doctest.h>

#include "csrc/transport/rdma/peer_offers.h"

namespace byteps_like::testing {
namespace {

using rdma::kMostOffers;
using rdma::PlaceOffer;

PlaceOffer OfferOf(uint64_t key, uint32_t generation = 1) {
  PlaceOffer offer;
  offer.type = FrameType::kData;
  offer.generation = generation;
  offer.key = key;
  offer.address = 4096;
  offer.bytes = 64;
  return offer;
}

OfferId IdOf(uint64_t key) { return {FrameType::kData, key, 0}; }

}  // namespace

TEST_CASE("rdma peer offers: a peer that takes back and takes no answers is cut off") {
  rdma::PeerOffers offers("rdma peer");
  for (size_t i = 0; i < kMostOffers / 2; ++i) REQUIRE(offers.Withdraw(OfferOf(i)).ok());
  const size_t owed = offers.TakeAnswers().size();  // to a link that doesn't get rid of them
  CHECK(owed == kMostOffers / 2);
  const Status told = offers.Withdraw(OfferOf(0));
  CHECK(told.code() == Code::kCorrupt);
  CHECK(told.message() == "rdma peer: it withdraws more offers than it can have made");
  CHECK_FALSE(offers.owes());
}

TEST_CASE("rdma peer offers: a peer that takes its answers may take back as often as it likes") {
  rdma::PeerOffers offers("rdma peer");
  for (size_t i = 0; i < 2 * kMostOffers; ++i) {
    REQUIRE(offers.Take(OfferOf(7, static_cast<uint32_t>(i + 1))).ok());
    REQUIRE(offers.Withdraw(OfferOf(7, static_cast<uint32_t>(i + 1))).ok());
    CHECK(offers.Find(IdOf(7)) == nullptr);
    const auto answers = offers.TakeAnswers();
    REQUIRE(answers.size() == 1);
    CHECK((answers[0].kind == rdma::Kind::kWithdrawn && answers[0].place.generation == i + 1));
    offers.Answered();
  }
}

TEST_CASE("rdma peer offers: there are only so many, and an older one that is taken back leaves the newer") {
  rdma::PeerOffers offers("rdma peer");
  for (size_t i = 0; i < kMostOffers; ++i) REQUIRE(offers.Take(OfferOf(i, 5)).ok());
  CHECK(offers.Take(OfferOf(kMostOffers)).code() == Code::kCorrupt);
  CHECK(offers.Withdraw(OfferOf(3, 4)).ok());
  REQUIRE(offers.Find(IdOf(3)) != nullptr);
  CHECK(offers.Find(IdOf(3))->generation == 5);
  PlaceOffer over = OfferOf(3);
  over.bytes = 0;
  CHECK(offers.Take(over).ok());
  CHECK(offers.Find(IdOf(3)) == nullptr);
  CHECK(offers.Take(OfferOf(kMostOffers)).ok());
}

}  // namespace byteps_like::testing
