#include "csrc/sim/job.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <numeric>
#include <string_view>
#include <utility>

namespace byteps_like::sim {
namespace {

constexpr double kStallWarning = 1, kStallTimeout = 8;  // seconds
constexpr double kBound = 40;  // seconds after the last fault: stalls are told after 8, broken links after 11
constexpr uint64_t kMostTurns = 20'000'000;  // as many mean that threads keep one another busy for ever
constexpr uint64_t kLongestNews = 50'000;    // microseconds until a member hears of the end
constexpr double kGrace = 0.7;               // seconds after which a worker counts as dead,
constexpr uint64_t kLongestWord = 500'000;   // and microseconds until a server hears so
constexpr uint64_t kAgain = 10'000;          // or is there to be told
constexpr uint64_t kMemoryPerByte = 8;  // that a shard may hold, of all tensors on all ranks: sums, scratch, results
constexpr uint64_t kMemoryBesides = 8u << 20;
constexpr uint32_t kFirstServer = 100;  // member numbers
constexpr size_t kLeastSegment = 1024;

std::vector<std::string> Names(const Plan& plan) {
  std::vector<std::string> names;
  for (uint32_t process = 1; process <= plan.processes(); ++process) names.push_back(plan.NameOf(process));
  return names;
}

std::string UrlOf(uint32_t server) { return "sim://s" + std::to_string(server); }

Credentials TheCredentials() { return {"job", std::string(32, 's'), 1}; }

std::vector<uint32_t> NumbersOf(uint32_t workers) {
  std::vector<uint32_t> numbers(workers);
  std::iota(numbers.begin(), numbers.end(), 1);
  return numbers;
}

// "rank 3", or the 3 in "waiting for rank 1, 3; have rank 0, 2": a number of a list behind the word.
bool Names(const std::string& text, const std::string& word, uint32_t number) {
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1))
    for (size_t next = at + word.size(); next < text.size();) {
      size_t digits = 0;
      if (text[next] < '0' || text[next] > '9') break;
      if (std::stoul(text.substr(next), &digits) == number) return true;
      next += digits;
      if (text.compare(next, 2, ", ") != 0) break;
      next += 2;
    }
  return false;
}

// By itself, in a list, or by a count for each rank of which its own is the least.
bool NamesRank(const std::string& text, uint32_t rank) {
  constexpr std::string_view kCounts = "by rank: ";
  const size_t counts = text.find(kCounts);
  if (Names(text, "rank ", rank) || Names(text, "ranks ", rank)) return true;
  if (counts == text.npos) return false;
  std::vector<unsigned long> come;
  for (size_t next = counts + kCounts.size(); next < text.size() && std::isdigit(text[next]) != 0; next += 2) {
    size_t digits = 0;
    come.push_back(std::stoul(text.substr(next), &digits));
    next += digits;
  }
  return rank < come.size() && come[rank] == std::ranges::min(come);
}

uint64_t BytesOf(const Plan& plan) {
  uint64_t bytes = 0;
  for (const TensorPlan& tensor : plan.tensors) bytes += uint64_t{tensor.elements} * SizeOf(tensor.dtype);
  for (const StorePlan& store : plan.stores) bytes += uint64_t{store.elements} * sizeof(int64_t) * store.pushes;
  return bytes;
}

}  // namespace

Job::Job(Plan plan, const Options& options)
    : plan_(std::move(plan)),
      history_(Names(plan_), options.keeps_lines),
      defect_(options.defect.empty() ? nullptr : MakeDefect(options.defect)),
      world_(plan_.seed),
      network_(world_, *this, plan_.network),
      workers_(plan_.workers),
      servers_(plan_.all_servers()) {
  world_.SetLogSink([this](uint32_t process, LogLevel level, const std::string& text) {
    if (level >= LogLevel::kInfo && !is_dead(process)) Note(process, 'i', text);
  });
  network_.SlowDials(plan_.slow_one_in,
                     std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(plan_.slowest)));
  for (uint32_t process = 1; process <= plan_.processes(); ++process) world_.AddProcess();
  for (uint32_t number = 0; number < plan_.all_servers(); ++number)
    world_.Run(plan_.ProcessOfServer(number), [this, number] { RunServer(number); });
  for (uint32_t rank = 0; rank < plan_.workers; ++rank) {
    Board& board = *this;
    members_.push_back(std::make_unique<Member>(plan_, rank, board));
    world_.Run(plan_.ProcessOfWorker(rank), [this, rank] { RunWorker(rank); });
  }
  // Not of elastic jobs: their servers dial one another, and would wait for ever to end.
  const bool loses_timers = defect_ != nullptr && defect_->loses_timers() && !plan_.elastic;
  for (uint32_t number = 0; loses_timers && number < plan_.all_servers(); ++number)
    world_.LoseTimers(plan_.ProcessOfServer(number));
  for (const Fault& fault : plan_.faults) world_.At(In(fault.at), [this, fault] { Begin(fault); });
}

