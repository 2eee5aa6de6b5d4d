// Offers of receives over rdma: written where the call wants them, taken back in the middle, and nothing lands in
// memory that its owner has back.
#include <algorithm>

#include "tests/native/collectives/executor_fixture.h"
#include "tests/native/rdma/rdma_cable_fixture.h"
#include "tests/native/rdma/rdma_fixture.h"
#include "tests/native/transport/links/link_world.h"

namespace byteps_like::testing {
namespace {

// A frame of the message (lane 1, call `call`, tag 5) of kTotal bytes.
Message Part(uint32_t call, uint64_t offset, uint32_t bytes) {
  Message message;
  message.header.type = FrameType::kData;
  message.header.key = 1;
  message.header.round = call;
  message.header.root = 5;
  message.header.offset = offset;
  message.header.length = bytes;
  return message;
}

bool OfferCall(RdmaPair& pair, uint32_t call) {
  bool offered = false;
  pair.server_thread.Do([&] { offered = pair.server.link().Offer(Part(call, 0, 0).header, pair.to.data(), kTotal); });
  return offered;
}

// Until the client knows all that the server has told it.
void Settle(RdmaPair& pair) {
  const size_t frames = pair.client.received.size() + 1;
  pair.server.Send(Push(9, {}));
  REQUIRE(pair.client.WaitFrames(frames));
}

bool Untouched(const Memory& memory) {
  const auto bytes = memory.bytes();
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0x5A}; });
}

}  // namespace

TEST_CASE("rdma offers: of a message, the offer ends with its last byte, however that came") {
  if (NoRdma()) return;
  RdmaPair pair(FreshUrl("rdma"));
  const Bytes pattern = Pattern(kTotal, 1);
  std::copy(pattern.begin(), pattern.end(), pair.from.data());
  uint64_t placed = 0;
  for (uint32_t call = 0; call < 3; ++call) {
    std::fill_n(pair.to.data(), kTotal, std::byte{0});
    if (call == 1) {  // in time for the second half only
      pair.client.Send(Part(call, 0, kTotal / 2));
      REQUIRE(pair.server.WaitFrames(2 * call + 1));
    }
    REQUIRE(OfferCall(pair, call));
    Settle(pair);
    if (call != 1) pair.client.Send(Part(call, 0, kTotal / 2));
    pair.client.Send(Part(call, kTotal / 2, kTotal / 2));
    REQUIRE(pair.server.WaitFrames(2 * call + 2));
    CHECK(std::equal(pattern.begin(), pattern.end(), pair.to.data()));
    placed += call == 1 ? kTotal / 2 : kTotal;
    CHECK(pair.server.link().counters().payload_placed == placed);
    bool known = true;
    pair.server_thread.Do([&] { known = pair.server.link().Withdraw(OfferIdOf(Part(call, 0, 0).header)); });
    CHECK_FALSE(known);  // it has ended
  }
  CHECK(pair.server.link().counters().offers_sent == 3);
  // The offer comes after the whole message has left: both ends forget it.
  pair.client.Send(Part(9, 3u << 20, 1u << 20));
  REQUIRE(OfferCall(pair, 9));
  REQUIRE(pair.server.WaitFrames(7));
  Settle(pair);
  placed = pair.server.link().counters().payload_placed;
  pair.client.Send(Part(9, 0, 1u << 20));  // nobody sends a message twice: this shows that there is no offer
  REQUIRE(pair.server.WaitFrames(8));
  CHECK(pair.server.link().counters().payload_placed == placed);
}

