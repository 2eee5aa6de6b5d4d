// Addresses of rdma, and the ones that this host has.
#include <doctest/doctest.h>

#include "csrc/transport/rdma/options.h"
#include "csrc/transport/rdma/verbs/verbs.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {

TEST_CASE("rdma: an address says hosts, port and options") {
  auto options = rdma::ParseOptions("rdma://10.0.0.2,[fd00::2]:4711?device=a,b&gid=3&mtu=1024&qps=2&ack_timeout=14");
  REQUIRE_MESSAGE(options.ok(), options.status().message());
  CHECK(options->hosts == std::vector<std::string>{"10.0.0.2", "[fd00::2]"});
  CHECK(options->place(1) == "[fd00::2]:4711");
  CHECK(options->devices == std::vector<std::string>{"a", "b"});
  CHECK(options->gid == 3);
  CHECK(options->mtu == 1024);
  CHECK(options->queue_pairs() == 4);
  CHECK(options->ack_timeout == 14);
  CHECK(options->url() ==
        "rdma://10.0.0.2,[fd00::2]:4711?qps=2&ack_timeout=14");  // devices, GIDs and MTU are each end's own
}

TEST_CASE("rdma: a wrong address is an error that names what is wrong") {
  const struct {
    const char *url, *what;
  } cases[] = {
      {"rdma://10.0.0.2", "host:port"},         {"rdma://:1", "host:port"},
      {"rdma://fd00::2:1", "brackets"},         {"rdma://a,,b:1", "a host is empty"},
      {"rdma://a:1?gid=-1", "gid=-1"},          {"rdma://a:1?gid=256", "255"},
      {"rdma://a:1?mtu=1500", "1024"},          {"rdma://a:1?qps=0", "from 1 to 8"},
      {"rdma://a,b:1?qps=5", "more than"},      {"rdma://a:1?device=a,", "empty"},
      {"rdma://a:1?ack_timeout=32", "1 to 31"},
  };
  for (const auto& one : cases) {
    CAPTURE(one.url);
    const Status status = rdma::ParseOptions(one.url).status();
    CHECK(status.code() == Code::kInvalid);
    CHECK(status.message().find(one.what) != std::string::npos);
    CHECK(status.message().find(one.url) != std::string::npos);
  }
}

TEST_CASE("rdma: where it can't run, connecting and listening say why") {
  const Status viable = rdma::IsViable();
  if (viable.ok()) return;
  MESSAGE(viable.message());
  for (const Status& status :
       {Connect("rdma://10.0.0.2:1?qps=2", In(1)).status(), Listen("rdma://10.0.0.2:0").status()}) {
    CHECK(status.code() == viable.code());
    CHECK(status.message().find(viable.message()) != std::string::npos);
  }
  CHECK(rdma::LocalAddresses().empty());
}

TEST_CASE("rdma: statuses of the verbs have their names") {
  CHECK(std::string(verbs::NameOf(verbs::kWcRetryExcErr)) == "IBV_WC_RETRY_EXC_ERR");
  CHECK(std::string(verbs::NameOf(verbs::kWcWrFlushErr)) == "IBV_WC_WR_FLUSH_ERR");
  CHECK(std::string(verbs::NameOf(static_cast<verbs::WcStatus>(99))) == "an unknown status");
  CHECK(std::string(verbs::NameOf(verbs::kRejected)) == "RDMA_CM_EVENT_REJECTED");
}

}  // namespace byteps_like::testing