// What has not ended never will: its memory is left where it is.
Job::~Job() {
  if (world_.threads() == 0) return;
  for (auto& member : members_) (void)member.release();
  for (auto& server : servers_) (void)server.server.release();
}

World::Time Job::In(double seconds) const {
  return world_.Now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void Job::Note(uint32_t process, char glyph, const std::string& text) {
  history_.Note(world_.age(), process, glyph, text);
}

bool Job::is_dead(uint32_t process) const {
  if (process == 0 || process > plan_.processes()) return false;
  return process <= plan_.workers ? workers_[process - 1].dead : servers_[process - 1 - plan_.workers].dead;
}

// The members ---------------------------------------------------------------------------------------------------------

EngineOptions Job::OptionsOf(uint32_t rank) {
  EngineOptions options;
  options.credentials = TheCredentials();
  options.standing = {rank, plan_.workers};
  options.member = rank + 1;
  options.segment_bytes = plan_.segment_bytes;
  options.least_segment = kLeastSegment;
  options.credit_bytes = plan_.credit_bytes;
  options.bounce_bytes = 0;
  options.stall_warning = kStallWarning;
  options.stall_timeout = kStallTimeout;
  options.outlives_servers = plan_.elastic;
  options.on_event = [this, rank](Code code, const std::string& text, bool fatal) {
    OnEvent(plan_.ProcessOfWorker(rank), code, text, fatal);
  };
  return options;
}

std::vector<ShardAddress> Job::AddressesFor(uint32_t rank) const {
  std::vector<ShardAddress> shards = AddressesOf(0, plan_.servers);
  const auto rack = plan_.RackOf(rank);
  if (!rack) return shards;
  for (ShardAddress& shard : AddressesOf(plan_.servers + *rack, plan_.servers + *rack + 1))
    shards.push_back(std::move(shard));
  return shards;
}

std::vector<Aggregator> Job::Aggregators() const {
  std::vector<Aggregator> aggregators;
  aggregators.reserve(plan_.racks.size());
  for (uint32_t rack = 0; rack < plan_.racks.size(); ++rack)
    aggregators.push_back(
        {"r" + std::to_string(rack), plan_.racks[rack].ranks, kFirstServer + plan_.servers + rack, plan_.shards});
  return aggregators;
}

std::vector<ShardAddress> Job::AddressesOf(uint32_t first, uint32_t last) const {
  std::vector<ShardAddress> shards;
  for (uint32_t server = first; server < last; ++server)
    for (uint32_t shard = 0; shard < plan_.shards; ++shard)
      shards.push_back({server, shard, {UrlOf(server)}, kFirstServer + server});
  return shards;
}

void Job::RunWorker(uint32_t rank) {
  Worker& worker = workers_[rank];
  worker.status = members_[rank]->Run(OptionsOf(rank), AddressesFor(rank));
  worker.ended = true;
  if (!worker.dead) OnEnd(rank);
  MeetIfAllAreHere();
  world_.Wake(&meeting_, true);
  if (std::ranges::all_of(workers_, &Worker::ended)) StopServers();
}

// A worker that can't even begin has no link by which others would notice: its launcher does.
void Job::OnEnd(uint32_t rank) {
  const Status& status = workers_[rank].status;
  Note(plan_.ProcessOfWorker(rank), status.ok() ? '.' : '#', "ends " + status.message());
  if (!status.ok() && (plan_.announces || !members_[rank]->has_begun())) Spread(status.code(), status.message());
}

void Job::RunServer(uint32_t number) {
  const uint32_t process = plan_.ProcessOfServer(number);
  ServerProcess& self = servers_[number];
  Server::Options options;
  options.job = TheCredentials().job;
  options.secret = TheCredentials().secret;
  options.urls = {UrlOf(number)};
  options.shards = plan_.shards;
  options.segment_bytes = plan_.segment_bytes;
  options.on_event = [this, process](uint32_t, Code code, const std::string& text, bool fatal) {
    OnEvent(process, code, text, fatal);
  };
  auto started = Server::Start(std::move(options));
  if (!started.ok()) {
    outcome_.complaints.push_back(plan_.NameOf(process) + " can't start: " + started.status().message());
    return;
  }
  self.server = std::move(*started);
  SetWorld(number);
  while (!stopping_ && !self.dead) world_.Block(&stopping_, World::Time::max());
  self.server->Stop();
  self.server.reset();
}

void Job::SetWorld(uint32_t number) {
  ShardWorld world{1, NumbersOf(plan_.workers), kStallWarning, kStallTimeout, number, kFirstServer + number};
  world.elastic = plan_.elastic;
  if (plan_.elastic && plan_.racks.empty()) world.chain = AddressesOf(0, plan_.servers);
  std::vector<ShardAddress> owners;
  if (number < plan_.servers) {
    world.aggregators = Aggregators();
  } else {
    world.own = Aggregators()[number - plan_.servers];
    owners = AddressesOf(0, plan_.servers);
  }
  servers_[number].server->SetWorld(world, owners, kLeastSegment);
}

void Job::StopServers() {
  stopping_ = true;
  world_.Wake(&stopping_, true);
}

// Those of an elastic job meet without the dead: what one has, another may lack.
bool Job::Meet(uint32_t rank) {
  const auto gone = [](const Worker& worker) { return worker.dead || worker.ended; };
  workers_[rank].met = true;
  const uint32_t meeting = meeting_;
  MeetIfAllAreHere();
  while (meeting == meeting_ && !workers_[rank].dead && (plan_.elastic || std::ranges::none_of(workers_, gone)))
    world_.Block(&meeting_, World::Time::max());
  return std::ranges::none_of(workers_, gone);
}

void Job::MeetIfAllAreHere() {
  const auto here = [](const Worker& worker) { return worker.met || worker.dead || worker.ended; };
  if (!std::ranges::all_of(workers_, here)) return;
  ++meeting_;
  for (Worker& worker : workers_) worker.met = false;
  world_.Wake(&meeting_, true);
}

void Job::OnEvent(uint32_t process, Code code, const std::string& text, bool fatal) {
  if (is_dead(process)) return;
  Note(process, fatal ? '#' : 'w', text);
  if (fatal && plan_.announces) Spread(code, text);
}

void Job::Spread(Code code, const std::string& text) {
  if (announced_ || stopping_) return;
  announced_ = true;
  const auto then = world_.Now() + std::chrono::microseconds(world_.Draw(kLongestNews));
  world_.At(then, [this, code, text] { Announce(code, text); });
}

void Job::Announce(Code code, const std::string& text) {
  Note(0, '*', "all are told: " + text);
  for (const ServerProcess& one : servers_)
    if (one.server != nullptr && !one.dead) one.server->Fail(1, code, text);
  for (uint32_t rank = 0; rank < plan_.workers; ++rank)
    if (!workers_[rank].dead && !workers_[rank].ended) members_[rank]->Fail(code, text);
}

void Job::OnStep(uint32_t rank, char glyph, const std::string& what) {
  if (!workers_[rank].dead) Note(plan_.ProcessOfWorker(rank), glyph, what);
}

void Job::OnResult(uint32_t rank, const std::string& what, uint32_t checksum) {
  if (!workers_[rank].dead) checksums_[what].emplace(rank, checksum);
}

// A result that only members had who are dead may have been made anew, of less.
void Job::JudgeResults() {
  for (const auto& [what, by_rank] : checksums_) {
    std::optional<uint32_t> first;
    for (const auto& [rank, checksum] : by_rank) {
      if (workers_[rank].dead) continue;
      if (first.value_or(checksum) != checksum) Complain(rank, what + ": others have another result");
      first = first.value_or(checksum);
    }
  }
}

void Job::Complain(uint32_t rank, const std::string& what) {
  if (workers_[rank].dead) return;
  Note(plan_.ProcessOfWorker(rank), '!', what);
  outcome_.complaints.push_back("rank " + std::to_string(rank) + ": " + what);
}

// Faults --------------------------------------------------------------------------------------------------------------

std::optional<uint64_t> Job::WireBetween(uint32_t one, uint32_t other) {
  std::vector<uint64_t> found;
  for (const Wire& wire : network_.wires()) {
    const bool between =
        (wire.dialled_by == one && wire.accepted_by == other) || (wire.dialled_by == other && wire.accepted_by == one);
    if (between) found.push_back(wire.number);
  }
  if (found.empty()) return std::nullopt;
  return found[world_.Draw(found.size())];
}

// Each key of a store, at servers that live.
bool Job::HaveCopies() const {
  uint64_t replicated = 0, keys = 0;
  uint32_t alive = 0;
  for (uint32_t number = 0; number < plan_.servers; ++number) {
    const ServerProcess& one = servers_[number];
    if (one.dead || one.server == nullptr) continue;
    ++alive;
    for (const auto& shard : one.server->shards()) replicated += shard->stats().replicated;
  }
  for (const StorePlan& store : plan_.stores)
    keys += (store.elements * sizeof(int64_t) + plan_.partition_bytes - 1) / plan_.partition_bytes;
  return alive < 2 || replicated >= keys;
}

// Whoever can't reach all servers at first has nothing to go on with: those that it goes on without die later. So do
// those of whose values there are no copies yet, as far as servers know of those that have died before.
bool Job::IsEarly(const Fault& fault) const {
  if (!plan_.elastic || fault.process <= plan_.workers || !plan_.Kills(fault, fault.process)) return false;
  bool begins = false;
  for (uint32_t rank = 0; rank < plan_.workers; ++rank)
    begins |= !workers_[rank].dead && !workers_[rank].ended && !members_[rank]->has_opened();
  const bool is_news = world_.Now() < all_know_at_;
  return (begins || is_news || !HaveCopies()) && !plan_.IsLethal(fault);
}

void Job::Begin(const Fault& fault) {
  if (is_dead(fault.process) || stopping_) return;
  if (IsEarly(fault))
    return world_.At(world_.Now() + std::chrono::microseconds(kAgain), [this, fault] { Begin(fault); });
  const auto wire = WireBetween(fault.process, fault.other);
  const auto time = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(fault.seconds));
  const World::Time end = world_.Now() + time;
  Note(
      fault.process, '!',
      std::string(NameOf(fault.kind)) + ", " + plan_.NameOf(fault.other) + ", " + std::to_string(fault.seconds) + " s");
  switch (fault.kind) {
    case FaultKind::kReset:
      return wire ? network_.Reset(*wire) : void();
    case FaultKind::kStall:
      return wire ? network_.Stall(*wire, time) : void();
    case FaultKind::kSwallow:
      return wire ? network_.Swallow(*wire) : void();
    case FaultKind::kCut:
      network_.Cut(fault.process, fault.other);
      return world_.At(end, [this, fault] { network_.Mend(fault.process, fault.other); });
    case FaultKind::kPause:
      world_.Pause(fault.process);
      return world_.At(end, [this, fault] { world_.Continue(fault.process); });
    case FaultKind::kKill:
    case FaultKind::kPowerOff:
      return Kill(fault.process, fault.kind == FaultKind::kPowerOff);
    case FaultKind::kHalfway:
      return armed_.push_back(fault);
  }
}

