#include "csrc/transport/rdma/verbs/device.h"

#include <netinet/in.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

namespace byteps_like::rdma {
namespace {

using verbs::Lib;

// A free list of the devices that the library finds.
class DeviceList {
 public:
  DeviceList() : devices_(Lib().get_device_list(&count_)) {}
  ~DeviceList() {
    if (devices_ != nullptr) Lib().free_device_list(devices_);
  }
  DeviceList(const DeviceList&) = delete;

  verbs::Device* Find(const std::string& name) const {
    for (int i = 0; devices_ != nullptr && i < count_; ++i) {
      if (name == devices_[i]->name) return devices_[i];
    }
    return nullptr;
  }
  std::string names() const {
    std::string names;
    for (int i = 0; devices_ != nullptr && i < count_; ++i) {
      names += std::string(names.empty() ? "" : ", ") + devices_[i]->name;
    }
    return names.empty() ? "none" : names;
  }

 private:
  int count_ = 0;
  verbs::Device** devices_;
};

std::string LockedLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return std::to_string(limit.rlim_cur >> 10) + " KiB";
}

}  // namespace

Result<Device*> Device::Open(const std::string& name) {
  static std::mutex mutex;
  static auto* const opened = new std::map<std::string, Device*>();
  if (auto library = verbs::Load(); !library.ok()) return library.status();
  std::lock_guard lock(mutex);
  if (const auto found = opened->find(name); found != opened->end()) return found->second;
  const DeviceList list;
  verbs::Device* const device = list.Find(name);
  if (device == nullptr) {
    return Status(Code::kSystem, "no RDMA device \"" + name + "\" on this host; available: " + list.names());
  }
  if (device->transport_type != verbs::kTransportIb) {
    return Status(Code::kSystem, "RDMA device " + name +
                                     " is neither InfiniBand nor RoCE: it lacks RDMA writes with "
                                     "immediate data (iWARP)");
  }
  errno = 0;
  verbs::Context* const context = Lib().open_device(device);
  if (context == nullptr) {
    return SystemError("open RDMA device " + name + " (/dev/infiniband/" + device->dev_name + ")", errno);
  }
  verbs::Pd* const pd = Lib().alloc_pd(context);
  if (pd == nullptr) {
    const Status status = SystemError("allocate a protection domain on " + name, errno);
    Lib().close_device(context);
    return status;
  }
  return (*opened)[name] = new Device(name, context, pd);
}

Result<Registration> Device::Register(void* data, size_t size, int access) const {
  errno = 0;
  if (verbs::Mr* const mr = Lib().reg_mr(pd_, data, size, access); mr != nullptr) return Registration(mr);
  const std::string what = "register " + std::to_string(size >> 10) + " KiB with " + name_;
  if (errno != ENOMEM && errno != EAGAIN) return SystemError(what, errno);
  return Status(Code::kSystem, what + ": the limit of locked memory is " + LockedLimit() +
                                   ": raise it (ulimit -l unlimited; in a container --ulimit memlock=-1)");
}

Result<Registration> Device::Register(const MemoryRegion& region, int access) const {
  if (region.dma_buf < 0) return Register(region.data, region.bytes, access);
  auto mr = RegisterDmaBuf(Lib(), pd_, region, access);
  if (!mr.ok()) return Status(mr.status().code(), name_ + ": " + mr.status().message());
  return Registration(*mr);
}

// The address that work requests name is the other device's own.
Result<verbs::Mr*> RegisterDmaBuf(const verbs::Library& library, verbs::Pd* pd, const MemoryRegion& region,
                                  int access) {
  if (library.reg_dmabuf_mr == nullptr) {
    return Status(Code::kSystem, "libibverbs has no ibv_reg_dmabuf_mr: it is older than rdma-core 34");
  }
  const auto iova = reinterpret_cast<uint64_t>(region.data);
  errno = 0;
  verbs::Mr* const mr = library.reg_dmabuf_mr(pd, region.dma_buf_offset, region.bytes, iova, region.dma_buf, access);
  if (mr != nullptr) return mr;
  const bool lacking = errno == EOPNOTSUPP || errno == ENOSYS || errno == EPROTONOSUPPORT;
  return SystemError("ibv_reg_dmabuf_mr of " + std::to_string(region.bytes >> 10) + " KiB" +
                         (lacking ? " (this requires Linux 5.12 and a driver that maps dma-bufs)" : ""),
                     errno);
}

bool SameHost(const sockaddr& a, const sockaddr& b) {
  if (a.sa_family != b.sa_family) return false;
  if (a.sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  }
  return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr, sizeof(in6_addr)) == 0;
}

std::string Device::GidsOf(uint8_t port, const sockaddr& address) const {
  constexpr const char* kTypes[] = {"InfiniBand", "RoCE v1", "RoCE v2"};
  verbs::PortAttr attr{};
  if (Lib().query_gid_ex == nullptr || Lib().query_port(context_, port, &attr) != 0) return {};
  std::string found;
  for (int index = 0; index < attr.gid_tbl_len; ++index) {
    verbs::GidEntry entry{};
    if (Lib().query_gid_ex(context_, port, static_cast<uint32_t>(index), &entry, 0, sizeof(entry)) != 0) continue;
    auto own = AddressOfGid(port, index);
    if (!own.ok() || !SameHost(*own->get(), address) || entry.gid_type >= std::size(kTypes)) continue;
    found += (found.empty() ? "" : ", ") + std::to_string(index) + " (" + kTypes[entry.gid_type] + ")";
  }
  return found.empty() ? "none" : found;
}

Result<TcpAddress> Device::AddressOfGid(uint8_t port, int index) const {
  const std::string what = "GID " + std::to_string(index) + " of " + name_ + ", port " + std::to_string(port);
  verbs::Gid gid{};
  if (Lib().query_gid(context_, port, index, &gid) != 0) return SystemError(what, errno);
  TcpAddress address;
  if (IN6_IS_ADDR_V4MAPPED(reinterpret_cast<const in6_addr*>(gid.raw))) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    std::memcpy(&v4.sin_addr, gid.raw + 12, 4);
    std::memcpy(&address.storage, &v4, address.size = sizeof(v4));
    return address;
  }
  if ((gid.halves[0] | gid.halves[1]) == 0) return Status(Code::kInvalid, what + " is empty");
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  std::memcpy(&v6.sin6_addr, gid.raw, 16);
  std::memcpy(&address.storage, &v6, address.size = sizeof(v6));
  return address;
}

}  // namespace byteps_like::rdma
