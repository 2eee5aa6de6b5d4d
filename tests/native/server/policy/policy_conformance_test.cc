// What every policy must keep, over all rows of the table and those of the tests: a contribution counts once, results
// are the reference's, nobody reads too early, nobody is waited for in vain, and memory comes back. First rounds by
// themselves, in thousands of orders of arrival; then keys of a server with links that break.
#include <doctest/doctest.h>

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "tests/native/server/policy/policy_examples.h"

namespace byteps_like::testing {
namespace {

constexpr uint32_t kWorld = PolicyExample::kWorld;

const PolicyRow* RowNamed(const std::string& name) {
  for (const auto table : {Policies(), std::span<const PolicyRow>(kToys)})
    for (const PolicyRow& row : table)
      if (row.name == name) return &row;
  return nullptr;
}

// The table with the row alone, if it is a toy's: it opens any rounds.
std::span<const PolicyRow> TableOf(const PolicyExample& example) {
  for (const PolicyRow& toy : kToys)
    if (toy.name == example.name) return {&toy, 1};
  return Policies();
}

ServerCodec CodecNamed(const std::string& text) {
  ServerCodec codec;
  codec.text = text;
  codec.two_way = text.starts_with("twoway ");
  codec.codec = CodecFor(codec.two_way ? text.substr(7) : text, kWorld);
  const std::string& spec = codec.codec->spec();
  codec.crc = kernels::Crc32c(0, spec.data(), spec.size());
  return codec;
}

// Rounds of one key without a server: segments of any length come in any order, come again, and are cut off half-way;
// what may be read is read at once, as a link would, and must not change later.
class Schedule {
 public:
  Schedule(const PolicyExample& example, uint32_t seed)
      : example_(example), row_(*RowNamed(example.name)), random_(seed) {
    if (!example.codec.empty()) codec_ = CodecNamed(example.codec);
    if (row_.update != nullptr) update_ = row_.update(memory_);
    round_ = row_.combine->make(kKey, memory_);
  }

  void Run() {
    for (number_ = 0; number_ < PolicyExample::kRounds; ++number_) RunRound();
    round_.reset();
    update_.reset();
    memory_.Trim();
    CHECK(held_ == 0);
  }

 private:
  struct Rank {
    Payload contribution, read, scratch;
    bool begun = false;
    uint32_t counted = 0;
    std::optional<Header> landing;  // a segment on its way
    std::byte* place = nullptr;     // nullptr: in scratch
    NoLink link;
  };

  void RunRound() {
    std::vector<Rank> ranks(kWorld);
    ranks_ = &ranks;
    order_.clear();
    for (uint32_t rank = 0; rank < kWorld; ++rank) ranks[rank].contribution = example_.contribution(rank, number_);
    Begin(random_() % kWorld);
    for (size_t steps = 0; !IsOver(); ++steps) {
      REQUIRE(steps < 10000);  // else some rank waits in vain
      Step(random_() % kWorld);
      auto more = round_->Advance();
      REQUIRE_MESSAGE(more.ok(), more.status().message());
      for (uint32_t rank = 0; rank < kWorld; ++rank) Read(rank);
    }
    const Payload expected = example_.result(order_, number_);
    for (Rank& rank : ranks) CHECK(rank.read == expected);
    round_->Release();
  }

  void Begin(uint32_t rank) {
    const Header first = Named(rank);
    const Terms terms = TermsOf(first, example_.codec.empty() ? nullptr : &codec_);
    REQUIRE(row_.opens(terms));
    round_->Begin(first, terms, {row_, update_.get()}, seats_);
  }

  void Step(uint32_t rank) {
    Rank& one = (*ranks_)[rank];
    if (!example_.Brings(rank)) return Subscribe(rank);
    if (one.landing) return random_() % 10 == 0 ? CutOff(one) : Land(rank);
    if (one.counted == one.contribution.size() && random_() % 4 != 0) return;
    Start(rank);
  }