// Its threads run on, but nobody hears of them, until they have noticed.
void Job::Kill(uint32_t process, bool silently) {
  if (process <= plan_.workers && workers_[process - 1].ended) return;
  network_.Sever(process, silently);
  world_.Continue(process);
  if (process <= plan_.workers) {
    workers_[process - 1].dead = true;
    MeetIfAllAreHere();
    world_.Wake(&meeting_, true);
    if (plan_.elastic) LeaveOut(process - 1);
  } else {
    servers_[process - 1 - plan_.workers].dead = true;
    world_.Wake(&stopping_, true);
    if (plan_.elastic) GoOnWithout(process - 1 - plan_.workers);
  }
}

// Each worker hears of it at a time of its own, as the servers below.
void Job::GoOnWithout(uint32_t server) {
  for (uint32_t rank = 0; rank < plan_.workers; ++rank)
    world_.At(In(kGrace) + std::chrono::microseconds(world_.Draw(kLongestWord)), [this, rank, server] {
      if (workers_[rank].dead || workers_[rank].ended) return;
      Note(plan_.ProcessOfWorker(rank), '-', plan_.NameOf(plan_.ProcessOfServer(server)) + " is dead");
      members_[rank]->GoOnWithout(server, "server " + std::to_string(server) + " died");
    });
  all_know_at_ = In(kGrace) + std::chrono::microseconds(kLongestWord);
  for (uint32_t other = 0; other < plan_.servers; ++other)
    world_.At(In(kGrace) + std::chrono::microseconds(world_.Draw(kLongestWord)), [this, other, server] {
      const ServerProcess& one = servers_[other];
      if (!stopping_ && !one.dead && one.server != nullptr) one.server->GoOnWithout(1, server);
    });
}

