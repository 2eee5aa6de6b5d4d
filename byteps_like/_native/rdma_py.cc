// The RDMA devices of this host, for byteps_like/control/hosts/rdma.py to choose from.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "byteps_like/_native/events.h"
#include "csrc/transport/rdma/verbs/device.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

using Addresses = std::vector<std::pair<std::string, std::string>>;

std::pair<std::string, Addresses> Host() {
  return BlockWithoutGil([] {
    Addresses addresses;
    for (const rdma::LocalAddress& one : rdma::LocalAddresses()) addresses.emplace_back(one.host, one.device);
    return std::pair(rdma::IsViable().message(), std::move(addresses));
  });
}

}  // namespace

void BindRdma(nb::module_& m) {
  m.def("rdma_host", &Host,
        "Why RDMA can't be used here (\"\" if it can), and the addresses (host, device) of devices.");
}

}  // namespace byteps_like
