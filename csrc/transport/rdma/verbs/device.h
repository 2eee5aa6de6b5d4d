// RDMA devices of this host, opened once per process and kept: registrations of long-lived memory belong to them.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "csrc/transport/memory/registered_memory.h"
#include "csrc/transport/rdma/verbs/verbs.h"
#include "csrc/transport/rdma/wire.h"
#include "csrc/transport/tcp/tcp_address.h"

namespace byteps_like::rdma {

struct MrDeleter {
  void operator()(verbs::Mr* mr) const { verbs::Lib().dereg_mr(mr); }
};
using Registration = std::unique_ptr<verbs::Mr, MrDeleter>;

struct KeyPair {  // of registered memory
  uint32_t local = 0, remote = 0;
  bool operator==(const KeyPair&) const = default;
};
using DeviceKeys = std::array<KeyPair, kMaxQueuePairs>;  // by device of a connection

// Maps another device's memory into this one by ibv_reg_dmabuf_mr: GPUDirect. kSystem, naming the missing part: the
// library (rdma-core 34), the kernel (5.12) or the device's driver.
Result<verbs::Mr*> RegisterDmaBuf(const verbs::Library& library, verbs::Pd* pd, const MemoryRegion& region, int access);

// Whether both are the same host.
bool SameHost(const sockaddr& a, const sockaddr& b);

class Device {
 public:
  // The device of this name ("mlx5_0"), opened when first asked for. Any thread. kSystem names the cause: no such
  // device, no permission on /dev/infiniband/uverbs*.
  static Result<Device*> Open(const std::string& name);

  const std::string& name() const { return name_; }
  verbs::Context* context() const { return context_; }
  verbs::Pd* pd() const { return pd_; }

  // Pins `size` bytes and lets the device read them, write them (verbs::kLocalWrite), and peers that are told the key
  // write them (kRemoteWrite). Any thread. kSystem names the limit of locked memory where that is the cause.
  Result<Registration> Register(void* data, size_t size, int access) const;

  // The same of a region, by its dma-buf where it is another device's (RegisterDmaBuf).
  Result<Registration> Register(const MemoryRegion& region, int access) const;

  // The GID at `index` of the port, as a socket address without a port; kInvalid if it is none of IP.
  Result<TcpAddress> AddressOfGid(uint8_t port, int index) const;
  // The indices of an address in the port's table, with their types: "0 (RoCE v1), 1 (RoCE v2)", "none"; "" if the
  // library can't say.
  std::string GidsOf(uint8_t port, const sockaddr& address) const;

 private:
  Device(std::string name, verbs::Context* context, verbs::Pd* pd)
      : name_(std::move(name)), context_(context), pd_(pd) {}

  const std::string name_;
  verbs::Context* const context_;
  verbs::Pd* const pd_;
};

// An address of this host that belongs to an active port of an RDMA device.
struct LocalAddress {
  std::string host;    // "10.0.0.2", "[fd00::1]"
  std::string device;  // "mlx5_0"
  uint8_t port = 0;
};

// In the order of the host's interfaces; none where RDMA is not viable. Loopback and link-local addresses are left out.
std::vector<LocalAddress> LocalAddresses();

// Why RDMA can't be used here: libraries, devices, addresses, permission, memory. Found out once, but for kCapacity.
Status IsViable();

}  // namespace byteps_like::rdma
