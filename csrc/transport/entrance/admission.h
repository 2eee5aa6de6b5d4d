// Admits peers: listens, shakes hands with every peer that connects, and hands on the streams of those that hold the
// job's secret and address this very member.
//
// All handshakes run on one loop, without a thread each, so that an unproven peer costs no more than a connection.
// There are at most 256 of them, and at most 16 per address that have sent nothing valid yet; the oldest is dropped
// first. Each has one second until its HELLO, and five in all. Processes of this user (inproc, shm) aren't counted:
// they could do worse.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/thread.h"
#include "csrc/transport/entrance/handshake.h"
#include "csrc/transport/entrance/reception.h"
#include "csrc/transport/loop/event_loop.h"
#include "csrc/transport/stream.h"

namespace byteps_like {

// The identity under which this process is dialled, and the peers that may dial it.
struct AdmissionWorld {
  Incarnation incarnation{};
  uint32_t view = 0;
  MemberId self;
  uint32_t rank = 0;              // of self, for peers that meant another process
  std::vector<uint32_t> workers;  // member numbers, by rank
  // Of servers that dial this one, a place for each of their shards, which are in order: behind those of the workers.
  struct Dialling {
    uint32_t member = 0, shards = 0;
  };
  std::vector<Dialling> servers = {};
};

struct Admitted {
  uint32_t rank = 0;  // of a worker; of a server's shard its place
  uint32_t shard = 0;
  uint32_t view = 0;
  uint64_t number = 0;  // counts connections in the order of their acceptance
};

class Admission {
 public:
  struct Options {
    std::string job;
    std::string secret;
    uint32_t shards = 1;  // links for others are refused
    // A peer was admitted. Called on the admission's thread.
    std::function<void(std::unique_ptr<Stream>, const Admitted&)> admit;
  };

  // kInvalid for impossible credentials, or the listeners' failure.
  static Result<std::unique_ptr<Admission>> Open(const std::vector<std::string>& urls, Options options);
  ~Admission();
  Admission(const Admission&) = delete;

  std::vector<std::string> urls() const;  // as bound
  // From now on members of this world are let in. A peer that has proven that it knows of a newer world waits for that
  // one, a minute at most. Any thread.
  void SetWorld(AdmissionWorld world);
  // Admits no more peers; when it returns, no call of `admit` is under way. Idempotent. Not on the admission's thread.
  void Close();

 private:
  struct Visitor {  // a connection between its acceptance and its admission
    Visitor(std::unique_ptr<Stream> from, const handshake::Keys& keys, const std::string& job, uint64_t count)
        : stream(std::move(from)), reception(keys, job), source(stream->source()), number(count) {}
    bool counted() const { return !source.empty() && reception.state() != Reception::State::kProven; }
    bool silent() const { return counted() && reception.state() == Reception::State::kHello; }
    bool early() const { return reception.state() == Reception::State::kProven && !judged; }
    Deadline deadline() const;

    std::unique_ptr<Stream> stream;
    Reception reception;
    const std::string source;
    const uint64_t number;
    const Deadline since = Clock::now();
    std::vector<std::byte> unsaid;
    bool judged = false;  // what is unsaid is the last word
    Admitted admitted;
  };
  using Visitors = std::list<Visitor>;
  // Accepted, but not yet seen by the loop. Connections that arrive faster than the loop looks at them wait in the
  // kernel.
  static constexpr int kMostUnseen = 32;

  Admission(Options options, handshake::Keys keys) : options_(std::move(options)), keys_(std::move(keys)) {}
  Status Listen(const std::vector<std::string>& urls);
  void AcceptLoop(Listener& listener);

  // On the loop.
  void Receive(std::unique_ptr<Stream> stream, uint64_t number);
  void MakeRoom(const Visitor& newest);
  void Advance(Visitors::iterator visitor);
  bool Converse(Visitor& visitor, Status& why);
  Status Hear(Visitor& visitor, bool& more);
  Status Say(Visitor& visitor);
  Status Judge(Visitor& visitor);
  static std::optional<uint32_t> PlaceOf(const AdmissionWorld& world, const Introduction& who);
  static Status Conclude(Visitor& visitor, Result<handshake::Answer> word);
  void Drop(Visitors::iterator visitor);
  void Expel(Visitors::iterator visitor, const std::string& why);
  void Sweep();
  void Complain(const std::string& text);

  const Options options_;
  const handshake::Keys keys_;
  std::atomic<bool> closing_{false};
  std::atomic<uint64_t> accepted_{0};
  EventLoop loop_;
  Semaphore places_{kMostUnseen};
  Visitors visitors_;  // in the order of their acceptance
  std::optional<AdmissionWorld> world_;
  uint64_t sweep_ = 0;  // the timer, if there is one
  Deadline sweep_at_{};
  Deadline complained_{};  // when a line was logged first, in this second
  int complaints_ = 0;     // since then
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<Thread> acceptors_;
  Thread thread_;
};

}  // namespace byteps_like
