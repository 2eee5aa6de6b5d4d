// One connection of a simulated network: what is under way in it, each way, and what its two ends have been told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/transport/loop/simulated_poller.h"
#include "csrc/transport/sim/network.h"

namespace byteps_like::sim {

enum Side : size_t { kDialled = 0, kAccepted = 1 };

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Network& network, Wire wire) : network_(network), wire_(wire) {}

  const Wire& wire() const { return wire_; }
  bool is_in_order() const { return ends_[0].told.ok() && ends_[1].told.ok() && !ends_[0].closed && !ends_[1].closed; }
  uint32_t process(size_t side) const { return side == kDialled ? wire_.dialled_by : wire_.accepted_by; }

  // Of an end's stream.
  int descriptor(size_t side) const { return ends_[side].descriptor.number(); }
  Result<size_t> Read(size_t side, std::span<std::byte> to);
  Result<size_t> Write(size_t side, std::span<const iovec> pieces);
  void Close(size_t side);
  void LimitSilence(size_t side, Clock::duration limit);

  // Of the network.
  void Break(size_t side, const Status& why);  // what has come can still be read
  void Stall(Clock::time_point until);
  void Swallow();
  void Leave(size_t side, bool silently);  // its process is dead
  void Resume();                           // what is due arrives, unless something is in the way
  void WatchSilence();                     // something is in the way from now on

 private:
  struct Packet {
    Clock::time_point due{};
    std::vector<std::byte> bytes{};
    enum { kBytes, kLast, kReset } kind = kBytes;  // kLast: the stream ends; kReset: it is broken
  };
  struct End {
    SimulatedDescriptor descriptor;
    std::deque<Packet> coming;     // to this end
    std::vector<std::byte> there;  // has arrived, and is not read yet, from `taken` on
    size_t taken = 0;
    size_t unread = 0;    // of what the other end has written
    bool ended = false;   // the last byte is there
    bool closed = false;  // by its own stream
    bool wants_room = false;
    bool dead = false;  // its process is
    Status told;        // it is broken
    Clock::duration silence{};
  };

  void Send(size_t from, Packet packet);
  void Arrive(size_t to);
  void MakeRoom(size_t side);
  void CheckSilence(size_t side);
  bool Blocks(size_t to) const;
  size_t Some(size_t bytes);

  Network& network_;
  const Wire wire_;
  End ends_[2];
  Clock::time_point stalled_until_{};
  bool swallows_ = false;
};

}  // namespace byteps_like::sim
