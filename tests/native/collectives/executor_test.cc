// Programs over a fake exchange whose interleavings are drawn from a seed: any of them must give the same bits.
#include "tests/native/collectives/executor_fixture.h"

namespace byteps_like::testing {

TEST_CASE("executor: ring all-reduce of every type and operation, whatever comes first") {
  uint32_t seed = 0;
  for (uint32_t n = 1; n <= 8; ++n) {
    for (const bool in_place : {false, true}) {
      for (const Op op : {Op::kSum, Op::kAverage, Op::kMin, Op::kMax, Op::kProduct}) {
        INFO("n " << n << " in place " << in_place << " op " << static_cast<int>(op) << " seed " << ++seed);
        Shape shape{RingAllReduce, Cut(997, n), op, in_place, 64};
        CheckReduces<float>(n, seed, shape);
        shape.segment = 1000;  // becomes 992
        CheckReduces<int64_t>(n, seed, shape);
        if (n % 3 != 0) continue;
        CheckReduces<double>(n, seed, shape);
        CheckReduces<int32_t>(n, seed, shape);
        CheckReduces<uint8_t>(n, seed, shape);
      }
    }
  }
}

TEST_CASE("executor: what is sent must have left before it is reduced into, and spans are forwarded while they come") {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    for (const uint32_t n : {1u, 2u, 4u, 8u}) {
      INFO("n " << n << " seed " << seed);
      CheckReduces<float>(n, seed, {DoublingAllReduce, {401}, Op::kAverage, seed % 2 == 0, 128});
      std::vector<uint64_t> uneven;
      for (uint32_t i = 0; i < n; ++i) uneven.push_back((i * 37 + seed) % 5 == 0 ? 0 : i * 20 + 3);
      uneven[0] = 5;
      CheckReduces<int32_t>(n, seed, {HalvingAllReduce, uneven, Op::kSum, seed % 2 == 0, 64});
    }
  }
}

TEST_CASE("executor: chunks that are uneven, empty, or all empty") {
  for (uint32_t seed = 0; seed < 5; ++seed) {
    CheckReduces<float>(4, seed, {RingAllReduce, {100, 0, 3, 57}, Op::kSum, false, 64});
    CheckReduces<float>(4, seed, {RingAllReduce, {1, 0, 0, 0}, Op::kAverage, true, 64});
    FakeWorld world(3, seed);
    Reduction<float> none(3, {RingAllReduce, {0, 0, 0}, Op::kSum, true, 64});
    CheckAllOk(LaunchAll(world, 3, none));
  }
}

TEST_CASE("executor: any interleaving gives the same bits") {
  std::vector<float> first;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    FakeWorld world(4, seed);
    Reduction<float> reduction(4, {RingAllReduce, Cut(999, 4), Op::kSum, true, seed % 2 ? 64u : 4096u});
    for (uint32_t rank = 0; rank < 4; ++rank) {  // sums that depend on the order of their terms
      for (size_t i = 0; i < 999; ++i) reduction.input(rank)[i] = 1.0f / static_cast<float>(rank * 999 + i + 3);
    }
    CheckAllOk(LaunchAll(world, 4, reduction));
    if (first.empty()) first = reduction.output(0);
    for (uint32_t rank = 0; rank < 4; ++rank) CHECK(reduction.output(rank) == first);
  }
}