  void Subscribe(uint32_t rank) {
    (*ranks_)[rank].begun = true;
    round_->Note(Named(rank));
    round_->Subscribe(rank);
  }

  // The next segment, or one that has come before, in part or whole.
  void Start(uint32_t rank) {
    Rank& one = (*ranks_)[rank];
    const uint32_t unit = example_.codec.empty() ? sizeof(int32_t) : 1;
    const auto total = static_cast<uint32_t>(one.contribution.size());
    Header header = Named(rank);
    const bool again = one.counted == total || (one.counted > 0 && random_() % 5 == 0);
    header.offset = again ? random_() % one.counted / unit * unit : one.counted;
    header.length = std::min<uint32_t>(total - static_cast<uint32_t>(header.offset), unit * (1 + random_() % 4000));
    round_->Note(header);
    REQUIRE(round_->Reserve(header).ok());
    one.landing = header;
    one.place = round_->Place(one.link, header);
  }

  void CutOff(Rank& one) {
    round_->Abandon(one.link);
    one.landing.reset();
  }

  void Land(uint32_t rank) {
    Rank& one = (*ranks_)[rank];
    const Header header = *std::exchange(one.landing, std::nullopt);
    if (Link* const other = round_->InTheWay(one.link, header)) Redirect(*other);
    const auto from = one.contribution.begin() + static_cast<ptrdiff_t>(header.offset);
    one.scratch.assign(from, from + header.length);
    if (one.place != nullptr) std::memcpy(one.place, one.scratch.data(), header.length);
    const Status landed = round_->Land(one.link, header, one.place != nullptr ? one.place : one.scratch.data());
    REQUIRE_MESSAGE(landed.ok(), landed.message());
    one.begun = true;
    const bool was_whole = one.counted == one.contribution.size();
    one.counted = std::max(one.counted, static_cast<uint32_t>(header.offset) + header.length);
    if (!was_whole && one.counted == one.contribution.size()) order_.push_back(rank);
    CHECK(round_->of(rank).counted == one.counted);
  }

  void Redirect(const Link& link) {
    for (Rank& one : *ranks_)
      if (&one.link == &link) one.place = nullptr;
    round_->Abandon(link);
  }

  void Read(uint32_t rank) {
    Rank& one = (*ranks_)[rank];
    if (!one.begun) return;
    const uint32_t readable = round_->Readable(rank);
    REQUIRE(readable <= MayRead(one));
    REQUIRE(readable >= one.read.size());
    one.read.insert(one.read.end(), round_->result() + one.read.size(), round_->result() + readable);
  }

  uint32_t MayRead(const Rank& own) const {
    constexpr uint32_t kAll = ~0u;
    uint32_t begun = 0, whole = 0, common = kAll;
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      const Rank& one = (*ranks_)[rank];
      begun += one.begun;
      whole += one.begun && one.counted == one.contribution.size();
      if (example_.Brings(rank)) common = std::min(common, one.counted);
    }
    switch (example_.reads) {
      case Reads::kStreamed:
        return begun == kWorld ? common : 0;
      case Reads::kBegun:
        return begun == kWorld ? kAll : 0;
      case Reads::kWhole:
        return whole == kWorld ? kAll : 0;
      case Reads::kFirstOwn2:
        return whole >= 2 && own.counted == own.contribution.size() ? kAll : 0;
    }
    return 0;
  }

  bool IsOver() const {
    for (const Rank& one : *ranks_)
      if (!one.begun || one.counted < one.contribution.size() || one.read.size() < round_->total()) return false;
    return round_->finished();
  }

  Header Named(uint32_t rank) const { return example_.Push(rank, kKey, number_); }

