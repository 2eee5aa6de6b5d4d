// What happens in a simulated job, as far as it is decided beforehand: who takes part, what they do, and what goes
// wrong when. Drawn from a seed; plain data, so that a plan can be made smaller and run again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/transport/sim/network.h"

namespace byteps_like::sim {

enum class FaultKind : uint8_t {
  kReset,     // a connection between two processes
  kStall,     // of a connection: nothing arrives for `seconds`
  kSwallow,   // a connection takes bytes and delivers none, for ever
  kCut,       // one way between two processes, for `seconds`
  kPause,     // a process does not run for `seconds`, and its clock goes on
  kKill,      // a process; those from here on end it
  kPowerOff,  // a process, whose host tells nobody
  kHalfway,   // the same of a server, as soon as something of a result has come to `other`
};
const char* NameOf(FaultKind kind);

struct Fault {
  FaultKind kind{};
  double at = 0;         // seconds from the beginning
  uint32_t process = 1;  // whose,
  uint32_t other = 0;    // and whose connection, or way
  double seconds = 0;
  // Whether the job need not survive it. It then ends with an error on every survivor that has not finished.
  bool lethal() const;
};

struct TensorPlan {
  DType dtype = DType::kInt64;
  uint32_t elements = 0;
  std::string codec = "";  // of fp32, and exact for what members bring, but for kVotes; "": none
};

struct StorePlan {
  std::string policy;
  uint32_t elements = 0, pushes = 0;
  uint32_t replicas = 1;  // servers that have it
};

// Workers whose sums go by an aggregator of their own.
struct RackPlan {
  std::vector<uint32_t> ranks;  // ascending
};

// A codec whose results take the place of payloads, and are not the sum.
inline constexpr const char* kVotes = "onebit:block=64";
inline constexpr size_t kFineSegment = 1024;  // of plans in which a server may die between two segments of a result

struct Plan {
  uint64_t seed = 0;
  uint32_t workers = 2, servers = 1, shards = 1;
  uint32_t rounds = 3;
  std::vector<TensorPlan> tensors;
  std::vector<StorePlan> stores;
  std::vector<RackPlan> racks;  // the aggregator of the first is server number `servers`, and so on
  uint32_t partition_bytes = 16384;
  size_t segment_bytes = 4096, credit_bytes = 1u << 20;
  bool elastic = false;   // the others go on without members that die: as a scheduler tells them
  bool announces = true;  // what ends the job anywhere is told to all, as a scheduler does
  NetworkOptions network;
  uint64_t slow_one_in = 0;  // connections that begin with a stall; 0: none
  double slowest = 0;        // seconds
  std::vector<Fault> faults;

  uint32_t all_servers() const { return servers + static_cast<uint32_t>(racks.size()); }  // aggregators last
  uint32_t processes() const { return workers + all_servers(); }
  uint32_t ProcessOfWorker(uint32_t rank) const { return 1 + rank; }
  uint32_t ProcessOfServer(uint32_t server) const { return 1 + workers + server; }
  std::optional<uint32_t> RackOf(uint32_t rank) const;
  std::string NameOf(uint32_t process) const;  // "w0", "s1", "a0" of an aggregator
  bool Kills(const Fault& fault, uint32_t process) const;
  // Whether the job need not survive it: an elastic one goes on without workers, and without servers while there is
  // one.
  bool IsLethal(const Fault& fault) const;
  bool lethal() const;
  double last_fault() const;     // when the last one is over, in seconds
  std::string Describe() const;  // a line, and one for each fault
};

Plan DrawPlan(uint64_t seed);

// Plans that lack something which this one has, those that lack most first.
std::vector<Plan> Smaller(const Plan& plan);

}  // namespace byteps_like::sim