// Each server hears of it at a time of its own.
void Job::LeaveOut(uint32_t rank) {
  for (uint32_t server = 0; server < plan_.all_servers(); ++server) {
    const auto then = In(kGrace) + std::chrono::microseconds(world_.Draw(kLongestWord));
    world_.At(then, [this, rank, server] { LeaveOut(rank, server); });
  }
}

void Job::LeaveOut(uint32_t rank, uint32_t server) {
  const ServerProcess& one = servers_[server];
  if (stopping_ || one.dead) return;
  if (one.server == nullptr)
    return world_.At(world_.Now() + std::chrono::microseconds(kAgain),
                     [this, rank, server] { LeaveOut(rank, server); });
  Note(plan_.ProcessOfServer(server), '-', plan_.NameOf(plan_.ProcessOfWorker(rank)) + " is dead");
  one.server->LeaveOut(1, rank);
}

// The network's side --------------------------------------------------------------------------------------------------

Job::Way& Job::WayOf(const Wire& wire, bool back) {
  return ways_.try_emplace({wire.number, back}, Way{FrameScanner(back), FrameScanner(back)}).first->second;
}

void Job::OnOpened(const Wire& wire) {
  Note(wire.dialled_by, '+', "connection " + std::to_string(wire.number) + " to " + plan_.NameOf(wire.accepted_by));
}

