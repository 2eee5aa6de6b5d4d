// The connecting side: queue pair after queue pair, each in five steps of rdma_cm.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "csrc/base/entropy.h"
#include "csrc/base/thread.h"
#include "csrc/transport/rdma/rdma_stream.h"
#include "csrc/transport/stream.h"

namespace byteps_like::rdma {
namespace {

using verbs::Lib;

constexpr std::chrono::milliseconds kFirstResolve(200);
constexpr std::chrono::milliseconds kFirstPause(10), kLongestPause(200);  // before asking again, if so told

int MillisecondsUntil(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 1, 3'600'000));
}

// Where packets are to come from: only said if a device was asked for. An address without a port.
Result<TcpAddress> SourceOn(const std::string& device_name, int gid, sa_family_t family) {
  for (const LocalAddress& local : LocalAddresses()) {
    if (local.device != device_name) continue;
    if (gid >= 0) {
      auto device = Device::Open(device_name);
      if (!device.ok()) return device.status();
      return (*device)->AddressOfGid(local.port, gid);
    }
    auto addresses = ResolveTcp(local.host + ":0", false);
    if (addresses.ok() && addresses->front().storage.ss_family == family) return addresses->front();
  }
  return Status(Code::kInvalid,
                "device=" + device_name + ": no RDMA device of that name has an address of this family on this host");
}

class Connector {
 public:
  Connector(const Options& options, Deadline deadline) : options_(options), deadline_(deadline) {}

