// Whether RDMA can be used on this host, and by which addresses.
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "csrc/transport/rdma/verbs/cm.h"
#include "csrc/transport/rdma/verbs/device.h"

namespace byteps_like::rdma {
namespace {

using verbs::Lib;

constexpr size_t kProbeBytes = 4u << 20;  // more than a link pins

bool MayHaveDevice(const ifaddrs& interface) {
  if (interface.ifa_addr == nullptr || (interface.ifa_flags & IFF_UP) == 0) return false;
  if ((interface.ifa_flags & IFF_LOOPBACK) != 0) return false;
  if (interface.ifa_addr->sa_family == AF_INET) return true;
  if (interface.ifa_addr->sa_family != AF_INET6) return false;
  return !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(interface.ifa_addr)->sin6_addr);
}

std::string HostText(const sockaddr& address) {
  TcpAddress copy;
  copy.size = address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&copy.storage, &address, copy.size);
  const std::string text = copy.text();
  return text.substr(0, text.rfind(':'));
}

bool IsActive(const LocalAddress& address) {
  auto device = Device::Open(address.device);
  if (!device.ok()) return false;
  verbs::PortAttr port{};
  return Lib().query_port((*device)->context(), address.port, &port) == 0 && port.state == verbs::kPortActive;
}

// rdma_cm knows which device an address belongs to, on RoCE, InfiniBand and iWARP alike.
std::vector<LocalAddress> Probe(const CmChannel& channel) {
  std::vector<LocalAddress> found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, ::freeifaddrs);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (!MayHaveDevice(*one)) continue;
    auto id = MakeCmId(channel);
    if (!id.ok() || Lib().cm_bind_addr(id->get(), one->ifa_addr) != 0 || (*id)->verbs == nullptr) continue;
    LocalAddress address{HostText(*one->ifa_addr), (*id)->verbs->device->name, (*id)->port_num};
    if (IsActive(address)) found.push_back(std::move(address));
  }
  return found;
}

// Whether the device can be opened, and be given memory.
Status IsUsable(const std::string& name) {
  auto device = Device::Open(name);
  if (!device.ok()) return device.status();
  void* const memory = ::mmap(nullptr, kProbeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return SystemError("allocate memory to test " + name + " with", errno);
  Status registered = (*device)->Register(memory, kProbeBytes, verbs::kLocalWrite).status();
  ::munmap(memory, kProbeBytes);
  return registered;
}

// Whether one of the devices can be used; otherwise the reason why the first can't.
Status IsOneUsable() {
  int count = 0;
  verbs::Device** const list = Lib().get_device_list(&count);
  std::vector<std::string> names;
  for (int i = 0; list != nullptr && i < count; ++i) names.emplace_back(list[i]->name);
  if (list != nullptr) Lib().free_device_list(list);
  if (names.empty()) return Status(Code::kInvalid, "there is no RDMA device (ibv_devices lists none)");
  Status first;
  for (const std::string& name : names) {
    Status usable = IsUsable(name);
    if (usable.ok()) return usable;
    if (first.ok()) first = std::move(usable);
  }
  return first;
}

Status FindOut() {
  if (auto library = verbs::Load(); !library.ok()) return library.status();
  if (Status usable = IsOneUsable(); !usable.ok()) return usable;
  auto channel = MakeCmChannel();
  if (!channel.ok()) {
    const Status& why = channel.status();
    return Status(why.code(), why.message() + " (is the kernel module rdma_ucm loaded?)");
  }
  if (!Probe(*channel).empty()) return {};
  return Status(Code::kInvalid, "no address of this host belongs to an active port of an RDMA device");
}

}  // namespace

Status IsViable() {
  static std::mutex mutex;
  static const Status* known = nullptr;
  std::lock_guard lock(mutex);
  if (known != nullptr) return *known;
  Status found = FindOut();
  if (found.code() != Code::kCapacity) known = new Status(found);
  return found;
}

std::vector<LocalAddress> LocalAddresses() {
  if (!IsViable().ok()) return {};
  auto channel = MakeCmChannel();
  if (!channel.ok()) return {};
  return Probe(*channel);
}

}  // namespace byteps_like::rdma
