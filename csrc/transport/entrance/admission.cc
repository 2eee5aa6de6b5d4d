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

constexpr auto kAcceptPause = std::chrono::milliseconds(50);
constexpr auto kTellPause = std::chrono::seconds(10);  // between two complaints about the same
constexpr UnprovenLimits kMostUnproven{.all = 224};    // those that end just now come on top
constexpr size_t kMostEarly = 4096;
constexpr int kComplaintsPerSecond = 8;

}  // namespace

Result<std::unique_ptr<Admission>> Admission::Open(const std::vector<std::string>& urls, Options options) {
  if (Status valid = CheckCredentials(options.job, options.secret); !valid.ok()) return valid;
  auto keys = handshake::Keys::Of(options.secret);
  if (!keys.ok()) return keys.status();
  std::unique_ptr<Admission> admission(new Admission(std::move(options), std::move(*keys)));
  for (const auto& [opening, path] : admission->options_.guests) admission->guests_.PassOn(opening, path);
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

void Admission::StopListening() {
  if (closing_.exchange(true)) return;
  for (auto& listener : listeners_) listener->Close();
  for (Thread& acceptor : acceptors_) acceptor.join();
}

void Admission::Close() {
  StopListening();
  if (!thread_.joinable()) return;
  loop_.Stop();
  thread_.join();
  while (!visitors_.empty()) {
    if (Passage* const passage = visitors_.front().passage()) {  // what was said to it last
      guests_.Leave(*passage);
      (void)passage->Pump().ok();
    }
    visitors_.pop_front();
  }
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
    loop_.Post([this, shared, number = ++figures_.accepted] {
      places_.release();
      Receive(std::move(*shared), number);
    });
  }
}

// On the loop ---------------------------------------------------------------------------------------------------------

void Admission::Receive(std::unique_ptr<Stream> stream, uint64_t number) {
  const auto visitor = visitors_.emplace(visitors_.end(), std::move(stream), keys_, options_.job, number);
  if (!Watch(visitor)) return;
  if (sweep_ == 0 || visitor->deadline() < sweep_at_) Sweep();
  while (MakeRoom(visitor)) {
  }
  Advance(visitor);
}

// False: it is gone.
bool Admission::Watch(Visitors::iterator visitor) {
  for (const int fd : visitor->fds()) {
    const Status watched = loop_.Watch(fd, [this, visitor] { Advance(visitor); });
    if (watched.ok()) continue;
    Expel(visitor, watched.message());
    return false;
  }
  return true;
}

// Makes one go, never this one, if there are too many. To be repeated while it returns true.
bool Admission::MakeRoom(Visitors::iterator newest) {
  if (!newest->unproven()) return false;
  std::vector<Unproven> unproven;
  std::vector<Visitors::iterator> places;
  size_t early = 0;
  auto oldest_early = visitors_.end();
  for (auto visitor = visitors_.begin(); visitor != visitors_.end(); ++visitor) {
    if (visitor->early() && early++ == 0) oldest_early = visitor;
    if (!visitor->unproven() || visitor == newest) continue;
    unproven.push_back({visitor->source(), visitor->silent(), visitor->descriptors()});
    places.push_back(visitor);
  }
  unproven.push_back({newest->source(), newest->silent(), newest->descriptors()});
  if (early > kMostEarly) Expel(oldest_early, "too many connections wait for the next epoch");
  const auto too_many = FindTooMany(unproven, kMostUnproven);
  if (!too_many) return false;
  ++figures_.crowded_out;
  Expel(places[too_many->goes], too_many->why);
  return true;
}

// Goes on with a visitor as far as it can; it may be gone then.
void Admission::Advance(Visitors::iterator visitor) {
  if (visitor->passage() != nullptr) return Attend(visitor);
  auto recognised = visitor->Recognise(guests_, keys_of_streams_);
  if (!recognised.ok()) return Expel(visitor, recognised.status().message());
  if (!*recognised) return;
  if (visitor->opening() != Opening::kLink) return PassOn(visitor);
  if (!options_.admit) {
    ++figures_.refused;
    return Expel(visitor, "what it says is not for this port");
  }
  Status why;
  if (visitor->Converse([this](Visitor& one) { return Judge(one); }, why)) return Admit(visitor);
  if (why.ok()) return;
  if (why.code() == Code::kRefused || why.code() == Code::kCorrupt) ++figures_.refused;
  Expel(visitor, (why.code() == Code::kRefused ? "refused: " : "") + why.message());
}

void Admission::Admit(Visitors::iterator visitor) {
  for (const int fd : visitor->fds()) loop_.Unwatch(fd);
  auto stream = visitor->TakeStream();
  const Admitted admitted = visitor->admitted();
  visitors_.erase(visitor);
  ++figures_.admitted;
  options_.admit(std::move(stream), admitted);
}

// Passes on a visitor that has said what it is.
void Admission::PassOn(Visitors::iterator guest) {
  for (const int fd : guest->fds()) loop_.Unwatch(fd);
  const std::string peer = guest->peer();
  if (const Status passed = guest->BecomeGuest(guests_); !passed.ok()) {
    visitors_.erase(guest);
    const std::string why = "a connection of " + peer + " can't be passed on: " + passed.message();
    if (!closing_) Log(LogLevel::kWarning, why);
    return;
  }
  ++figures_.passed_on;
  if (!Watch(guest)) return;
  while (MakeRoom(guest)) {
  }
  Attend(guest);
}

void Admission::Attend(Visitors::iterator guest) {
  if (!guest->passage()->Pump().ok()) Drop(guest);
}

// It holds the secret: is it of this world, and does it mean us? Nothing is decided while it knows of a newer world.
Status Admission::Judge(Visitor& visitor) {
  Reception& reception = visitor.reception();
  if (!world_) return {};
  const AdmissionWorld& world = *world_;
  const Introduction who = reception.who();
  if (reception.incarnation() != world.incarnation) return visitor.Conclude(reception.Refuse(Reason::kIncarnation));
  if (who.to != world.self) {
    return visitor.Conclude(reception.Refuse(Reason::kAddressee, world.rank, world.self.role));
  }
  if (reception.view() > world.view) return {};
  if (reception.view() < world.view) return visitor.Conclude(reception.Refuse(Reason::kView, world.view));
  const auto place = PlaceOf(world, who);
  if (!place) return visitor.Conclude(reception.Refuse(Reason::kMember));
  if (who.shard >= options_.shards) return visitor.Conclude(reception.Refuse(Reason::kMalformed));
  visitor.Admit({*place, who.shard, world.view, visitor.number()});
  return visitor.Conclude(reception.Welcome());
}

std::optional<uint32_t> Admission::PlaceOf(const AdmissionWorld& world, const Introduction& who) {
  auto place = static_cast<uint32_t>(world.workers.size());
  if (who.from.role == Role::kWorker) {
    if (who.from == world.self) return std::nullopt;
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

void Admission::Drop(Visitors::iterator visitor) {
  for (const int fd : visitor->fds()) loop_.Unwatch(fd);
  if (visitor->passage() != nullptr) guests_.Leave(*visitor->passage());
  visitors_.erase(visitor);
}

void Admission::Expel(Visitors::iterator visitor, const std::string& why) {
  if (options_.admit) Complain("handshake with " + visitor->peer() + ": " + why);  // else counters tell enough
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
      ++figures_.late;
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