  const PolicyExample& example_;
  const PolicyRow& row_;
  std::mt19937 random_;
  const Seats seats_{kWorld};
  std::atomic<uint64_t> held_{0};
  ShardMemory memory_{"a test", 0, held_};
  ServerCodec codec_;
  std::unique_ptr<Update> update_;
  std::unique_ptr<Round> round_;
  uint32_t number_ = 0;
  std::vector<Rank>* ranks_ = nullptr;
  Ranks order_;
};

// A worker of a server whose keys have the policy.
class PolicyRank {
 public:
  PolicyRank(const PolicyExample& example, TestServer& server, uint32_t rank)
      : example_(example), server_(server), rank_(rank), link_(Connect()) {}

  // Bytes [begin, end) of what it brings; returns when the server has dealt with them.
  void Push(uint32_t round, size_t begin = 0, size_t end = ~size_t{0}) {
    const Payload whole = example_.contribution(rank_, round);
    Header header = example_.Push(rank_, kKey, round);
    end = std::min(end, whole.size());
    header.offset = begin;
    header.length = static_cast<uint32_t>(end - begin);
    const auto from = whole.begin();
    Send(header, Payload(from + static_cast<ptrdiff_t>(begin), from + static_cast<ptrdiff_t>(end)));
  }
  void BeAbsent(uint32_t round) {
    Header header = example_.Push(rank_, kKey, round);
    header.flags = kAbsent;
    header.length = 0;
    Send(header, {});
  }
  // All of it, in memory that is shared for this, where the result goes.
  std::shared_ptr<SharedBuffer> Share(uint32_t round) {
    Header header = example_.Push(rank_, kKey, round);
    auto memory = *SharedBuffer::Create(header.total);
    const Payload own = example_.contribution(rank_, round);
    std::copy(own.begin(), own.end(), memory->data());
    header.flags = kByReference;
    header.length = 0;
    header.aux = round;
    link_.Share(rank_, round, *memory);
    const uint64_t before = server_.stats().frames_received;
    link_.Send(header);
    REQUIRE(server_.HasReceived(before + 1));
    return memory;
  }
  void Say(FrameType type) {
    Header header = example_.Push(rank_, kKey, 0);
    header = {.type = type, .view = header.view, .member = header.member, .key = header.key};
    if (type == FrameType::kGoodbye) header.key = 0;
    Send(header, {});
  }
  // Over a new link: how much of the contribution has been counted.
  uint64_t ComeBack(uint32_t round, size_t landed) {
    link_ = Connect();
    Header header = example_.Push(rank_, kKey, round);
    header.type = FrameType::kResume;
    header.length = 0;
    header.offset = landed;
    Send(header, {});
    const auto answer = link_.Receive();
    REQUIRE(answer.has_value());
    CHECK(answer->header.type == FrameType::kResumed);
    return answer->header.offset;
  }
  Payload Pull(uint32_t round, Payload landed = {}) {
    for (bool more = true; more;) {
      const auto message = link_.Receive();
      REQUIRE(message.has_value());
      const Header& header = message->header;
      REQUIRE(header.type == FrameType::kResult);
      CHECK(header.round == round);
      CHECK(header.offset == landed.size());
      landed.insert(landed.end(), message->payload.begin(), message->payload.end());
      more = landed.size() < header.total;
    }
    return landed;
  }
  RawLink& link() { return link_; }

 private:
  RawLink Connect() {
    RawLink link = server_.Connect(rank_);
    if (!example_.codec.empty()) {
      const uint64_t before = server_.stats().frames_received;
      link.Send(CodecHeader(rank_, 3, example_.codec), BytesOf(example_.codec));
      REQUIRE(server_.HasReceived(before + 1));
    }
    return link;
  }
  // One link after the other: so the order of arrival is known.
  void Send(const Header& header, const Payload& payload) {
    const uint64_t before = server_.stats().frames_received;
    link_.Send(header, payload);
    REQUIRE(server_.HasReceived(before + 1));
  }

