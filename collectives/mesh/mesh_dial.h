// Attempts to reach peers, on up to 16 threads that live while there is something to dial: of 1,000 peers that are
// needed at once most wait for their turn, and their time counts from then.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/base/thread.h"
#include "csrc/transport/entrance/handshake.h"

namespace byteps_like {

// One attempt: its addresses in turn until its time is over. The result is kRefused, kPeerLost (the peer no longer
// listens), kTimeout, kCapacity (this process lacks descriptors), or the last other failure.
class MeshDial {
 public:
  struct Target {
    std::vector<std::string> urls;  // best first
    Credentials credentials;
    Introduction who;  // dials whom, and which way
    Clock::duration patience{};
  };
  using Done = std::function<void(Result<std::unique_ptr<Stream>>)>;

  MeshDial(Target target, Done done) : target_(std::move(target)), done_(std::move(done)) {}
  MeshDial(const MeshDial&) = delete;

  void Run();     // blocks; then `done`, unless it was cancelled
  void Cancel();  // any thread; Run ends soon, but for a connect under way: 2 s at most

 private:
  Result<std::unique_ptr<Stream>> Dial();
  Result<std::unique_ptr<Stream>> Greet(std::unique_ptr<Stream> stream, Deadline deadline, bool& certain);
  bool Pause(Clock::duration time);  // false: cancelled
  bool Enter(Stream* stream);        // likewise

  const Target target_;
  const Done done_;
  std::mutex mutex_;
  ConditionVariable changed_;
  bool cancelled_ = false;
  Stream* stream_ = nullptr;  // in its handshake
};

// Makes the dials, on threads of its own. Any thread may call it.
class MeshDialers {
 public:
  ~MeshDialers() { Close(); }

  // kCapacity: no thread can be had, and none is at work.
  Status Start(std::shared_ptr<MeshDial> dial);
  void Close();  // cancels all; no `done` is called when it returns

 private:
  struct Dialer {
    Thread thread;
    std::shared_ptr<MeshDial> dial;  // at work on it
    bool over = true;                // the thread has ended, or is about to
  };
  void Serve(Dialer& self);

  std::mutex mutex_;  // guards all of it; the threads are joined outside
  bool closed_ = false;
  std::deque<std::shared_ptr<MeshDial>> waiting_;
  std::array<Dialer, 16> dialers_;
};

}  // namespace byteps_like