void Job::OnBroken(const Wire&, uint32_t process, const Status& why) {
  if (!is_dead(process)) Note(process, 'x', why.message());
}

std::vector<std::byte> Job::Carry(const Wire& wire, bool back, std::span<const std::byte> bytes) {
  if (defect_ == nullptr) return {bytes.begin(), bytes.end()};
  std::vector<std::byte> out;
  WayOf(wire, back)
      .sent.Feed(
          bytes, [&](std::span<const std::byte> plain) { out.insert(out.end(), plain.begin(), plain.end()); },
          [&](const Header& header, std::span<const std::byte> frame) {
            const auto payload = frame.subspan(kHeaderBytes);
            for (const Frame& one : defect_->Instead(wire, back, {header, {payload.begin(), payload.end()}}))
              Append(one, out);
          });
  return out;
}

void Job::OnArrived(const Wire& wire, bool back, std::span<const std::byte> bytes) {
  const uint32_t to = back ? wire.dialled_by : wire.accepted_by;
  const std::string from = plan_.NameOf(back ? wire.accepted_by : wire.dialled_by);
  WayOf(wire, back)
      .arrived.Feed(
          bytes, [](std::span<const std::byte>) {},
          [&](const Header& header, std::span<const std::byte>) {
            history_.NoteFrame(world_.age(), to, header, from);
            if (header.type == FrameType::kResult)
              OnResultArrived(back ? wire.accepted_by : wire.dialled_by, to, header);
          });
}

void Job::OnResultArrived(uint32_t from, uint32_t to, const Header& result) {
  const bool is_whole = result.offset + result.length == result.total;
  if (is_whole && plan_.segment_bytes == kFineSegment) return;
  for (const Fault& fault : armed_)
    if (fault.process == from && fault.other == to && !is_dead(from)) Kill(from, true);
}