  const PolicyExample& example_;
  TestServer& server_;
  const uint32_t rank_;
  RawLink link_;
};

struct Job {
  explicit Job(const PolicyExample& example) : server(kWorld, 0, {}, "shm", TableOf(example)) {
    for (uint32_t rank = 0; rank < kWorld; ++rank) ranks.emplace_back(example, server, rank);
  }
  TestServer server;
  std::deque<PolicyRank> ranks;
};

template <typename Body>
void ForEachPolicy(Body body) {
  for (const PolicyExample& example : PolicyExamples()) {
    CAPTURE(example.name);
    body(example);
  }
}

const Ranks kInOrder = {0, 1, 2, 3};

// Which order the ranks push in: another one each round.
Ranks OrderOf(uint32_t round) {
  Ranks order = kInOrder;
  std::rotate(order.begin(), order.begin() + round % kWorld, order.end());
  return order;
}

}  // namespace

TEST_CASE("policies: every row has a name of its own and an example") {
  std::set<std::string> names, examples;
  for (const PolicyExample& example : PolicyExamples()) {
    CHECK_MESSAGE(RowNamed(example.name) != nullptr, example.name, " is an example of no row");
    CHECK(examples.insert(example.name).second);
  }
  for (const PolicyRow& row : Policies()) {
    CHECK_MESSAGE(examples.contains(row.name), row.name, " has no example: add one to policy_examples.h");
    CHECK(names.insert(row.name).second);
  }
  for (const PolicyRow& toy : kToys) CHECK(examples.contains(toy.name));
}

TEST_CASE("policies: what combines contributions while they come needs all ranks") {
  for (const auto table : {Policies(), std::span<const PolicyRow>(kToys)})
    for (const PolicyRow& row : table) {
      CAPTURE(row.name);
      for (const uint32_t world : {1u, 2u, 3u, 7u, 64u}) {
        CHECK(row.quorum->Least(world) >= 1);
        CHECK(row.quorum->Least(world) <= world);
        if (row.combine->streams) CHECK(row.quorum->Least(world) == world);
      }
    }
}

TEST_CASE("policies: a row for each kind of rounds that workers can ask for, and such rounds for each row") {
  std::deque<ServerCodec> codecs;
  for (const char* text : {"onebit:block=64", "twoway onebit:block=64", "coo"}) codecs.push_back(CodecNamed(text));
  std::vector<Terms> all;
  for (uint32_t op = 0; op <= static_cast<uint32_t>(Op::kBxor); ++op) all.push_back({.op = static_cast<Op>(op)});
  for (const ServerCodec& codec : codecs)
    for (const Op op : {Op::kSum, Op::kAverage}) all.push_back({.op = op, .codec = &codec});
  std::set<const PolicyRow*> found;
  for (const Terms& terms : all) found.insert(FindPolicy(Policies(), terms));
  CHECK(!found.contains(nullptr));
  for (const PolicyRow& row : Policies()) CHECK_MESSAGE(found.contains(&row), row.name, " opens no rounds");
}

TEST_CASE("policies: in any order of arrival each contribution counts once, and nobody reads too early") {
  for (uint32_t seed = 0; seed < 100; ++seed)
    for (const PolicyExample& example : PolicyExamples()) {
      CAPTURE(example.name);
      CAPTURE(seed);
      Schedule(example, seed).Run();
    }
}

TEST_CASE("policies: a server gives every rank the reference's result, round after round, then the memory back") {
  ForEachPolicy([](const PolicyExample& example) {
    Job job(example);
    for (uint32_t round = 0; round < PolicyExample::kRounds; ++round) {
      for (const uint32_t rank : OrderOf(round)) job.ranks[rank].Push(round);
      const Payload expected = example.result(OrderOf(round), round);
      for (PolicyRank& rank : job.ranks) CHECK(rank.Pull(round) == expected);
    }
    CHECK(job.server.stats().open_rounds == 0);
    for (PolicyRank& rank : job.ranks) rank.Say(FrameType::kForget);
    CHECK(Becomes(job.server.stats().keys, 0));
    CHECK(Becomes(job.server.stats().memory, 0));
    CHECK(job.server.failures == 0);
  });
}