// Of two NaNs an extreme keeps the first; which of them a sum keeps is up to the compiler.
TEST_CASE("executor: both sides of an exchange have the same bits, of zeros of either sign and NaNs as well") {
  constexpr uint32_t kBits[] = {0, 0x80000000, 0x80000000, 0x3F800000, 0x7FC00001, 0xFFC00002, 0x7FC00003, 0x7FC00000};
  for (const uint32_t n : {2u, 4u, 8u}) {
    for (const Op op : {Op::kSum, Op::kAverage, Op::kMin, Op::kMax, Op::kProduct}) {
      const bool in_place = n == 4;
      INFO("n " << n << " op " << static_cast<int>(op));
      FakeWorld world(n, n);
      Reduction<float> reduction(n, {DoublingAllReduce, {50}, op, in_place, 64});
      const size_t kinds = op == Op::kMin || op == Op::kMax ? 8 : 4;
      for (uint32_t rank = 0; rank < n; ++rank) {
        for (size_t i = 0; i < 50; ++i) {
          std::memcpy(&reduction.input(rank)[i], &kBits[(rank * 3 + i + i / 8) % kinds], sizeof(float));
        }
      }
      CheckAllOk(LaunchAll(world, n, reduction));
      for (uint32_t rank = 1; rank < n; ++rank) {
        CHECK(std::memcmp(reduction.output(rank).data(), reduction.output(0).data(), 50 * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("executor: broadcast along a chain, through scratch that is forwarded while it comes") {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{5000}, uint64_t{700'000}}) {
    FakeWorld world(4, 3);
    std::vector<Bytes> buffers;
    for (uint32_t rank = 0; rank < 4; ++rank) buffers.push_back(Pattern(bytes, rank));
    const std::vector<Chunk> chunk = Lay({bytes}, 1);
    Runs runs;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      RunOptions options;
      options.description = "broadcast";
      options.plan = PlanOf(ChainBroadcast(rank, 4), {chunk, chunk, chunk}, 0);
      options.output = buffers[rank].data();
      options.segment_bytes = 16384;
      runs.push_back(world.at(rank).Launch(std::move(options)));
    }
    CheckAllOk(runs);
    for (uint32_t rank = 1; rank < 4; ++rank) CHECK(buffers[rank] == buffers[0]);
  }
}

TEST_CASE("executor: all-to-all with chunks anywhere in memory") {
  constexpr uint32_t n = 5;
  FakeWorld world(n, 11);
  const auto bytes_of = [](uint32_t from, uint32_t to) { return uint64_t{(from * 31 + to * 17) % 90}; };
  std::vector<std::vector<Bytes>> sent(n), got(n);
  Runs runs;
  for (uint32_t rank = 0; rank < n; ++rank) {
    ChunkTables chunks;
    for (uint32_t peer = 0; peer < n; ++peer) {
      sent[rank].push_back(Pattern(bytes_of(rank, peer), rank * n + peer + 1));
      got[rank].emplace_back(bytes_of(peer, rank));
    }
    for (uint32_t peer = 0; peer < n; ++peer) {  // relative to the first that there is
      chunks.input.push_back({sent[rank][peer].data() - sent[rank][1].data(), bytes_of(rank, peer)});
      chunks.output.push_back({got[rank][peer].data() - got[rank][1].data(), bytes_of(peer, rank)});
    }
    RunOptions options;
    options.plan = PlanOf(AllToAll(rank, n), chunks);
    options.input = sent[rank][1].data();
    options.output = got[rank][1].data();
    runs.push_back(world.at(rank).Launch(std::move(options)));
  }
  CheckAllOk(runs);
  for (uint32_t rank = 0; rank < n; ++rank) {
    for (uint32_t peer = 0; peer < n; ++peer) CHECK(got[rank][peer] == sent[peer][rank]);
  }
}

TEST_CASE("executor: a barrier of empty messages ends only when all have begun it") {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    constexpr uint32_t n = 6;
    FakeWorld world(n, seed);
    Runs runs(n);
    const auto launch = [&](uint32_t rank) {
      RunOptions options;
      options.description = "barrier";
      options.plan = PlanOf(Barrier(rank, n), {{}, {{0, 0}}, {}});
      runs[rank] = world.at(rank).Launch(std::move(options));
    };
    const uint32_t late = seed % n;
    for (uint32_t rank = 0; rank < n; ++rank) {
      if (rank != late) launch(rank);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (uint32_t rank = 0; rank < n; ++rank) {
      if (rank != late) CHECK_FALSE(runs[rank]->done());
    }
    launch(late);
    CheckAllOk(runs);
  }
}

TEST_CASE("executor: runs on several lanes, launched in another order on each rank") {
  constexpr uint32_t n = 3, lanes = 6, calls = 3;
  for (uint32_t seed = 0; seed < 5; ++seed) {
    FakeWorld world(n, seed);
    std::vector<std::unique_ptr<Reduction<float>>> reductions;
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      for (uint32_t call = 0; call < calls; ++call) {
        Shape shape{RingAllReduce, Cut(100 + lane * 31 + call, n), Op::kSum, lane % 2 == 0, 64};
        shape.id = {lane, call};
        reductions.push_back(std::make_unique<Reduction<float>>(n, shape));
      }
    }
    Runs runs;
    for (uint32_t rank = 0; rank < n; ++rank) {
      std::vector<uint32_t> order(reductions.size());
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), std::mt19937(seed * n + rank));
      for (const uint32_t which : order) runs.push_back(world.at(rank).Launch(reductions[which]->OptionsOf(rank)));
    }
    CheckAllOk(runs);
    for (const auto& reduction : reductions) reduction->Check();
  }
}

TEST_CASE("executor: bytes and messages of a ring are those of its formula") {
  constexpr uint32_t n = 4, count = 1000;
  FakeWorld world(n, 5);
  Reduction<float> reduction(n, {RingAllReduce, Cut(count, n), Op::kSum, true, 256});
  CheckAllOk(LaunchAll(world, n, reduction));
  for (uint32_t from = 0; from < n; ++from) {
    for (uint32_t to = 0; to < n; ++to) {
      const bool next = to == (from + 1) % n;
      CHECK(world.net().bytes(from, to) == (next ? 2 * (n - 1) * count * 4 / n : 0));
      CHECK(world.net().messages(from, to) == (next ? 2 * (n - 1) : 0));
    }
  }
}

TEST_CASE("executor: big copies go in slices, and dependants follow them") {
  FakeWorld world(1, 0);
  const size_t bytes = (size_t{3} << 20) + 5;
  const Bytes input = Pattern(bytes, 1);
  Bytes output(bytes);
  const std::vector<Chunk> chunk = Lay({bytes}, 1);
  RunOptions options;
  options.plan =
      PlanOf({0, 1, 1, 1, 1, {CopyTo(Input(0), Scratch(0)), CopyTo(Scratch(0), Output(0))}, {}}, {chunk, chunk, chunk});
  options.input = input.data();
  options.output = output.data();
  CheckAllOk({world.at(0).Launch(options)});
  CHECK(output == input);
}

}  // namespace byteps_like::testing
