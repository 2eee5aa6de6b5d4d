// Who connects by rdma_cm and has not shown yet that it belongs to the job may say anything.
#include <cstring>
#include <fstream>
#include <future>
#include <thread>

#include "csrc/transport/rdma/endpoint.h"
#include "csrc/transport/tcp/tcp_address.h"
#include "tests/native/rdma/rdma_fixture.h"

namespace byteps_like::testing {
namespace {

// A connection that asks for one queue pair after the other as it is told to.
class Stranger {
 public:
  explicit Stranger(const std::string& url, uint64_t number = 4711)
      : place_(url.substr(std::string("rdma://").size())), number_(number) {
    auto endpoint = rdma::Endpoint::Make("stranger", 8);
    REQUIRE(endpoint.ok());
    endpoint_ = std::move(*endpoint);
  }

  // Asks without a cookie and without a queue pair; what the listener answers.
  rdma::Greeting Knock() {
    rdma::CmId id = Route();
    rdma::Greeting greeting;
    greeting.count = 1;
    greeting.connection[0] = number_;
    Request(*id, greeting, 0x800000 + static_cast<uint32_t>(number_));  // no queue pair's
    auto event = rdma::AwaitCmEvent(endpoint_->channel(), verbs::kRejected, "stranger", In(10));
    REQUIRE_MESSAGE(event.ok(), event.status().message());
    return Said(**event);
  }

  // Writes to memory of whose key it has heard by the last queue pair; what its device says to that.
  Status Write(const Memory& memory, uint32_t key) {
    REQUIRE(Establish());
    rdma::QueuePair& pair = endpoint_->queue_pair(asked_ - 1);
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
    REQUIRE(endpoint_->Add(Route(), {}).ok());
    rdma::Greeting greeting = endpoint_->GreetingOf(asked_);
    greeting.connection[0] = number_;
    greeting.cookie = cookie_;
    change(greeting);
    const rdma::QueuePair& pair = endpoint_->queue_pair(asked_++);
    Request(*pair.id(), greeting, pair.number());
    auto event = rdma::AwaitCmEvent(endpoint_->channel(), "stranger", In(10));
    REQUIRE(event.ok());
    answer_ = Said(**event);
    return (*event)->event == verbs::kConnectResponse;
  }
  bool Ask() {
    return Ask([](rdma::Greeting&) {});
  }
  Stranger& WithCookie() {
    cookie_ = Knock().cookie;
    return *this;
  }

  // Goes on with the queue pair that it has asked for last.
  bool Establish() {
    REQUIRE(endpoint_->Connect(asked_ - 1, answer_).ok());
    return verbs::Lib().cm_establish(endpoint_->queue_pair(asked_ - 1).id()) == 0;
  }
  const rdma::Greeting& answer() const { return answer_; }

 private:
  rdma::CmId Route() {
    auto to = ResolveTcp(place_, false);
    REQUIRE(to.ok());
    rdma::CmId id = Resolve(to->front());
    REQUIRE(verbs::Lib().cm_resolve_route(id.get(), 5000) == 0);
    REQUIRE(Await(verbs::kRouteResolved));
    return id;
  }

  // Again and again: the kernel may overlook the first answer (connect.cc).
  rdma::CmId Resolve(TcpAddress& to) {
    for (const Deadline limit = In(10);;) {
      auto id = rdma::MakeCmId(endpoint_->channel());
      REQUIRE(id.ok());
      REQUIRE(verbs::Lib().cm_resolve_addr(id->get(), nullptr, to.get(), 400) == 0);
      if (Await(verbs::kAddrResolved)) return std::move(*id);
      REQUIRE(Clock::now() < limit);
    }
  }

  static void Request(verbs::CmId& id, const rdma::Greeting& greeting, uint32_t pair) {
    verbs::ConnParam param{};
    param.private_data = &greeting;
    param.private_data_len = sizeof(greeting);
    param.qp_num = pair;
    REQUIRE(verbs::Lib().cm_connect(&id, &param) == 0);
  }

  static rdma::Greeting Said(const verbs::CmEvent& event) {
    rdma::Greeting said;
    said.magic = 0;
    const verbs::ConnParam& param = event.param.conn;
    const bool answered = event.event == verbs::kConnectResponse || event.event == verbs::kRejected;
    if (answered && param.private_data != nullptr && param.private_data_len >= sizeof(said)) {
      std::memcpy(&said, param.private_data, sizeof(said));
    }
    return said;
  }

  bool Await(verbs::CmEventType event) {
    return rdma::AwaitCmEvent(endpoint_->channel(), event, "stranger", In(10)).ok();
  }

  const std::string place_;
  const uint64_t number_;  // of its connection
  rdma::Cookie cookie_{};
  std::unique_ptr<rdma::Endpoint> endpoint_;
  uint32_t asked_ = 0;
  rdma::Greeting answer_;
};

// Memory of this process that devices may use.
size_t PinnedKiB() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmPin:")) return std::stoul(line.substr(6));
  }
  return 0;
}

