// Who connects by rdma_cm and has not shown yet that it belongs to the job may say anything.
#include <cstring>
#include <future>

#include "csrc/transport/rdma/endpoint.h"
#include "csrc/transport/tcp_address.h"
#include "tests/native/rdma_fixture.h"

namespace byteps_like::testing {
namespace {

// A connection that asks for one queue pair after the other as it is told to.
class Stranger {
 public:
  explicit Stranger(const std::string& place) : place_(place) {
    auto endpoint = rdma::Endpoint::Make("stranger", 8);
    REQUIRE(endpoint.ok());
    endpoint_ = std::move(*endpoint);
  }

  // Writes to memory of whose key it has heard by the last queue pair; what its device says to that.
  Status Write(const Memory& memory, uint32_t key) {
    REQUIRE(endpoint_->Connect(asked_ - 1, answer_).ok());
    rdma::QueuePair& pair = endpoint_->queue_pair(asked_ - 1);
    REQUIRE(verbs::Lib().cm_establish(pair.id()) == 0);
    Memory bytes(4096);
    std::fill_n(bytes.data(), 4096, std::byte{7});
    auto device = rdma::Device::Open(pair.id()->verbs->device->name);
    auto from = (*device)->Register(bytes.data(), 4096, verbs::kLocalWrite);
    verbs::Sge piece{reinterpret_cast<uint64_t>(bytes.data()), 4096, (*from)->lkey};
    verbs::SendWr request{};
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = verbs::kRdmaWrite;
    request.send_flags = verbs::kSignaled;
    request.wr.rdma = {reinterpret_cast<uint64_t>(memory.data()), key};
    REQUIRE(pair.PostSend(request).ok());
    const Deadline limit = In(5);
    while (endpoint_->Poll() == 0 && Clock::now() < limit) endpoint_->Await(limit);
    return endpoint_->failure();
  }

  // The answer: whether it was let in. `change`: of what an honest one would say.
  bool Ask(const std::function<void(rdma::Greeting&)>& change) {
    auto id = rdma::MakeCmId(endpoint_->channel());
    REQUIRE(id.ok());
    auto to = ResolveTcp(place_, false);
    REQUIRE(to.ok());
    REQUIRE(verbs::Lib().cm_resolve_addr(id->get(), nullptr, to->front().get(), 5000) == 0);
    REQUIRE(Await(verbs::kAddrResolved));
    REQUIRE(verbs::Lib().cm_resolve_route(id->get(), 5000) == 0);
    REQUIRE(Await(verbs::kRouteResolved));
    REQUIRE(endpoint_->Add(std::move(*id), {}).ok());
    rdma::Greeting greeting = endpoint_->GreetingOf(asked_);
    greeting.connection[0] = 4711;
    change(greeting);
    verbs::ConnParam param{};
    param.private_data = &greeting;
    param.private_data_len = sizeof(greeting);
    param.qp_num = endpoint_->queue_pair(asked_).number();
    REQUIRE(verbs::Lib().cm_connect(endpoint_->queue_pair(asked_++).id(), &param) == 0);
    auto event = rdma::AwaitCmEvent(endpoint_->channel(), verbs::kConnectResponse, "stranger", In(10));
    if (event.ok()) std::memcpy(&answer_, (*event)->param.conn.private_data, sizeof(answer_));
    return event.ok();
  }

 private:
  bool Await(verbs::CmEventType event) {
    return rdma::AwaitCmEvent(endpoint_->channel(), event, "stranger", In(10)).ok();
  }

  const std::string place_;
  std::unique_ptr<rdma::Endpoint> endpoint_;
  uint32_t asked_ = 0;
  rdma::Greeting answer_;
};

}  // namespace

TEST_CASE("rdma: strangers get no more queue pairs than they said, nor any for what makes no sense") {
  if (NoRdma()) return;
  auto listener = Listen(FreshUrl("rdma"));
  REQUIRE(listener.ok());
  auto accepted = std::async(std::launch::async, [&] { return (*listener)->Accept(In(30)).status(); });
  {
    Stranger stranger((*listener)->url().substr(std::string("rdma://").size()));
    const auto says = [&](uint8_t index, uint8_t count, uint32_t mtu) {
      return stranger.Ask([&](rdma::Greeting& greeting) {
        greeting.index = index;
        greeting.count = count;
        greeting.mtu = mtu;
      });
    };
    CHECK_FALSE(says(0, 9, 1024));
    CHECK_FALSE(says(1, 2, 1024));
    CHECK_FALSE(says(0, 1, 0));
    CHECK_FALSE(says(0, 1, 1000));
    CHECK(says(0, 1, 1024));
    CHECK_FALSE(says(1, 1, 1024));  // it is complete
  }
  (*listener)->Close();
  CHECK(accepted.get().code() == Code::kClosed);
}

TEST_CASE("rdma: before it has shown who it is, a peer writes nowhere, whatever keys it knows") {
  if (NoRdma()) return;
  const std::string url = FreshUrl("rdma");
  auto listener = Listen(url);
  REQUIRE(listener.ok());
  auto accepted = std::async(std::launch::async, [&] { return (*listener)->Accept(In(30)); });
  Memory memory(4096);
  auto device = rdma::Device::Open(rdma::LocalAddresses().back().device);
  REQUIRE(device.ok());
  auto lent = (*device)->Register(memory.data(), 4096, verbs::kLocalWrite | verbs::kRemoteWrite);
  REQUIRE(lent.ok());
  Stranger stranger((*listener)->url().substr(std::string("rdma://").size()));
  REQUIRE(stranger.Ask([](rdma::Greeting& greeting) { greeting.count = 1; }));
  CHECK_FALSE(stranger.Write(memory, (*lent)->rkey).ok());
  CHECK(std::all_of(memory.data(), memory.data() + 4096, [](std::byte byte) { return byte == std::byte{0}; }));
  (*listener)->Close();
  accepted.get().ok();
}

}  // namespace byteps_like::testing
