// Who may come in: listens, shakes hands with whoever connects on a short-lived thread of its own, and hands on the
// streams of those that hold the job's secret.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "csrc/transport/handshake.h"
#include "csrc/transport/stream.h"

namespace byteps_like {

class Admission {
 public:
  struct Options {
    std::string job;
    std::string secret;
    // The epoch whose members are let in. Called on a handshake thread, may block until Close; nothing: cut off.
    std::function<std::optional<uint32_t>()> epoch;
    // Somebody is in. Called on a handshake thread; `number` counts connections in the order of their acceptance.
    std::function<void(std::unique_ptr<Stream>, const PeerIdentity&, uint32_t epoch, uint64_t number)> admit;
  };

  static Result<std::unique_ptr<Admission>> Open(const std::vector<std::string>& urls, Options options);
  ~Admission();
  Admission(const Admission&) = delete;

  std::vector<std::string> urls() const;  // as bound
  // Nobody comes in any more, and no call of `admit` is under way when it returns. Idempotent; blocks for handshakes
  // under way, whose connections are cut.
  void Close();

 private:
  explicit Admission(Options options) : options_(std::move(options)) {}
  Status Listen(const std::vector<std::string>& urls);
  void AcceptLoop(Listener& listener);
  bool StartHandshake(std::unique_ptr<Stream> stream);
  void Admit(std::unique_ptr<Stream> stream, uint64_t number);
  bool Enter(Stream& stream);  // false: closing
  void Leave(Stream& stream);

  const Options options_;
  std::atomic<bool> closing_{false};
  std::atomic<uint64_t> accepted_{0};
  // Shared with the handshake threads: the last of them may still notify when this object is gone.
  std::shared_ptr<std::atomic<int>> handshakes_ = std::make_shared<std::atomic<int>>(0);
  std::mutex mutex_;  // guards under_way_
  std::set<Stream*> under_way_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::thread> acceptors_;
};

}  // namespace byteps_like
