// The network of a simulation: connections between its processes, by addresses "sim://name", with the faults that a
// world wants. It behaves as TCP does: bytes come in order and once or not at all, an end whose bytes are not taken for
// too long is told that the connection is broken, and an orderly end comes after the last byte.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/simulation.h"
#include "csrc/base/status.h"
#include "csrc/transport/stream.h"

namespace byteps_like::sim {

class Connection;
class Door;

struct Wire {  // one connection, as a world speaks of it
  uint64_t number = 0;
  uint32_t dialled_by = 0, accepted_by = 0;  // processes
};

// Sees, and may change, what connections carry. `back`: from the accepting end to the one that dialled.
class Tap {
 public:
  virtual ~Tap() = default;
  virtual void OnOpened(const Wire& /*wire*/) {}
  virtual void OnBroken(const Wire& /*wire*/, uint32_t /*process*/, const Status& /*why*/) {}  // as one end is told
  // What goes over the wire instead of these bytes; together with what it has kept back before.
  virtual std::vector<std::byte> Carry(const Wire& /*wire*/, bool /*back*/, std::span<const std::byte> bytes) {
    return {bytes.begin(), bytes.end()};
  }
  virtual void OnArrived(const Wire& /*wire*/, bool /*back*/, std::span<const std::byte> /*bytes*/) {}
};

struct NetworkOptions {
  Clock::duration delay = std::chrono::microseconds(50);  // one way, at least,
  Clock::duration jitter{};                               // and so much more at most
  size_t window = 64u << 10;                              // bytes that an end may send before they are read
  uint64_t cuts_short = 8;                                // one read or write in so many moves less than it could
};

class Network {
 public:
  // Is that of the simulation until its end. All three live longer than what uses it.
  Network(Simulation& simulation, Tap& tap, NetworkOptions options);
  ~Network();
  Network(const Network&) = delete;
  static Network* Here();  // that of TheSimulation(); nullptr: there is none

  std::vector<Wire> wires() const;  // those that are in order, oldest first

  // Faults. Of a wire that is gone they do nothing.
  void Reset(uint64_t wire);                        // both ends are told
  void Stall(uint64_t wire, Clock::duration time);  // nothing arrives for so long
  void Swallow(uint64_t wire);                      // nothing arrives any more
  void Cut(uint32_t from, uint32_t to);             // one way: nothing arrives between these processes, nor do dials
  void Mend(uint32_t from, uint32_t to);
  void SlowDials(uint64_t one_in, Clock::duration most);  // so many new connections are stalled, for up to so long
  // A process is dead. Its peers are told as its kernel does; `silently`: not at all, as if its host had lost power.
  void Sever(uint32_t process, bool silently);

  // For streams and listeners.
  Result<std::unique_ptr<Stream>> Dial(const std::string& url, Deadline deadline);
  Result<std::unique_ptr<Listener>> Open(const std::string& url);
  void Close(const std::string& url, const Door& door);
  bool Passes(uint32_t from, uint32_t to) const;
  Clock::duration OneWay();
  Simulation& simulation() { return simulation_; }
  const NetworkOptions& options() const { return options_; }
  Tap& tap() { return tap_; }

 private:
  Result<std::shared_ptr<Connection>> Knock(const std::string& url, uint32_t process);
  void Settle(const std::shared_ptr<Connection>& connection);
  std::vector<std::shared_ptr<Connection>> Living() const;
  std::shared_ptr<Connection> Find(uint64_t wire) const;

  Simulation& simulation_;
  Tap& tap_;
  const NetworkOptions options_;
  std::map<std::string, std::weak_ptr<Door>> doors_;
  std::map<uint64_t, std::weak_ptr<Connection>> connections_;
  std::set<std::pair<uint32_t, uint32_t>> cuts_;
  std::set<uint32_t> dead_, silent_;
  std::set<std::string> dark_;  // addresses of hosts without power
  uint64_t slow_one_in_ = 0;
  Clock::duration slowest_{};
  uint64_t last_ = 0;
};

}  // namespace byteps_like::sim
