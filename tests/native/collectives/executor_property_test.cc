// Random programs: transfers between random spans of random buffers, in one global order. Done one after the other they
// say what must come out; executors that keep only the dependencies of bytes must agree, however events interleave.
#include <random>

#include "tests/native/collectives/executor_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr uint32_t kChunks = 5;

struct RankMemory {  // of one rank: input, output, scratch; all with the same chunks
  std::vector<uint8_t> buffers[3];
};

class RandomPrograms {
 public:
  RandomPrograms(uint32_t n, uint32_t transfers, uint32_t seed) : n_(n), random_(seed) {
    std::vector<uint64_t> counts;
    for (uint32_t i = 0; i < kChunks; ++i) counts.push_back(Draw(4) == 0 ? 0 : Draw(150));
    chunks_ = Lay(counts, 1);
    for (const uint64_t count : counts) bytes_ += count;
    for (uint32_t rank = 0; rank < n; ++rank) {
      programs_.push_back({rank, n, kChunks, kChunks, kChunks, {}, {}});
      RankMemory memory;
      for (auto& buffer : memory.buffers) buffer.assign(bytes_ + 1, 0);
      for (auto& byte : memory.buffers[0]) byte = static_cast<uint8_t>(Draw(256));
      for (uint32_t c = 0; c < kChunks; ++c) {  // nothing is read that was never written
        programs_[rank].steps.push_back(CopyTo(Input(c), Output(c)));
        programs_[rank].steps.push_back(CopyTo(Input(c), Scratch(c)));
      }
      memory.buffers[1] = memory.buffers[2] = memory.buffers[0];
      start_.push_back(memory);
      expected_.push_back(std::move(memory));
    }
    for (uint32_t i = 0; i < transfers; ++i) Transfer(i);
  }

  void Run(uint32_t seed) {
    std::vector<RankMemory> memory = start_;
    FakeWorld world(n_, seed);
    Runs runs;
    for (uint32_t rank = 0; rank < n_; ++rank) {
      memory[rank].buffers[1].assign(bytes_ + 1, 7);
      RunOptions options;
      options.plan = PlanOf(programs_[rank], {chunks_, chunks_, chunks_});
      options.dtype = DType::kUInt8;
      options.input = reinterpret_cast<const std::byte*>(memory[rank].buffers[0].data());
      options.output = reinterpret_cast<std::byte*>(memory[rank].buffers[1].data());
      options.segment_bytes = 16u << (seed % 3);
      runs.push_back(world.at(rank).Launch(std::move(options)));
    }
    CheckAllOk(runs);
    for (uint32_t rank = 0; rank < n_; ++rank) {
      memory[rank].buffers[1][bytes_] = expected_[rank].buffers[1][bytes_];
      INFO("rank " << rank);
      CHECK(memory[rank].buffers[1] == expected_[rank].buffers[1]);
    }
  }

 private:
  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  std::vector<uint8_t> Read(uint32_t rank, const ChunkSpan& span) const {
    const auto& buffer = expected_[rank].buffers[static_cast<int>(span.buffer)];
    const auto [begin, end] = BoundsOf(span);
    return {buffer.begin() + begin, buffer.begin() + end};
  }
  void Write(uint32_t rank, const ChunkSpan& span, const std::vector<uint8_t>& bytes) {
    auto& buffer = expected_[rank].buffers[static_cast<int>(span.buffer)];
    std::copy(bytes.begin(), bytes.end(), buffer.begin() + BoundsOf(span).first);
  }
  std::pair<int64_t, int64_t> BoundsOf(const ChunkSpan& span) const {
    const Chunk& last = chunks_[span.first + span.count - 1];
    return {chunks_[span.first].offset, last.offset + static_cast<int64_t>(last.bytes)};
  }

  void Transfer(uint32_t tag) {
    const uint32_t first = Draw(kChunks), count = 1 + Draw(kChunks - first);
    const auto any = [&](uint32_t least) {
      return ChunkSpan{static_cast<BufferKind>(least + Draw(3 - least)), first, count};
    };
    const uint32_t from = Draw(n_), to = Draw(n_);
    const ChunkSpan source = any(0), target = any(1), own = Draw(2) ? target : any(0);
    const std::vector<uint8_t> came = Read(from, source);
    if (from == to) {
      programs_[to].steps.push_back(CopyTo(source, target));
      return Write(to, target, came);
    }
    programs_[from].steps.push_back(SendTo(to, tag, source));
    if (Draw(2) == 0) {
      programs_[to].steps.push_back(ReceiveFrom(from, tag, target));
      return Write(to, target, came);
    }
    programs_[to].steps.push_back(ReduceFrom(from, tag, own, target));
    std::vector<uint8_t> sum = Read(to, own);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<uint8_t>(sum[i] + came[i]);
    Write(to, target, sum);
  }

  const uint32_t n_;
  std::mt19937 random_;
  std::vector<Chunk> chunks_;
  uint64_t bytes_ = 0;
  std::vector<Program> programs_;
  std::vector<RankMemory> start_, expected_;
};

}  // namespace

TEST_CASE("executor: random programs do what their steps would do one after the other") {
  for (uint32_t seed = 0; seed < 150 / kSlow; ++seed) {
    INFO("seed " << seed);
    RandomPrograms programs(2 + seed % 4, 5 + seed % 40, seed);
    for (uint32_t order = 0; order < 3; ++order) programs.Run(seed * 3 + order);
  }
}

}  // namespace byteps_like::testing
