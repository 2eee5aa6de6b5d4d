#include "csrc/transport/rdma/device.h"

#include <netinet/in.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
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
    return Status(Code::kSystem, "no RDMA device \"" + name + "\" here; there are: " + list.names());
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