  Result<std::unique_ptr<Endpoint>> Run() {
    if (Status drawn = FillRandomly(std::as_writable_bytes(std::span(connection_))); !drawn.ok()) return drawn;
    for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
      Status connected = Try();
      if (connected.ok()) return std::move(endpoint_);
      if (!come_again_ || Clock::now() + pause >= deadline_) return connected;
      SleepFor(pause);
    }
  }

 private:
  Status Try() {
    auto made = Endpoint::Make("rdma " + options_.place(0), options_.queue_pairs());
    if (!made.ok()) return made.status();
    endpoint_ = std::move(*made);
    come_again_ = false;
    for (uint32_t index = 0; index < options_.queue_pairs(); ++index) {
      if (Status connected = ConnectOne(index); !connected.ok()) return connected;
    }
    return {};
  }

  // The listener spends memory only on peers that return its answer to a first request. That request already carries
  // the number of the queue pair that will be connected, because kernels take another connection with the same number
  // for a stale one.
  Status Knock(const std::string& what) {
    auto id = Route(0, what);
    if (!id.ok()) return id.status();
    const Greeting greeting = GreetingOf(0);
    const uint32_t pair = endpoint_->queue_pair(0).number();
    if (Status asked = Request(**id, greeting, pair, what); !asked.ok()) return asked;
    auto answer = Await(verbs::kRejected, greeting, what);
    if (answer.ok()) cookie_ = answer->cookie;
    return answer.status();
  }

  // The answer to a request, which comes with this event.
  Result<Greeting> Await(verbs::CmEventType expected, const Greeting& asked, const std::string& what) {
    auto event = AwaitCmEvent(endpoint_->channel(), what, deadline_);
    if (!event.ok()) return event.status();
    const verbs::ConnParam& said = (*event)->param.conn;
    const bool answered = (*event)->event == verbs::kConnectResponse || (*event)->event == verbs::kRejected;
    Greeting answer;
    answer.magic = 0;
    if (answered && said.private_data != nullptr && said.private_data_len >= sizeof(answer)) {
      std::memcpy(&answer, said.private_data, sizeof(answer));
    }
    const bool ours = answer.magic == asked.magic && answer.layout == asked.layout && answer.index == asked.index;
    come_again_ = ours && (*event)->event == verbs::kRejected;
    // If no process listens, the kernel refuses.
    const bool refused = (*event)->event == verbs::kRejected && !come_again_;
    if ((*event)->event != expected || refused) return Unexpected(**event, what);
    if (!ours) return Stranger(what);
    return answer;
  }

  Greeting GreetingOf(uint32_t index) const {
    Greeting greeting;
    greeting.index = static_cast<uint8_t>(index);
    greeting.count = static_cast<uint8_t>(options_.queue_pairs());
    std::memcpy(greeting.connection, connection_, sizeof(connection_));
    greeting.cookie = cookie_;
    return greeting;
  }

  static Status Request(verbs::CmId& id, const Greeting& greeting, uint32_t pair, const std::string& what) {
    verbs::ConnParam param{};
    param.private_data = &greeting;
    param.private_data_len = sizeof(greeting);
    param.retry_count = 6;
    param.rnr_retry_count = 7;
    param.qp_num = pair;
    return Lib().cm_connect(&id, &param) == 0 ? Status() : SystemError(what, errno);
  }

  Status ConnectOne(uint32_t index) {
    const uint32_t rail = index / options_.qps;
    const std::string what = "connect to rdma " + options_.place(rail);
    auto id = Route(rail, what);
    if (!id.ok()) return id.status();
    if (Status added = endpoint_->Add(std::move(*id), options_); !added.ok()) return Named(what, added);
    if (index == 0) {
      if (Status known = Knock(what); !known.ok()) return known;
    }
    auto answer = Ask(index, what);
    if (!answer.ok()) return answer.status();
    if (Status moved = endpoint_->Connect(index, *answer); !moved.ok()) return Named(what, moved);
    if (Lib().cm_establish(endpoint_->queue_pair(index).id()) != 0) return SystemError(what, errno);
    return {};
  }

  static Status Named(const std::string& what, const Status& status) {
    return Status(status.code(), what + ": " + status.message());
  }

  // An identifier that knows its device and the way.
  Result<CmId> Route(uint32_t rail, const std::string& what) {
    auto addresses = ResolveTcp(options_.place(rail), false);
    if (!addresses.ok()) return addresses.status();
    TcpAddress& to = addresses->front();
    TcpAddress from;
    if (!options_.devices.empty()) {
      auto source = SourceOn(options_.devices[rail % options_.devices.size()], options_.gid, to.storage.ss_family);
      if (!source.ok()) return Named(what, source.status());
      from = *source;
    }
    auto id = Resolve(from, to, what);
    if (!id.ok()) return id.status();
    if (Lib().cm_resolve_route(id->get(), MillisecondsUntil(deadline_)) != 0) return SystemError(what, errno);
    auto event = AwaitCmEvent(endpoint_->channel(), verbs::kRouteResolved, what, deadline_);
    if (!event.ok()) return event.status();
    return id;
  }

  // The kernel asks for the neighbour's hardware address once, and when it has overlooked the answer looks again only
  // after the timeout: so there are several, from a short one on.
  Result<CmId> Resolve(TcpAddress& from, TcpAddress& to, const std::string& what) {
    for (auto patience = kFirstResolve;; patience *= 2) {
      auto id = MakeCmId(endpoint_->channel());
      if (!id.ok()) return id.status();
      const auto limit = std::min(Clock::now() + patience, deadline_);
      sockaddr* const source = from.size == 0 ? nullptr : from.get();
      if (Lib().cm_resolve_addr(id->get(), source, to.get(), MillisecondsUntil(limit)) != 0) {
        return SystemError(what + ": no RDMA device has a route to it", errno);
      }
      // The kernel's own timeout comes first.
      auto event = AwaitCmEvent(endpoint_->channel(), verbs::kAddrResolved, what, limit + kFirstResolve);
      if (event.ok()) return id;
      if (Clock::now() >= deadline_)
        return Status(Code::kTimeout, what + ": its hardware address was not resolved in time");
      if (event.status().code() != Code::kTimeout) return event.status();
    }
  }

  Result<Greeting> Ask(uint32_t index, const std::string& what) {
    const QueuePair& pair = endpoint_->queue_pair(index);
    Greeting greeting = GreetingOf(index);
    greeting.mtu = pair.mtu();
    if (Status asked = Request(*pair.id(), greeting, pair.number(), what); !asked.ok()) return asked;
    return Await(verbs::kConnectResponse, greeting, what);
  }

  static Status Stranger(const std::string& what) {
    return Status(Code::kCorrupt, what + ": the process that answered is of another release");
  }

  const Options& options_;
  const Deadline deadline_;
  uint64_t connection_[2];
  Cookie cookie_{};
  bool come_again_ = false;  // the listener has too many from here that are not done yet
  std::unique_ptr<Endpoint> endpoint_;
};

}  // namespace
}  // namespace byteps_like::rdma

namespace byteps_like {

Status RdmaIsViable() { return rdma::IsViable(); }

Result<std::unique_ptr<Stream>> ConnectRdma(const std::string& url, Deadline deadline) {
  auto options = rdma::ParseOptions(url);
  if (!options.ok()) return options.status();
  auto endpoint = rdma::Connector(*options, deadline).Run();
  if (!endpoint.ok()) return endpoint.status();
  return rdma::MakeStream(std::move(*endpoint));
}

}  // namespace byteps_like