TEST_CASE("policies: what is pushed again is not counted again, in this round or a later one") {
  ForEachPolicy([](const PolicyExample& example) {
    Job job(example);
    for (uint32_t round = 0; round < 2; ++round) {
      for (const uint32_t rank : kInOrder)
        for (int turn = 0; turn < 2; ++turn) job.ranks[rank].Push(round);
      const Payload expected = example.result(kInOrder, round);
      for (PolicyRank& rank : job.ranks) CHECK(rank.Pull(round) == expected);
    }
    CHECK(job.server.failures == 0);
  });
}

TEST_CASE("policies: over links that break in a contribution and in a result, all counts once") {
  ForEachPolicy([](const PolicyExample& example) {
    Job job(example);
    for (uint32_t round = 0; round < 2; ++round) {
      for (const uint32_t rank : kInOrder) {
        const size_t half = example.contribution(rank, round).size() / 8 * 4;
        job.ranks[rank].Push(round, 0, half);
        const uint64_t counted = job.ranks[rank].ComeBack(round, 0);
        CHECK(counted >= half);
        if (counted < example.Push(rank, kKey, round).total) job.ranks[rank].Push(round, counted);
      }
      const Payload expected = example.result(kInOrder, round);
      for (PolicyRank& rank : job.ranks) {
        CHECK(rank.Pull(round) == expected);
        const size_t had = expected.size() / 8 * 4;
        rank.ComeBack(round, had);
        CHECK(rank.Pull(round, Payload(expected.begin(), expected.begin() + static_cast<ptrdiff_t>(had))) == expected);
      }
    }
    CHECK(job.server.failures == 0);
  });
}

TEST_CASE("policies: a rank that is absent brings nothing, and hears when the round is over") {
  ForEachPolicy([](const PolicyExample& example) {
    if (!example.may_be_absent) return;
    Job job(example);
    for (uint32_t round = 0; round < 2; ++round) {
      job.ranks[0].BeAbsent(round);
      for (const uint32_t rank : {1u, 2u, 3u}) job.ranks[rank].Push(round);
      const Payload expected = example.result({1, 2, 3}, round);
      for (const uint32_t rank : {1u, 2u, 3u}) CHECK(job.ranks[rank].Pull(round) == expected);
      const auto over = job.ranks[0].link().Receive();
      REQUIRE(over.has_value());
      CHECK(over->header.flags == kAbsent);
      CHECK(over->header.length == 0);
    }
    CHECK(job.server.failures == 0);
  });
}

TEST_CASE("policies: contributions in shared memory count like any others, and results are written there") {
  for (const uint32_t shared : {1u, 2u, kWorld})
    ForEachPolicy([&](const PolicyExample& example) {
      if (!example.may_be_shared) return;
      Job job(example);
      for (uint32_t round = 0; round < 3; ++round) {
        std::vector<std::shared_ptr<SharedBuffer>> memories;
        for (const uint32_t rank : kInOrder) {
          if (rank >= shared) job.ranks[rank].Push(round);
          if (rank < shared) memories.push_back(job.ranks[rank].Share(round));
        }
        const Payload expected = example.result(kInOrder, round);
        for (uint32_t rank = shared; rank < kWorld; ++rank) CHECK(job.ranks[rank].Pull(round) == expected);
        for (uint32_t rank = 0; rank < shared; ++rank) {
          const auto done = job.ranks[rank].link().Receive();
          REQUIRE(done.has_value());
          CHECK(done->header.flags == kByReference);
          CHECK(std::equal(expected.begin(), expected.end(), memories[rank]->data()));
        }
      }
      CHECK(job.server.failures == 0);
    });
}

TEST_CASE("policies: a rank that leaves is named to those who need it, and forgotten by others") {
  ForEachPolicy([](const PolicyExample& example) {
    Job job(example);
    job.ranks[3].Say(FrameType::kGoodbye);
    for (const uint32_t rank : {0u, 1u, 2u}) job.ranks[rank].Push(0);
    if (example.without_the_last) {
      const Payload expected = example.result({0, 1, 2}, 0);
      for (const uint32_t rank : {0u, 1u, 2u}) CHECK(job.ranks[rank].Pull(0) == expected);
      CHECK(job.server.failures == 0);
    } else {
      CHECK(Contains(job.ranks[0].link().ReceiveError(), "rank 3 is no longer in the job"));
    }
  });
}

