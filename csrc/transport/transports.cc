#include "csrc/transport/transports.h"

#include "csrc/transport/chaos.h"
#include "csrc/transport/url.h"

namespace byteps_like {
namespace {

std::string Always() { return {}; }

constexpr Transport kTransports[] = {
    {"inproc", Always, ConnectInproc, ListenInproc},
    {"shm", ShmIsViable, ConnectShm, ListenShm},
    {"tcp", Always, ConnectTcp, ListenTcp},
};

Result<const Transport*> Find(const Url& url, const std::string& text) {
  for (const Transport& transport : kTransports) {
    if (transport.scheme != url.scheme) continue;
    if (const std::string why = transport.is_viable(); !why.empty()) {
      return Status(Code::kInvalid, "address " + text + ": " + url.scheme + " can't run here: " + why);
    }
    return &transport;
  }
  return Status(Code::kInvalid, "address " + text + ": unknown scheme \"" + url.scheme + "\"");
}

}  // namespace

std::span<const Transport> Transports() { return kTransports; }

Status Stream::PassBuffer(const SharedBuffer&) { return Status(Code::kInvalid, peer() + " shares no memory"); }

Result<std::shared_ptr<SharedBuffer>> Stream::TakeBuffer() {
  return Status(Code::kInvalid, peer() + " shares no memory");
}

Result<std::unique_ptr<Stream>> Connect(const std::string& url, Deadline deadline) {
  auto parsed = ParseUrl(url);
  if (!parsed.ok()) return parsed.status();
  auto transport = Find(*parsed, url);
  if (!transport.ok()) return transport.status();
  auto options = ParseChaosOptions(*parsed);
  if (!options.ok()) return options.status();
  auto stream = (*transport)->connect(parsed->inner(), deadline);
  if (!stream.ok() || !parsed->chaos) return stream;
  return WrapInChaos(std::move(*stream), *options, url);
}

Result<std::unique_ptr<Listener>> Listen(const std::string& url) {
  auto parsed = ParseUrl(url);
  if (!parsed.ok()) return parsed.status();
  auto transport = Find(*parsed, url);
  if (!transport.ok()) return transport.status();
  auto options = ParseChaosOptions(*parsed);
  if (!options.ok()) return options.status();
  auto listener = (*transport)->listen(parsed->inner());
  if (!listener.ok() || !parsed->chaos) return listener;
  return WrapListenerInChaos(std::move(*listener), *options, parsed->query_text);
}

}  // namespace byteps_like