// The rules -----------------------------------------------------------------------------------------------------------

bool Job::Step() {
  if (over_) return false;
  const double latest = plan_.last_fault() + kBound;
  const bool late = std::chrono::duration<double>(world_.age()).count() > latest || world_.turns() > kMostTurns;
  if (!late && world_.Step() && world_.threads() > 0) {
    if (world_.turns() % 64 == 0) CheckRoom();
    return true;
  }
  over_ = true;
  if (world_.threads() > 0) {
    std::string who;
    for (uint32_t rank = 0; rank < plan_.workers; ++rank)
      if (!workers_[rank].ended) who += " " + plan_.NameOf(plan_.ProcessOfWorker(rank));
    outcome_.complaints.push_back("it does not end; still there:" + (who.empty() ? " servers" : who));
  }
  Judge();
  return false;
}

Outcome Job::Run() {
  while (Step()) {
  }
  return outcome_;
}

void Job::CheckRoom() {
  for (const ServerProcess& one : servers_)
    if (one.server != nullptr)
      for (const auto& shard : one.server->shards())
        most_memory_ = std::max(most_memory_, shard->stats().memory.load());
}

void Job::Judge() {
  for (uint32_t rank = 0; rank < plan_.workers; ++rank) {
    const Worker& worker = workers_[rank];
    if (worker.dead) {
      ++outcome_.killed;
    } else if (worker.ended && worker.status.ok()) {
      ++outcome_.finished;
    } else if (worker.ended) {
      ++outcome_.failed;
      if (!plan_.lethal())
        outcome_.complaints.push_back("rank " + std::to_string(rank) +
                                      " fails where no fault is a reason to: " + worker.status.message());
    }
  }
  JudgeNaming();
  JudgeResults();
  if (most_memory_ > kMemoryPerByte * plan_.workers * BytesOf(plan_) + kMemoryBesides)
    outcome_.complaints.push_back("a shard held " + std::to_string(most_memory_) + " bytes");
  outcome_.history = history_.number();
  outcome_.events = history_.events();
  outcome_.turns = world_.turns();
  outcome_.seconds = std::chrono::duration<double>(world_.age()).count();
}

// Where one process was killed and nothing else can have ended the job, all know which. That a server's host has lost
// power is for a scheduler to say: what others wait for meanwhile may be named first.
void Job::JudgeNaming() {
  const auto lethal = [this](const Fault& fault) { return plan_.IsLethal(fault); };
  if (std::ranges::count_if(plan_.faults, lethal) != 1) return;
  const Fault& fault = *std::ranges::find_if(plan_.faults, lethal);
  const bool worker = fault.process <= plan_.workers;
  const bool kills = fault.kind == FaultKind::kKill || (worker && fault.kind == FaultKind::kPowerOff);
  if (!kills || !is_dead(fault.process)) return;
  const uint32_t number = fault.process - 1 - (worker ? 0 : plan_.workers);
  // Only its rack has links to an aggregator; without announcements others wait for the rack's ranks, and name those.
  if (!worker && number >= plan_.servers && !plan_.announces) return;
  // An aggregator lets nobody in before it has reached all owners, so until then it is the one that can't be reached.
  const auto waits = [&](uint32_t rank) { return plan_.RackOf(rank) && !members_[rank]->has_begun(); };
  for (uint32_t rank = 0; rank < plan_.workers; ++rank)
    if (waits(rank)) return;
  for (uint32_t rank = 0; rank < plan_.workers; ++rank) {
    const Worker& one = workers_[rank];
    if (one.dead || !one.ended || one.status.ok()) continue;
    const std::string& said = one.status.message();
    if (worker ? NamesRank(said, number) : Names(said, "server ", number)) continue;
    if (!worker && number >= plan_.servers && Names(said, "rack r", number - plan_.servers)) continue;
    outcome_.complaints.push_back("rank " + std::to_string(rank) + " is not told who was lost: " + said);
  }
}

Plan Shrink(Plan plan, const Job::Options& options) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (Plan& candidate : Smaller(plan)) {
      if (Job(candidate, options).Run().complaints.empty()) continue;
      plan = std::move(candidate);
      smaller = true;
      break;
    }
  }
  return plan;
}

}  // namespace byteps_like::sim