TEST_CASE("rdma offers: taken back in the middle of a message, the memory is ours when the peer has answered") {
  if (NoRdma()) return;
  for (const char* query : {"", "?qps=3"}) {
    RdmaPair pair(FreshUrl("rdma", query));
    pair.server.anywhere = true;
    const OfferId what = OfferIdOf(Part(1, 0, 0).header);
    CHECK_FALSE(pair.server.link().Withdraw(what));
    REQUIRE(OfferCall(pair, 1));
    Settle(pair);
    for (uint32_t part = 0; part < 4; ++part) pair.client.Send(Part(1, uint64_t{part} << 20, 1u << 20));
    REQUIRE(pair.server.WaitFrames(1));
    pair.server_thread.Do([&] {
      CHECK(pair.server.link().Withdraw(what));
      CHECK(pair.server.link().Withdraw(what));  // once more: it is on its way
    });
    REQUIRE(pair.server.WaitWithdrawn(1));
    std::fill_n(pair.to.data(), kTotal, std::byte{0x5A});
    for (uint32_t part = 0; part < 4; ++part) pair.client.Send(Part(1, uint64_t{part} << 20, 1u << 20));
    REQUIRE(pair.server.WaitFrames(8));
    CHECK(Untouched(pair.to));
    CHECK(pair.server.withdrawn == std::vector<OfferId>{what});
    CHECK_FALSE(pair.server.link().Withdraw(what));
  }
}

TEST_CASE("rdma offers: of a peer that is stopped no answer comes; once the link is closed nothing lands") {
  if (NoRdma()) return;
  RdmaPair pair(FreshUrl("rdma"));
  REQUIRE(OfferCall(pair, 1));
  Settle(pair);
  for (uint32_t part = 0; part < 4; ++part) pair.client.Send(Part(1, uint64_t{part} << 20, 1u << 20));
  REQUIRE(pair.server.WaitFrames(1));
  pair.server_thread.Do([&] {
    CHECK(pair.server.link().Withdraw(OfferIdOf(Part(1, 0, 0).header)));
    pair.server.link().Close(Status(Code::kPeerLost, "no answer"));
    std::fill_n(pair.to.data(), kTotal, std::byte{0x5A});
  });
  REQUIRE(pair.client.WaitClosed());
  REQUIRE(pair.server.WaitClosed());
  CHECK(Untouched(pair.to));
  CHECK(pair.server.withdrawn.empty());
}

// Collectives ---------------------------------------------------------------------------------------------------------

namespace {

constexpr uint32_t kRanks = 3;
constexpr uint64_t kFloats = 3u << 18;  // 1 MiB a chunk

using Make = Program (*)(uint32_t rank, uint32_t n);

// The second half of RingAllReduce: of n chunks each rank begins with its own.
Program RingAllGather(uint32_t rank, uint32_t n) {
  Program program{rank, n, n, n, 0, {}, {}};
  for (uint32_t s = 0; s + 1 < n; ++s) {
    program.steps.push_back(SendTo((rank + 1) % n, s, Output((rank + n - s) % n)));
    program.steps.push_back(ReceiveFrom((rank + n - 1) % n, s, Output((rank + 2 * n - s - 1) % n)));
  }
  return program;
}

// An all-reduce in place in registered memory, of which each rank's sum is known.
struct InPlace {
  InPlace() {
    for (uint32_t rank = 0; rank < kRanks; ++rank) memory.push_back(std::make_unique<Memory>(kFloats * sizeof(float)));
  }
  float* of(uint32_t rank) { return reinterpret_cast<float*>(memory[rank]->data()); }
  void Fill() {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      for (uint64_t i = 0; i < kFloats; ++i) of(rank)[i] = static_cast<float>(i % 1000 + rank);
    }
  }
  bool Right(uint32_t rank, Make make) {
    for (uint64_t i = 0; i < kFloats; ++i) {
      const uint64_t sum = make == RingAllReduce ? 3 * (i % 1000) + 3 : i % 1000 + i / (kFloats / kRanks);
      if (of(rank)[i] != static_cast<float>(sum)) return false;
    }
    return true;
  }
  RunOptions OptionsOf(uint32_t rank, uint32_t call, Make make = RingAllReduce) {
    const auto chunks = Lay(Cut(kFloats, kRanks), sizeof(float));
    RunOptions options;
    options.id = {1, call};
    options.description = "in place";
    options.plan = PlanOf(make(rank, kRanks), {chunks, chunks, {}}, 0);
    options.dtype = DType::kFloat32;
    options.output = memory[rank]->data();
    options.timeout = 30;
    return options;
  }
  std::vector<std::unique_ptr<Memory>> memory;
};

