#include "csrc/transport/entrance/admission.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/base/thread.h"
#include "csrc/transport/entrance/unproven.h"

namespace byteps_like {
namespace {

using handshake::Reason;

constexpr auto kHelloTimeout = std::chrono::seconds(1);
constexpr auto kHandshakeTimeout = std::chrono::seconds(5);
constexpr auto kWorldTimeout = std::chrono::seconds(60);  // how long an early peer may wait
constexpr auto kAcceptPause = std::chrono::milliseconds(50);
constexpr auto kTellPause = std::chrono::seconds(10);  // between two complaints about the same
constexpr UnprovenLimits kMostUnproven{.all = 256};
constexpr size_t kMostEarly = 4096;
constexpr int kComplaintsPerSecond = 8;

}  // namespace

Deadline Admission::Visitor::deadline() const {
  if (early()) return since + kWorldTimeout;
  return since + (reception.state() == Reception::State::kHello ? Clock::duration(kHelloTimeout) : kHandshakeTimeout);
}

Result<std::unique_ptr<Admission>> Admission::Open(const std::vector<std::string>& urls, Options options) {
  if (Status valid = CheckCredentials(options.job, options.secret); !valid.ok()) return valid;
  auto keys = handshake::Keys::Of(options.secret);
  if (!keys.ok()) return keys.status();
  std::unique_ptr<Admission> admission(new Admission(std::move(options), std::move(*keys)));
  if (!admission->loop_.made().ok()) return admission->loop_.made();
  if (Status listening = admission->Listen(urls); !listening.ok()) return listening;
  return admission;
}

Admission::~Admission() { Close(); }

Status Admission::Listen(const std::vector<std::string>& urls) {
  for (const std::string& url : urls) {
    auto listener = byteps_like::Listen(url);
    if (!listener.ok()) return listener.status();
    listeners_.push_back(std::move(*listener));
  }
  auto thread = StartThread("to shake hands with", [this] { loop_.Run(); });
  if (!thread.ok()) return thread.status();
  thread_ = std::move(*thread);
  for (auto& listener : listeners_) {
    auto acceptor = StartThread("to listen with", [this, &listener] { AcceptLoop(*listener); });
    if (!acceptor.ok()) return acceptor.status();
    acceptors_.push_back(std::move(*acceptor));
  }
  return Status();
}

std::vector<std::string> Admission::urls() const {
  std::vector<std::string> urls;
  urls.reserve(listeners_.size());
  for (const auto& listener : listeners_) urls.push_back(listener->url());
  return urls;
}

void Admission::SetWorld(AdmissionWorld world) {
  loop_.Post([this, world = std::move(world)]() mutable {
    world_ = std::move(world);
    for (auto visitor = visitors_.begin(); visitor != visitors_.end();) {
      const auto next = std::next(visitor);
      if (visitor->early()) Advance(visitor);
      visitor = next;
    }
  });
}

void Admission::Close() {
  if (closing_.exchange(true)) return;
  for (auto& listener : listeners_) listener->Close();
  for (Thread& acceptor : acceptors_) acceptor.join();
  if (!thread_.joinable()) return;
  loop_.Stop();
  thread_.join();
  visitors_.clear();
}

void Admission::AcceptLoop(Listener& listener) {
  Deadline told{};
  while (!closing_) {
    places_.acquire();
    auto stream = listener.Accept(Clock::now() + std::chrono::hours(24));
    if (!stream.ok()) places_.release();
    if (!stream.ok() && stream.status().code() == Code::kClosed) return;
    if (!stream.ok()) {
      // Out of descriptors, most likely: nothing tells when there are some again.
      if (Clock::now() > told + kTellPause) {
        told = Clock::now();
        Log(LogLevel::kWarning, "can't accept connections on " + listener.url() + " now: " + stream.status().message());
      }
      SleepFor(kAcceptPause);
      continue;
    }
    // std::function wants something it can copy.
    auto shared = std::make_shared<std::unique_ptr<Stream>>(std::move(*stream));
    loop_.Post([this, shared, number = ++accepted_] {
      places_.release();
      Receive(std::move(*shared), number);
    });
  }
}

// On the loop ---------------------------------------------------------------------------------------------------------

void Admission::Receive(std::unique_ptr<Stream> stream, uint64_t number) {
  stream->UseKeys({options_.secret, {}});
  const auto visitor = visitors_.emplace(visitors_.end(), std::move(stream), keys_, options_.job, number);
  for (const int fd : visitor->stream->fds()) {
    const Status watched = loop_.Watch(fd, [this, visitor] { Advance(visitor); });
    if (!watched.ok()) return Expel(visitor, watched.message());
  }
  if (sweep_ == 0 || visitor->deadline() < sweep_at_) Sweep();
  MakeRoom(*visitor);
  Advance(visitor);
}

void Admission::MakeRoom(const Visitor& newest) {
  if (newest.source.empty()) return;
  std::vector<Unproven> unproven;
  std::vector<Visitors::iterator> places;
  size_t early = 0;
  auto oldest_early = visitors_.end();
  for (auto visitor = visitors_.begin(); visitor != visitors_.end(); ++visitor) {
    if (visitor->early() && early++ == 0) oldest_early = visitor;
    if (!visitor->counted()) continue;
    unproven.push_back({visitor->source, visitor->silent()});
    places.push_back(visitor);
  }
  if (early > kMostEarly) Expel(oldest_early, "too many connections wait for the next epoch");
  if (const auto too_many = FindTooMany(unproven, kMostUnproven)) Expel(places[too_many->goes], too_many->why);
}

// Goes on with a visitor as far as it can; it may be gone then.
void Admission::Advance(Visitors::iterator visitor) {
  Status why;
  if (Converse(*visitor, why)) {
    auto stream = std::move(visitor->stream);
    for (const int fd : stream->fds()) loop_.Unwatch(fd);
    const Admitted admitted = visitor->admitted;
    visitors_.erase(visitor);
    return options_.admit(std::move(stream), admitted);
  }
  if (why.ok()) return;
  if (why.code() == Code::kRefused) return Expel(visitor, "refused: " + why.message());
  Expel(visitor, why.message());
}

// True: it is in. Otherwise `why` it has to go, or ok if there is nothing to do now.
bool Admission::Converse(Visitor& visitor, Status& why) {
  for (bool more = true; more;) {
    if (why = Say(visitor); !why.ok() || !visitor.unsaid.empty()) return false;
    if (visitor.judged) {
      if (visitor.reception.state() != Reception::State::kRefused) return true;
      why = Status(Code::kRefused, visitor.reception.why());
      return false;
    }
    if (why = Hear(visitor, more); !why.ok()) return false;
    if (visitor.reception.state() == Reception::State::kRefused) visitor.judged = more = true;
    if (visitor.reception.state() != Reception::State::kProven || visitor.judged) continue;
    if (why = Judge(visitor); !why.ok()) return false;
    more = more || visitor.judged;
  }
  return false;
}

// Takes the bytes that have come; sets `more` if there were any.
Status Admission::Hear(Visitor& visitor, bool& more) {
  std::byte unasked;
  std::span<std::byte> room = visitor.reception.room();
  const bool nothing_due = room.empty();
  if (nothing_due) room = std::span(&unasked, 1);  // the end of the stream is still to be heard
  Result<size_t> got = visitor.stream->Read(room.data(), room.size());
  if (!got.ok()) return got.status();
  more = *got > 0;
  if (!more) return {};
  if (nothing_due) return Status(Code::kCorrupt, "it sent data before it was admitted");
  auto answer = visitor.reception.Take(*got, visitor.stream->binding());
  if (!answer.ok()) return answer.status();
  if (*answer) visitor.unsaid.assign((*answer)->begin(), (*answer)->end());
  return {};
}

Status Admission::Say(Visitor& visitor) {
  while (!visitor.unsaid.empty()) {
    const iovec piece{visitor.unsaid.data(), visitor.unsaid.size()};
    Result<size_t> said = visitor.stream->Write(std::span(&piece, 1));
    if (!said.ok()) return said.status();
    if (*said == 0) break;
    visitor.unsaid.erase(visitor.unsaid.begin(), visitor.unsaid.begin() + static_cast<ptrdiff_t>(*said));
  }
  return {};
}

// It holds the secret: is it of this world, and does it mean us? Nothing is decided while it knows of a newer world.
Status Admission::Judge(Visitor& visitor) {
  Reception& reception = visitor.reception;
  if (!world_) return {};
  const AdmissionWorld& world = *world_;
  const Introduction who = reception.who();
  if (reception.incarnation() != world.incarnation) return Conclude(visitor, reception.Refuse(Reason::kIncarnation));
  if (who.to != world.self) {
    return Conclude(visitor, reception.Refuse(Reason::kAddressee, world.rank, world.self.role));
  }
  if (reception.view() > world.view) return {};
  if (reception.view() < world.view) return Conclude(visitor, reception.Refuse(Reason::kView, world.view));
  const auto place = PlaceOf(world, who);
  if (!place) return Conclude(visitor, reception.Refuse(Reason::kMember));
  if (who.shard >= options_.shards) return Conclude(visitor, reception.Refuse(Reason::kMalformed));
  visitor.admitted = {*place, who.shard, world.view, visitor.number};
  return Conclude(visitor, reception.Welcome());
}

std::optional<uint32_t> Admission::PlaceOf(const AdmissionWorld& world, const Introduction& who) {
  if (who.from == world.self) return std::nullopt;
  auto place = static_cast<uint32_t>(world.workers.size());
  if (who.from.role == Role::kWorker) {
    const auto found = std::ranges::find(world.workers, who.from.number);
    if (found != world.workers.end()) return static_cast<uint32_t>(found - world.workers.begin());
    return std::nullopt;
  }
  for (const auto& server : world.servers) {
    if (server.member == who.from.number && who.from_shard < server.shards) return place + who.from_shard;
    place += server.shards;
  }
  return std::nullopt;
}

Status Admission::Conclude(Visitor& visitor, Result<handshake::Answer> word) {
  if (!word.ok()) return word.status();
  visitor.judged = true;
  visitor.unsaid.assign(word->begin(), word->end());
  return {};
}

void Admission::Drop(Visitors::iterator visitor) {
  for (const int fd : visitor->stream->fds()) loop_.Unwatch(fd);
  visitors_.erase(visitor);
}

void Admission::Expel(Visitors::iterator visitor, const std::string& why) {
  Complain("handshake with " + visitor->stream->peer() + ": " + why);
  Drop(visitor);
}

// Drops late connections, and looks again when the next one will be late.
void Admission::Sweep() {
  if (sweep_ != 0) loop_.CancelTimer(std::exchange(sweep_, 0));
  const Deadline now = Clock::now();
  std::optional<Deadline> next;
  for (auto visitor = visitors_.begin(); visitor != visitors_.end();) {
    const auto late = visitor++;
    const Deadline deadline = late->deadline();
    if (deadline <= now) {
      Expel(late, "it did not answer in time");
    } else {
      next = std::min(next.value_or(deadline), deadline);
    }
  }
  if (!next) return;
  sweep_at_ = *next;
  sweep_ = loop_.CallAt(*next, [this] {
    sweep_ = 0;
    Sweep();
  });
}

// Strangers may come by the thousand: a few lines per second tell as much.
void Admission::Complain(const std::string& text) {
  const Deadline now = Clock::now();
  const int unsaid = complaints_ - kComplaintsPerSecond;
  const bool fresh = now - complained_ >= std::chrono::seconds(1);
  if (fresh) {
    complained_ = now;
    complaints_ = 0;
  }
  if (++complaints_ > kComplaintsPerSecond) return;
  const std::string others = fresh && unsaid > 0 ? " (and " + std::to_string(unsaid) + " more before)" : "";
  Log(LogLevel::kWarning, text + others);
}

}  // namespace byteps_like
