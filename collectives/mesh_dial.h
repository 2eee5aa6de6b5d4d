// One attempt to reach a peer, on a short-lived thread of its own: its addresses in turn until the deadline.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/transport/handshake.h"

namespace byteps_like {

class MeshDial {
 public:
  struct Target {
    std::vector<std::string> urls;  // best first
    Credentials credentials;
    PeerIdentity self;  // who dials, and which way
    Deadline deadline;
  };
  using Done = std::function<void(Result<std::unique_ptr<Stream>>)>;

  // `done` is called on the dial's thread, unless it was cancelled; here, if no thread can be had.
  MeshDial(Target target, Done done);
  ~MeshDial();  // cancels; blocks for 2 s at most
  MeshDial(const MeshDial&) = delete;

 private:
  struct State;
  static Result<std::unique_ptr<Stream>> Run(State& state);
  static Result<std::unique_ptr<Stream>> Try(State& state, const std::string& url);

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace byteps_like