void RunAll(LinkWorld& world, InPlace& all, uint32_t call, Make make) {
  Runs runs;
  for (uint32_t rank = 0; rank < kRanks; ++rank) runs.push_back(world.at(rank).Launch(all.OptionsOf(rank, call, make)));
  CheckAllOk(runs, 60);
}

}  // namespace

TEST_CASE("rdma offers: of an all-gather every byte is written straight to its place") {
  if (NoRdma()) return;
  LinkWorld world(kRanks, "rdma");
  InPlace all;
  all.Fill();
  RunAll(world, all, 0, RingAllGather);  // makes the links
  const auto placed = [&](uint32_t rank) { return world.counters(rank, (rank + kRanks - 1) % kRanks).payload_placed; };
  std::vector<uint64_t> before;
  for (uint32_t rank = 0; rank < kRanks; ++rank) before.push_back(placed(rank));
  all.Fill();
  RunAll(world, all, 1, RingAllGather);
  const uint64_t chunk = kFloats / kRanks;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    CHECK(placed(rank) - before[rank] == (kRanks - 1) * chunk * sizeof(float));
    CHECK(all.Right(rank, RingAllGather));
  }
}

TEST_CASE("rdma offers: what an all-reduce gathers is written straight to its place") {
  if (NoRdma()) return;
  LinkWorld world(kRanks, "rdma");
  InPlace all;
  for (uint32_t call = 0; call < 3; ++call) {
    all.Fill();
    RunAll(world, all, call, RingAllReduce);
    for (uint32_t rank = 0; rank < kRanks; ++rank) CHECK(all.Right(rank, RingAllReduce));
  }
  uint64_t received = 0, placed = 0;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    const LinkCounters counters = world.counters(rank, (rank + 2) % kRanks);
    received += counters.payload_received;
    placed += counters.payload_placed;
  }
  // Half of all is gathered. The first call makes the links; and a place is offered once what was sent from there has
  // been acknowledged, before which the first segments may be back.
  CHECK_MESSAGE(placed * 10 >= received, placed, " of ", received);
}

TEST_CASE("rdma offers: a collective that is given up in the middle leaves memory alone once it is over") {
  if (NoRdma()) return;
  LinkWorld world(kRanks, "rdma");
  InPlace all;
  for (uint32_t call = 0; call < 5; ++call) {
    const Make make = call % 2 == 0 ? RingAllReduce : RingAllGather;
    all.Fill();
    Runs runs;
    for (uint32_t rank = 0; rank < kRanks; ++rank)
      runs.push_back(world.at(rank).Launch(all.OptionsOf(rank, call, make)));
    std::this_thread::sleep_for(std::chrono::milliseconds(12 * call));
    if (call > 0) world.at(call % kRanks).Cancel(runs[call % kRanks], Status(Code::kTimeout, "enough"));
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      REQUIRE(runs[rank]->Wait(In(30)));
      if (!runs[rank]->status().ok()) std::fill_n(all.memory[rank]->data(), kFloats * sizeof(float), std::byte{0x5A});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const bool right = runs[rank]->status().ok() ? all.Right(rank, make) : Untouched(*all.memory[rank]);
      CHECK_MESSAGE(right, "call ", call, ", rank ", rank);
    }
  }
}

TEST_CASE("rdma offers: a rank that dies in the middle of an all-reduce writes into nobody's memory afterwards") {
  if (NoRdma()) return;
  LinkWorld world(kRanks, "rdma");
  InPlace all;
  for (uint32_t call = 0; call < 2; ++call) {
    all.Fill();
    Runs runs;
    for (uint32_t rank = 0; rank < kRanks; ++rank) runs.push_back(world.at(rank).Launch(all.OptionsOf(rank, call)));
    if (call == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      world.Lose(2);
    }
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      REQUIRE(runs[rank]->Wait(In(30)));
      if (!runs[rank]->status().ok()) std::fill_n(all.memory[rank]->data(), kFloats * sizeof(float), std::byte{0x5A});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      CHECK((runs[rank]->status().ok() ? all.Right(rank, RingAllReduce) : Untouched(*all.memory[rank])));
    }
  }
}

}  // namespace byteps_like::testing
