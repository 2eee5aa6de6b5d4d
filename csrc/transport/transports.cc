#include "csrc/transport/transports.h"

#include <memory>
#include <optional>
#include <string>

#include "csrc/transport/chaos/chaos.h"
#include "csrc/transport/links/link.h"
#include "csrc/transport/rdma/options.h"
#include "csrc/transport/tls/connection.h"
#include "csrc/transport/tls/tls_stream.h"
#include "csrc/transport/url.h"

namespace byteps_like {

// Each transport's file defines a pair of these, and says by a Status why it can't run on this host if it may be so.
Result<std::unique_ptr<Stream>> ConnectInproc(const std::string& url, Deadline deadline);
Result<std::unique_ptr<Listener>> ListenInproc(const std::string& url);

Result<std::unique_ptr<Stream>> ConnectTcp(const std::string& url, Deadline deadline);
Result<std::unique_ptr<Listener>> ListenTcp(const std::string& url);

Status ShmIsViable();
Result<std::unique_ptr<Stream>> ConnectShm(const std::string& url, Deadline deadline);
Result<std::unique_ptr<Listener>> ListenShm(const std::string& url);

Status RdmaIsViable();
Result<std::unique_ptr<Stream>> ConnectRdma(const std::string& url, Deadline deadline);
Result<std::unique_ptr<Listener>> ListenRdma(const std::string& url);

Status SimIsViable();
Result<std::unique_ptr<Stream>> ConnectSim(const std::string& url, Deadline deadline);
Result<std::unique_ptr<Listener>> ListenSim(const std::string& url);

namespace {

Status Always() { return {}; }

constexpr Transport kTransports[] = {
    {"inproc", Always, ConnectInproc, ListenInproc},
    {"shm", ShmIsViable, ConnectShm, ListenShm},
    {"tcp", Always, ConnectTcp, ListenTcp},
    {"tls+tcp", tls::Connection::IsViable, ConnectTcp, ListenTcp, {}, true},
    {"rdma", RdmaIsViable, ConnectRdma, ListenRdma, rdma::kOptionNames},
    {"sim", SimIsViable, ConnectSim, ListenSim},
};

const Transport* added = nullptr;

Result<const Transport*> Find(const Url& url, const std::string& text) {
  if (added != nullptr && added->scheme == url.scheme) return added;
  for (const Transport& transport : kTransports) {
    if (transport.scheme != url.scheme) continue;
    if (const Status viable = transport.is_viable(); !viable.ok()) {
      return Status(viable.code(), "address " + text + ": " + url.scheme + " can't run here: " + viable.message());
    }
    return &transport;
  }
  return Status(Code::kInvalid, "address " + text + ": unknown scheme \"" + url.scheme + "\"");
}

struct Address {
  const Transport* transport = nullptr;
  std::string inner;  // the address for the transport
  std::optional<ChaosOptions> chaos;
  std::string chaos_query;
};

Result<Address> Resolve(const std::string& text) {
  auto url = ParseUrl(text);
  if (!url.ok()) return url.status();
  auto transport = Find(*url, text);
  if (!transport.ok()) return transport.status();
  Address address{*transport, url->TakeInner((*transport)->options), std::nullopt, ""};
  if ((*transport)->encrypts) address.inner.erase(0, std::string_view("tls+").size());
  if (!url->chaos && !url->query.empty()) {
    return Status(Code::kInvalid, "address " + text + ": it takes no option \"" + url->query.begin()->first + "\"");
  }
  if (!url->chaos) return address;
  auto options = ParseChaosOptions(*url);
  if (!options.ok()) return options.status();
  address.chaos = *options;
  address.chaos_query = url->query_text;
  return address;
}

}  // namespace

std::span<const Transport> Transports() { return kTransports; }
void AddTransport(const Transport& transport) { added = &transport; }

std::string TransportOf(const Link& link) {
  constexpr std::string_view kWrapped = "chaos ";
  std::string peer = link.peer();
  while (peer.starts_with(kWrapped)) peer.erase(0, kWrapped.size());
  return peer.substr(0, peer.find(' '));
}

// Chaos is what happens to the bytes on their way, so what encrypts them is around it.
Result<std::unique_ptr<Stream>> Connect(const std::string& url, Deadline deadline) {
  auto address = Resolve(url);
  if (!address.ok()) return address.status();
  auto stream = address->transport->connect(address->inner, deadline);
  if (stream.ok() && address->chaos) stream = WrapInChaos(std::move(*stream), *address->chaos, url);
  if (!stream.ok() || !address->transport->encrypts) return stream;
  return WrapInTls(std::move(*stream), true);
}

Result<std::unique_ptr<Listener>> Listen(const std::string& url) {
  auto address = Resolve(url);
  if (!address.ok()) return address.status();
  auto listener = address->transport->listen(address->inner);
  if (!listener.ok()) return listener;
  if (address->chaos) listener = WrapListenerInChaos(std::move(*listener), *address->chaos, address->chaos_query);
  if (!address->transport->encrypts) return listener;
  return WrapListenerInTls(std::move(*listener));
}

}  // namespace byteps_like