TEST_CASE("policies: so many leave that no result can be made any more") {
  ForEachPolicy([](const PolicyExample& example) {
    Job job(example);
    for (const uint32_t rank : {1u, 2u, 3u}) job.ranks[rank].Say(FrameType::kGoodbye);
    job.ranks[0].Push(0);
    CHECK(Contains(job.ranks[0].link().ReceiveError(), "is no longer in the job"));
  });
}

TEST_CASE("policies: a round that its contributors give up is freed, with what they brought") {
  ForEachPolicy([](const PolicyExample& example) {
    Job job(example);
    job.ranks[0].Push(0, 0, example.contribution(0, 0).size() / 8 * 4);
    CHECK(Becomes(job.server.stats().open_rounds, 1));
    job.ranks[0].Say(FrameType::kForget);
    CHECK(Becomes(job.server.stats().keys, 0));
    CHECK(Becomes(job.server.stats().memory, 0));
    CHECK(job.server.stats().open_rounds == 0);
    CHECK(job.server.failures == 0);
  });
}

TEST_CASE("policies: of the first two, the others are dropped and get the same result") {
  for (const PolicyExample& example : PolicyExamples()) {
    if (!example.without_the_last) continue;
    CAPTURE(example.name);
    Job job(example);
    const size_t part = example.contribution(0, 0).size() / 8 * 4;
    job.ranks[0].Push(0, 0, part);  // the first to begin is not the first to be whole
    for (const uint32_t rank : {3u, 1u}) job.ranks[rank].Push(0);
    const Payload expected = example.result({3, 1, 0, 2}, 0);
    for (const uint32_t rank : {3u, 1u}) CHECK(job.ranks[rank].Pull(0) == expected);
    for (const uint32_t rank : {3u, 1u}) job.ranks[rank].Push(1);  // they go on, one round ahead of the others
    const Payload next = example.result({3, 1}, 1);
    for (const uint32_t rank : {3u, 1u}) CHECK(job.ranks[rank].Pull(1) == next);
    job.ranks[0].Push(0, part);
    job.ranks[2].Push(0);
    for (const uint32_t rank : {0u, 2u}) CHECK(job.ranks[rank].Pull(0) == expected);
    for (const uint32_t rank : {0u, 2u}) job.ranks[rank].Push(1);
    for (const uint32_t rank : {0u, 2u}) CHECK(job.ranks[rank].Pull(1) == next);
    CHECK(job.server.failures == 0);
  }
}

TEST_CASE("policies: a rank may forget a key whose rounds went on without it") {
  for (const PolicyExample& example : PolicyExamples()) {
    if (!example.without_the_last) continue;
    CAPTURE(example.name);
    Job job(example);
    for (const uint32_t rank : {0u, 1u}) job.ranks[rank].Push(0);
    for (const uint32_t rank : {0u, 1u}) CHECK(job.ranks[rank].Pull(0) == example.result({0, 1}, 0));
    for (PolicyRank& rank : job.ranks) rank.Say(FrameType::kForget);
    CHECK(Becomes(job.server.stats().keys, 0));
    CHECK(Becomes(job.server.stats().memory, 0));
    CHECK(job.server.failures == 0);
  }
}

TEST_CASE("policies: rounds that no row opens fail the job, and say so") {
  TestServer server(1, 0, {}, "shm", {});
  RawLink link = server.Connect(0);
  link.Send(PushHeader(0, 7, 0, 64));
  CHECK(Contains(link.ReceiveError(), "key 7: sum of 64 bytes of int32: no policy is for such rounds"));
}

}  // namespace byteps_like::testing
