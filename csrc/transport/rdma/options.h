// The options of an rdma address besides the place: "rdma://10.0.0.2,10.1.0.2:4711?qps=2&device=mlx5_0,mlx5_1". Several
// hosts are several rails of the same two ends; each has its own queue pairs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/transport/rdma/wire.h"

namespace byteps_like::rdma {

inline constexpr std::string_view kOptionNames[] = {"device", "gid", "mtu", "qps", "ack_timeout"};

struct Options {
  std::vector<std::string> hosts;    // one per rail, as given
  std::string port;                  // the same on all of them
  std::vector<std::string> devices;  // of this side, one per rail, in turn; none: the one that routes to the host
  int gid = -1;                      // index in the GID table of this side's port; -1: as rdma_cm chooses
  uint32_t mtu = 0;                  // bytes of payload in a packet at most; 0: as much as both ports carry
  uint32_t qps = 1;                  // queue pairs per rail; the connecting side's word counts
  uint8_t ack_timeout = 17;          // exponent: 4.096 us * 2^ack_timeout until a packet is sent again, 6 times

  uint32_t queue_pairs() const { return static_cast<uint32_t>(hosts.size()) * qps; }
  std::string place(size_t rail) const { return hosts[rail] + ":" + port; }
  std::string url() const;  // with the options that the other side needs: hosts, port, qps, ack_timeout
};

// kInvalid names the error in the text.
Result<Options> ParseOptions(const std::string& url);

}  // namespace byteps_like::rdma
