#include "csrc/transport/rdma/listener.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "csrc/base/log.h"
#include "csrc/transport/entrance/unproven.h"
#include "csrc/transport/rdma/rdma_stream.h"
#include "csrc/transport/rdma/undertaker.h"
#include "csrc/transport/stream.h"
#include "csrc/transport/tcp/listen_socket.h"

namespace byteps_like::rdma {
namespace {

using verbs::Lib;

constexpr int kBacklog = 128;
constexpr UnprovenLimits kMostPending{.all = 256};  // each pins half a MiB, and 256 KiB more for each queue pair
constexpr auto kLeastPending = std::chrono::milliseconds(250);  // a member needs less, and is not crowded out before
constexpr auto kPendingTimeout = std::chrono::seconds(5);       // from its first queue pair to its last

std::string HostOf(const verbs::CmAddress& address) {
  TcpAddress text;
  text.storage = address.storage;
  text.size = address.any.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  return text.text();
}

// As Stream::source: the request's answer goes there.
std::string SourceOf(const verbs::CmId& id) {
  const std::string host = HostOf(id.route.remote);
  return host.substr(0, host.rfind(':'));
}

bool IsWildcard(const sockaddr& address) {
  if (address.sa_family == AF_INET) return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr == INADDR_ANY;
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

}  // namespace

Result<std::unique_ptr<Listener>> RdmaListener::Make(Options options) {
  auto cookies = CookieJar::Make();
  if (!cookies.ok()) return cookies.status();
  std::unique_ptr<RdmaListener> listener(new RdmaListener(std::move(options), *cookies));
  auto channel = MakeCmChannel();
  if (!channel.ok()) return channel.status();
  listener->channel_ = std::move(*channel);
  if (Status made = listener->MakeWatch(); !made.ok()) return made;
  for (size_t rail = 0; rail < listener->options_.hosts.size(); ++rail) {
    if (Status listens = listener->Listen(rail); !listens.ok()) return listens;
  }
  return std::unique_ptr<Listener>(std::move(listener));
}

RdmaListener::~RdmaListener() {
  Close();
  for (Pending& pending : pending_) Bury(std::move(pending.endpoint), false);
}

Status RdmaListener::MakeWatch() {
  stop_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  watch_.Reset(::epoll_create1(EPOLL_CLOEXEC));
  for (const int fd : {stop_.get(), channel_->fd}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(watch_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return SystemError("epoll_ctl", errno);
  }
  return {};
}

// The first rail's port number is that of the others.
Status RdmaListener::Listen(size_t rail) {
  const std::string what = "listen on rdma " + options_.place(rail);
  auto addresses = ResolveTcp(options_.place(rail), true);
  if (!addresses.ok()) return addresses.status();
  auto id = MakeCmId(channel_);
  if (!id.ok()) return id.status();
  sockaddr* const address = addresses->front().get();
  if (Lib().cm_bind_addr(id->get(), address) != 0) {
    const char* const hint = errno == ENODEV || errno == EADDRNOTAVAIL ? " (no RDMA device has this address)" : "";
    return SystemError(what + hint, errno);
  }
  if (!IsWildcard(*address)) {
    if (Status checked = CheckDevice(**id, what); !checked.ok()) return checked;
  }
  if (Lib().cm_listen(id->get(), kBacklog) != 0) return SystemError(what, errno);
  options_.port = std::to_string(ntohs(Lib().cm_get_src_port(id->get())));
  listening_.push_back(std::move(*id));
  return {};
}

Status RdmaListener::CheckDevice(const verbs::CmId& id, const std::string& what) const {
  if (id.verbs == nullptr) return Status(Code::kSystem, what + ": no RDMA device has this address");
  const auto& wanted = options_.devices;
  const std::string name = id.verbs->device->name;
  if (wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end()) return {};
  return Status(Code::kInvalid,
                what + ": this address belongs to device " + name + ", which the option device does not name");
}

Result<std::unique_ptr<Stream>> RdmaListener::Accept(Deadline deadline) {
  while (!closed_.load()) {
    if (auto endpoint = TakeEvents()) return MakeStream(std::move(endpoint));
    auto ready = PollUntil(watch_.get(), POLLIN, std::min(deadline, DropLate()));
    if (!ready.ok()) return ready.status();
    if (closed_.load()) break;
    if (!*ready && Clock::now() >= deadline) return Status(Code::kTimeout, "nobody connected to " + url() + " in time");
  }
  return Status(Code::kClosed, "the listener on " + url() + " is closed");
}

void RdmaListener::Close() {
  if (closed_.exchange(true)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
  std::lock_guard lock(mutex_);
  listening_.clear();  // new peers are refused from here on
}

// A connection that is complete, or nullptr when there are no more events.
std::unique_ptr<Endpoint> RdmaListener::TakeEvents() {
  std::lock_guard lock(mutex_);
  while (CmEvent event = NextCmEvent(channel_)) {
    if (auto endpoint = OnEvent(std::move(event))) return endpoint;
  }
  return nullptr;
}

std::unique_ptr<Endpoint> RdmaListener::OnEvent(CmEvent event) {
  verbs::CmId* const id = event->id;
  switch (event->event) {
    case verbs::kConnectRequest:
      OnRequest(std::move(event));
      return nullptr;
    case verbs::kEstablished:
      event.reset();  // an identifier with events that live can't move to another channel
      return OnEstablished(id);
    case verbs::kConnectError:
    case verbs::kUnreachable:
    case verbs::kRejected:
    case verbs::kDisconnected:
      event.reset();
      Drop(id);
      return nullptr;
    default:
      return nullptr;
  }
}

void RdmaListener::OnRequest(CmEvent event) {
  CmId id(event->id);
  const verbs::ConnParam& said = event->param.conn;
  Greeting greeting;
  const bool whole = said.private_data != nullptr && said.private_data_len >= sizeof(greeting);
  if (whole) std::memcpy(&greeting, said.private_data, sizeof(greeting));
  event.reset();
  const Greeting ours;
  if (!whole || greeting.magic != ours.magic || greeting.layout != ours.layout || closed_.load()) {
    Lib().cm_reject(id.get(), nullptr, 0);
    return;
  }
  if (greeting.index == 0 && !MayCome(*id, greeting)) {
    greeting.cookie = CookieOf(*id, greeting);
    Lib().cm_reject(id.get(), &greeting, sizeof(greeting));
    return;
  }
  const std::string who = "rdma " + HostOf(id->route.remote);
  if (Status admitted = Admit(std::move(id), greeting); !admitted.ok()) {
    Log(LogLevel::kWarning, "refused a connection from " + who + ": " + admitted.message());
  }
}

Cookie RdmaListener::CookieOf(const verbs::CmId& id, const Greeting& greeting) const {
  return cookies_.Of(SourceOf(id), greeting.connection);
}

// False: it is to come again with its cookie. Without one it costs no memory, as its sender may have written any
// address into the request; with one it waits for those before it.
bool RdmaListener::MayCome(const verbs::CmId& id, const Greeting& greeting) {
  return SameCookie(greeting.cookie, CookieOf(id, greeting)) && MakeRoom(SourceOf(id));
}

Status RdmaListener::Admit(CmId id, const Greeting& greeting) {
  verbs::CmId* const raw = id.get();
  auto pending = PendingOf(*raw, greeting);
  Status status = pending.status();
  if (status.ok()) {
    Endpoint& endpoint = *(*pending)->endpoint;
    status = endpoint.Add(std::move(id), options_);
    if (status.ok()) status = endpoint.Connect(greeting.index, greeting);
    if (status.ok()) {
      ++(*pending)->asked;
      const Greeting answer = endpoint.GreetingOf(greeting.index);
      verbs::ConnParam param{};
      param.private_data = &answer;
      param.private_data_len = sizeof(answer);
      param.rnr_retry_count = 7;
      param.qp_num = endpoint.queue_pair(greeting.index).number();
      if (Lib().cm_accept(raw, &param) != 0) status = SystemError("rdma_accept", errno);
    }
    if (!status.ok()) pending_.remove_if([&](const Pending& one) { return &one == *pending; });
  } else {
    Lib().cm_reject(raw, nullptr, 0);
  }
  return status;
}

// Requests of one connection come one after the other.
Result<RdmaListener::Pending*> RdmaListener::PendingOf(const verbs::CmId& id, const Greeting& greeting) {
  for (Pending& pending : pending_) {
    const Greeting& first = pending.first;
    if (std::memcmp(first.connection, greeting.connection, sizeof(first.connection)) != 0) continue;
    if (greeting.count == first.count && greeting.index == pending.asked && pending.asked < first.count)
      return &pending;
    return Status(Code::kCorrupt, "its queue pairs are out of order");
  }
  if (greeting.count == 0 || greeting.count > kMaxQueuePairs || greeting.index != 0) {
    return Status(Code::kCorrupt, "its queue pairs are out of order");
  }
  auto endpoint = Endpoint::Make("rdma " + HostOf(id.route.remote), greeting.count);
  if (!endpoint.ok()) return endpoint.status();
  return &pending_.emplace_back(Pending{SourceOf(id), greeting, std::move(*endpoint)});
}

// For one more from there, before it takes up memory. False: there is none, but soon.
bool RdmaListener::MakeRoom(const std::string& source) {
  std::vector<Unproven> unproven;
  for (const Pending& pending : pending_) unproven.push_back({pending.source});
  unproven.push_back({source});
  const auto too_many = FindTooMany(unproven, kMostPending);
  if (!too_many) return true;
  const auto goes = std::next(pending_.begin(), static_cast<ptrdiff_t>(too_many->goes));
  if (Clock::now() < goes->since + kLeastPending) return false;
  pending_.erase(goes);
  return true;
}

// When the next one will be late.
Deadline RdmaListener::DropLate() {
  std::lock_guard lock(mutex_);
  const Deadline now = Clock::now();
  while (!pending_.empty() && pending_.front().since + kPendingTimeout <= now) pending_.pop_front();
  return pending_.empty() ? Deadline::max() : pending_.front().since + kPendingTimeout;
}

std::unique_ptr<Endpoint> RdmaListener::OnEstablished(verbs::CmId* id) {
  for (auto pending = pending_.begin(); pending != pending_.end(); ++pending) {
    for (uint32_t i = 0; i < pending->asked; ++i) {
      if (pending->endpoint->queue_pair(i).id() != id) continue;
      if (Lib().cm_migrate_id(id, pending->endpoint->channel().get()) != 0) break;
      if (++pending->established < pending->first.count) return nullptr;
      auto endpoint = std::move(pending->endpoint);
      pending_.erase(pending);
      return endpoint;
    }
  }
  return nullptr;
}

void RdmaListener::Drop(const verbs::CmId* id) {
  pending_.remove_if([id](const Pending& pending) {
    for (uint32_t i = 0; i < pending.asked; ++i) {
      if (pending.endpoint->queue_pair(i).id() == id) return true;
    }
    return false;
  });
}

}  // namespace byteps_like::rdma

namespace byteps_like {

Result<std::unique_ptr<Listener>> ListenRdma(const std::string& url) {
  auto options = rdma::ParseOptions(url);
  if (!options.ok()) return options.status();
  return rdma::RdmaListener::Make(std::move(*options));
}

}  // namespace byteps_like
