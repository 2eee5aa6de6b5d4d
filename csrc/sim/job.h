// A simulated job: workers with real engines and servers with real shards in one world, a network that misbehaves as
// the plan says, and the rules that hold whatever happens.
//
//   results    each is the sum (maximum, bytes of the root) of what the ranks brought, on all of them
//   values     of a store: each push is in each of its keys wholly, once, or not at all; in the end all are
//   survival   a job whose faults it should survive ends well on all ranks
//   naming     whoever is killed is named to all that don't finish
//   time       all is over soon after the last fault
//   room       no shard ever holds more than some rounds of all that there is
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/sim/defect.h"
#include "csrc/sim/frames.h"
#include "csrc/sim/history.h"
#include "csrc/sim/member.h"
#include "csrc/sim/plan.h"
#include "csrc/sim/world.h"
#include "csrc/transport/sim/network.h"
#include "server/server.h"

namespace byteps_like::sim {

struct Outcome {
  std::vector<std::string> complaints;  // empty: all rules hold
  uint64_t history = 0;                 // the same for the same plan
  uint64_t events = 0, turns = 0;
  double seconds = 0;                             // of the world's time
  uint32_t finished = 0, failed = 0, killed = 0;  // workers
};

class Job final : private Tap, private Board {
 public:
  struct Options {
    std::string defect;        // "": none
    bool keeps_lines = false;  // of its history
  };
  Job(Plan plan, const Options& options);
  ~Job() override;

  bool Step();    // false: it is over
  Outcome Run();  // all the rest
  const Plan& plan() const { return plan_; }
  const Outcome& outcome() const { return outcome_; }
  History& history() { return history_; }

 private:
  struct Worker {
    bool ended = false, met = false, dead = false;
    Status status;
  };
  struct ServerProcess {
    std::unique_ptr<Server> server;
    bool dead = false, stops = false;
  };
  struct Way {  // of a connection
    FrameScanner sent, arrived;
  };

  // Tap
  void OnOpened(const Wire& wire) override;
  void OnBroken(const Wire& wire, uint32_t process, const Status& why) override;
  std::vector<std::byte> Carry(const Wire& wire, bool back, std::span<const std::byte> bytes) override;
  void OnArrived(const Wire& wire, bool back, std::span<const std::byte> bytes) override;
  // Board
  void Complain(uint32_t rank, const std::string& what) override;
  void OnStep(uint32_t rank, char glyph, const std::string& what) override;
  void OnResult(uint32_t rank, const std::string& what, uint32_t checksum) override;
  bool IsDead(uint32_t rank) const override { return workers_[rank].dead; }
  bool Meet(uint32_t rank) override;

  void RunWorker(uint32_t rank);
  void RunServer(uint32_t number);
  EngineOptions OptionsOf(uint32_t rank);
  std::vector<ShardAddress> AddressesOf(uint32_t first, uint32_t last) const;
  std::vector<ShardAddress> AddressesFor(uint32_t rank) const;
  std::vector<Aggregator> Aggregators() const;
  void SetWorld(uint32_t number);
  void OnEvent(uint32_t process, Code code, const std::string& text, bool fatal);
  void OnEnd(uint32_t rank);
  void Spread(Code code, const std::string& text);
  void Announce(Code code, const std::string& text);
  void Begin(const Fault& fault);
  void Kill(uint32_t process, bool silently);
  bool HaveCopies() const;
  bool IsEarly(const Fault& fault) const;
  void MeetIfAllAreHere();
  void GoOnWithout(uint32_t server);
  void OnResultArrived(uint32_t from, uint32_t to, const Header& result);
  void LeaveOut(uint32_t rank);
  void LeaveOut(uint32_t rank, uint32_t server);
  std::optional<uint64_t> WireBetween(uint32_t one, uint32_t other);
  void StopServers();
  void Judge();
  void JudgeNaming();
  void JudgeResults();
  void CheckRoom();
  bool is_dead(uint32_t process) const;
  Way& WayOf(const Wire& wire, bool back);
  void Note(uint32_t process, char glyph, const std::string& text);
  World::Time In(double seconds) const;

  const Plan plan_;
  Outcome outcome_;
  History history_;
  std::unique_ptr<Defect> defect_;
  std::vector<Fault> armed_;  // kHalfway
  World world_;
  Network network_;
  std::map<std::pair<uint64_t, bool>, Way> ways_;
  std::vector<Worker> workers_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<ServerProcess> servers_;
  World::Time all_know_at_{};                                      // of the last death of a server
  std::map<std::string, std::map<uint32_t, uint32_t>> checksums_;  // of results, by rank
  uint64_t most_memory_ = 0;                                       // of a shard
  uint32_t meeting_ = 0;                                           // which meeting this is
  bool stopping_ = false, over_ = false, announced_ = false;
};

// The smallest plan found that still breaks a rule, of one that does.
Plan Shrink(Plan plan, const Job::Options& options);

}  // namespace byteps_like::sim
