// Admits peers: listens, shakes hands with every peer that connects, and hands on the streams of those that hold the
// job's secret and address this very member. What is no link is passed on to who answers such connections in this
// process, if somebody does.
//
// All handshakes run on one loop, without a thread each, so that an unproven peer costs no more than a connection.
// They have at most 224 descriptors, and at most 16 per address have sent nothing valid yet; the oldest is dropped
// first. Each has one second until its HELLO, or until it can be seen what it is, and five for the handshake; a guest
// counts until it has proven the secret to who answers it. Processes of this user (inproc, shm) aren't counted: they
// could do worse.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/thread.h"
#include "csrc/transport/entrance/guests.h"
#include "csrc/transport/entrance/handshake.h"
#include "csrc/transport/entrance/visitor.h"
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

// How many connections there were, and what became of them.
struct AdmissionFigures {
  std::atomic<uint64_t> accepted{0};
  std::atomic<uint64_t> admitted{0};   // as links
  std::atomic<uint64_t> passed_on{0};  // as guests
  // Of those that weren't, and of guests:
  std::atomic<uint64_t> refused{0};      // they said something wrong
  std::atomic<uint64_t> late{0};         // they said nothing in time
  std::atomic<uint64_t> crowded_out{0};  // by later ones, before any proof
};

class Admission {
 public:
  struct Options {
    std::string job;
    std::string secret;
    uint32_t shards = 1;  // links for others are refused
    // A peer was admitted. Called on the admission's thread. Without it only guests are expected.
    std::function<void(std::unique_ptr<Stream>, const Admitted&)> admit;
    std::map<Opening, std::string> guests = {};  // expected from the beginning, and where they are passed on to
  };

  // kInvalid for impossible credentials, or the listeners' failure.
  static Result<std::unique_ptr<Admission>> Open(const std::vector<std::string>& urls, Options options);
  ~Admission();
  Admission(const Admission&) = delete;

  std::vector<std::string> urls() const;  // as bound
  // From now on members of this world are let in. A peer that has proven that it knows of a newer world waits for that
  // one, a minute at most. Any thread.
  void SetWorld(AdmissionWorld world);
  Guests& guests() { return guests_; }
  const AdmissionFigures& figures() const { return figures_; }
  // Listens no more; who is here already stays. Idempotent. Not on the admission's thread.
  void StopListening();
  // Admits no more peers; when it returns, no call of `admit` is under way. Idempotent. Not on the admission's thread.
  void Close();

 private:
  using Visitors = std::list<Visitor>;
  // Accepted, but not yet seen by the loop. Connections that arrive faster than the loop looks at them wait in the
  // kernel.
  static constexpr int kMostUnseen = 32;

  Admission(Options options, handshake::Keys keys) : options_(std::move(options)), keys_(std::move(keys)) {}
  Status Listen(const std::vector<std::string>& urls);
  void AcceptLoop(Listener& listener);

  // On the loop.
  void Receive(std::unique_ptr<Stream> stream, uint64_t number);
  bool Watch(Visitors::iterator visitor);
  bool MakeRoom(Visitors::iterator newest);
  void Advance(Visitors::iterator visitor);
  void PassOn(Visitors::iterator guest);
  void Attend(Visitors::iterator guest);
  void Admit(Visitors::iterator visitor);
  Status Judge(Visitor& visitor);
  static std::optional<uint32_t> PlaceOf(const AdmissionWorld& world, const Introduction& who);
  void Drop(Visitors::iterator visitor);
  void Expel(Visitors::iterator visitor, const std::string& why);
  void Sweep();
  void Complain(const std::string& text);

  const Options options_;
  const handshake::Keys keys_;
  const StreamKeys keys_of_streams_{options_.secret, {}};
  std::atomic<bool> closing_{false};
  AdmissionFigures figures_;
  Guests guests_;
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