// What connections have pinned that are over is given back by a thread of their own.
void AwaitNothingPinned() {
  for (const Deadline limit = In(20); PinnedKiB() > 0;) {
    REQUIRE(Clock::now() < limit);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void ClaimTwo(rdma::Greeting& greeting) { greeting.count = 2; }

}  // namespace

TEST_CASE("rdma: whoever has not shown that answers reach it costs no memory") {
  if (NoRdma()) return;
  auto listener = Listen(FreshUrl("rdma"));
  REQUIRE(listener.ok());
  auto accepted = std::async(std::launch::async, [&] { return (*listener)->Accept(In(60)).status(); });
  {
    Stranger stranger((*listener)->url());
    AwaitNothingPinned();
    const rdma::Cookie cookie = stranger.Knock().cookie;
    CHECK(cookie != rdma::Cookie{});
    CHECK(stranger.Knock().cookie == cookie);  // nothing is remembered, so the answer is the same
    CHECK(PinnedKiB() == 0);
    CHECK_FALSE(stranger.Ask([&](rdma::Greeting& greeting) { greeting.cookie = {cookie[0], cookie[1] ^ 1}; }));
    CHECK(stranger.answer().cookie == cookie);
  }
  {
    Stranger other((*listener)->url(), 4712);
    const rdma::Cookie cookie = Stranger((*listener)->url()).Knock().cookie;
    CHECK_FALSE(other.Ask([&](rdma::Greeting& greeting) { greeting.cookie = cookie; }));  // of another connection
  }
  (*listener)->Close();
  CHECK(accepted.get().code() == Code::kClosed);
}

TEST_CASE("rdma: strangers with one address pin little, and members get in past them, also beside them") {
  const auto devices = RdmaDevices();
  if (NoRdma() || devices.size() < 4) return;
  auto listener = Listen("rdma://0.0.0.0:0");
  REQUIRE(listener.ok());
  const std::string port = (*listener)->url().substr((*listener)->url().rfind(':'));
  const std::string theirs = "rdma://" + devices[1].host + port, elsewhere = "rdma://" + devices[3].host + port;
  std::vector<std::unique_ptr<Stream>> let_in;
  auto accepted = std::async(std::launch::async, [&] {
    while (let_in.size() < 2) {
      auto stream = (*listener)->Accept(In(60));
      if (!stream.ok()) return;
      let_in.push_back(std::move(*stream));
    }
  });
  constexpr size_t kStrangers = 40;
  AwaitNothingPinned();
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (uint64_t number = 0; number < kStrangers; ++number) {
    strangers.push_back(std::make_unique<Stranger>(theirs, number));
    strangers.back()->WithCookie().Ask(ClaimTwo);
  }
  constexpr size_t kEach = 512;  // KiB at either end, with one queue pair
  CHECK(PinnedKiB() <= (kStrangers + 16) * kEach);
  for (const std::string& url : {elsewhere, theirs}) {
    auto connected = Connect(url, In(20));
    CHECK_MESSAGE(connected.ok(), connected.status().message());
  }
  accepted.get();
  CHECK(let_in.size() == 2);
}

TEST_CASE("rdma: a connection that is not completed is given up, and its memory given back") {
  if (NoRdma()) return;
  auto listener = Listen(FreshUrl("rdma"));
  REQUIRE(listener.ok());
  auto accepted = std::async(std::launch::async, [&] { return (*listener)->Accept(In(60)).status(); });
  Stranger stranger((*listener)->url());
  stranger.WithCookie();
  REQUIRE(stranger.Ask(ClaimTwo));
  const size_t both = PinnedKiB();
  for (const Deadline limit = In(20); PinnedKiB() == both && Clock::now() < limit;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  CHECK(PinnedKiB() < both);
  (*listener)->Close();
  CHECK(accepted.get().code() == Code::kClosed);
}

TEST_CASE("rdma: strangers get no more queue pairs than they said, nor any for what makes no sense") {
  if (NoRdma()) return;
  auto listener = Listen(FreshUrl("rdma"));
  REQUIRE(listener.ok());
  auto accepted = std::async(std::launch::async, [&] { return (*listener)->Accept(In(30)).status(); });
  {
    Stranger stranger((*listener)->url());
    stranger.WithCookie();
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
  Stranger stranger((*listener)->url());
  REQUIRE(stranger.WithCookie().Ask([](rdma::Greeting& greeting) { greeting.count = 1; }));
  CHECK_FALSE(stranger.Write(memory, (*lent)->rkey).ok());
  CHECK(std::all_of(memory.data(), memory.data() + 4096, [](std::byte byte) { return byte == std::byte{0}; }));
  (*listener)->Close();
  accepted.get().ok();
}

}  // namespace byteps_like::testing
