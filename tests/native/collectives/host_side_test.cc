// Host groups of communicators: how the shared memory comes to all ranks, regions, and what a lost rank does.
#include "collectives/host/host_side.h"

#include <doctest/doctest.h>

#include <fstream>
#include <thread>

#include "collectives/communicator.h"
#include "tests/native/collectives/linkless_mesh.h"
#include "tests/native/collectives/mesh_fixture.h"
#include "tests/native/resource_limits.h"

namespace byteps_like::testing {
namespace {

struct HostCommunicators {
  explicit HostCommunicators(uint32_t size, const std::string& scheme = "shm") {
    std::vector<std::vector<std::string>> urls;
    for (uint32_t rank = 0; rank < size; ++rank) {
      all.push_back(std::move(*Communicator::Listen(OptionsFor({FreshUrl(scheme)}))));
      urls.push_back(all.back()->urls());
    }
    for (uint32_t rank = 0; rank < size; ++rank) all[rank]->SetWorld(WorldOf(rank, urls));
  }
  void Run(const std::vector<uint32_t>& ranks, const std::function<void(uint32_t, Communicator&)>& body) {
    std::vector<std::thread> threads;
    for (const uint32_t rank : ranks) threads.emplace_back([&, rank] { body(rank, *all[rank]); });
    for (auto& thread : threads) thread.join();
  }
  std::vector<std::unique_ptr<Communicator>> all;
};

// Counts what is passed to peers.
struct PassingMesh : LinklessMesh {
  using LinklessMesh::LinklessMesh;
  void PassRegion(uint32_t, uint32_t, std::shared_ptr<SharedBuffer>) override { ++passed; }
  int passed = 0;
};

HostCall Sum(float* tensor, size_t count) {
  auto* data = reinterpret_cast<std::byte*>(tensor);
  HostCall call{.input = data, .output = data, .bytes = count * 4};
  call.timeout = 20;
  return call;
}

}  // namespace

TEST_CASE("host side: a group without the lowest rank gets the memory from it; regions and private tensors") {
  HostCommunicators world(3);
  world.Run({1, 2}, [](uint32_t, Communicator& communicator) {
    auto group = communicator.Group(9, {2, 1}, In(20));
    REQUIRE(group.ok());
    auto buffer = communicator.Allocate(1 << 20);
    auto* shared = reinterpret_cast<float*>((*buffer)->data());
    std::vector<float> own(100000, 1);
    std::fill(shared, shared + own.size(), 2.0F);
    for (int i = 0; i < 3; ++i) {
      CHECK((*group)->Run(Sum(shared, own.size())).ok());
      CHECK((*group)->Run(Sum(own.data(), own.size())).ok());
    }
    CHECK(shared[99999] == 16);
    CHECK(own[99999] == 8);
  });
}

TEST_CASE("host side: groups of one and of all, blocking and launched") {
  HostCommunicators world(3);
  world.Run({0, 1, 2}, [](uint32_t rank, Communicator& communicator) {
    auto all = communicator.Group(1, {0, 1, 2}, In(20));
    auto alone = communicator.Group(100 + rank, {rank}, In(20));
    REQUIRE((all.ok() && alone.ok()));
    std::vector<float> tensor(10, 1);
    auto call = (*all)->Launch(Sum(tensor.data(), 10));
    CHECK(call->Wait(In(20)));
    CHECK(call->status().ok());
    call = (*all)->Launch(Sum(tensor.data(), 10));
    CHECK(call->Wait(In(20)));
    CHECK((*alone)->Run(Sum(tensor.data(), 10)).ok());
    CHECK(tensor == std::vector<float>(10, 9));
  });
}

TEST_CASE("host side: a rank that closes, or is elsewhere") {
  HostCommunicators world(3);
  std::atomic<int> ready{0};
  world.Run({0, 1, 2}, [&](uint32_t rank, Communicator& communicator) {
    auto group = communicator.Group(1, {0, 1, 2}, In(20));
    REQUIRE(group.ok());
    std::vector<float> tensor(10, 1);
    CHECK((*group)->Run(Sum(tensor.data(), 10)).ok());
    ++ready;
    while (ready.load() < 3) std::this_thread::yield();
    if (rank == 0) return communicator.Close();
    CHECK((*group)->Run(Sum(tensor.data(), 10)).code() == Code::kPeerLost);
    CHECK(communicator.Group(2, {1, 7}, In(1)).status().code() == Code::kInvalid);
  });
}

// A unix socket holds few descriptors that nobody has taken yet: ten, where the system says nothing else.
TEST_CASE("host side: who asks for the host's memory again and again is answered once") {
  LoopThread thread;
  MeshWorld world;
  for (const char* rank : {"rank 0", "rank 1"}) {
    world.peers.emplace_back();
    world.peers.back().host_id = "here";
    world.peers.back().name = rank;
  }
  PassingMesh mesh(thread.loop(), world);
  auto side = std::make_shared<HostSide>(mesh);
  side->SetWorld(world);
  constexpr uint32_t kAskForArea = 0xFFFFFFFF;  // docs/reference/protocol.md
  thread.Do([&] {
    for (int i = 0; i < 100; ++i) side->OnNoRegion(1, kAskForArea, false);
  });
  thread.Do([] {});
  CHECK(mesh.passed == 1);
  side->Close(Status(Code::kClosed, "over"));
}

TEST_CASE("host side: many regions at once, and their memory and descriptors are given back") {
  HostCommunicators world(2);
  const auto mapped = [] {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) count += line.find("byteps_like") != std::string::npos ? 1 : 0;
    return count;
  };
  std::atomic<int> most{0};
  world.Run({0, 1}, [&](uint32_t, Communicator& communicator) {
    auto group = communicator.Group(1, {0, 1}, In(20));
    REQUIRE(group.ok());
    constexpr size_t kCount = 20000;
    std::vector<std::shared_ptr<SharedBuffer>> buffers;
    std::vector<std::shared_ptr<Completion>> calls;
    for (int i = 0; i < 64; ++i) {
      buffers.push_back(std::move(*communicator.Allocate(kCount * 4)));
      auto* tensor = reinterpret_cast<float*>(buffers.back()->data());
      std::fill(tensor, tensor + kCount, 1.0F);
      calls.push_back((*group)->Launch(Sum(tensor, kCount)));
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      REQUIRE(calls[i]->Wait(In(20)));
      CHECK(calls[i]->status().ok());
      CHECK(reinterpret_cast<float*>(buffers[i]->data())[kCount - 1] == 2);
    }
    most = std::max(most.load(), mapped());
  });
  CHECK(most > 200);
  const auto limit = In(10);
  while (mapped() > 20 && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(mapped() <= 20);
}

TEST_CASE("host side: ranks whose link shares no memory are told so at once") {
  HostCommunicators world(2, "tcp");
  world.Run({0, 1}, [&](uint32_t rank, Communicator& communicator) {
    const auto began = Clock::now();
    auto group = communicator.Group(1, {0, 1}, In(20));
    CHECK(Clock::now() - began < std::chrono::seconds(10));
    if (rank == 1) CHECK(group.status().code() == Code::kSystem);
    if (rank == 1) CHECK(group.status().message().find("can't share memory with rank 1") != std::string::npos);
  });
}

TEST_CASE("host side: a host with more ranks than its shared memory is for has no groups there, and says so") {
  for (const uint32_t more : {0u, 1u}) {
    auto communicator = std::move(*Communicator::Listen(OptionsFor({FreshUrl("shm")})));
    std::vector<std::vector<std::string>> urls(kMostHostRanks + more);
    urls[0] = communicator->urls();
    communicator->SetWorld(WorldOf(0, urls));
    const auto group = communicator->Group(1, {0}, In(20));
    CHECK(group.ok() == (more == 0));
    if (more == 0) continue;
    CHECK(group.status().code() == Code::kCapacity);
    CHECK(group.status().message().find("at most 128 ranks per host, but there are 129") != std::string::npos);
  }
}

TEST_CASE("host side: a rank that has no room for the host's shared memory says which limit it has met") {
  if (!kMapsAtWill) return;
  CHECK(InChild([] {
          HostCommunicators world(2);
          if (!world.all[0]->Group(1, {0}, In(20)).ok()) return 1;
          Allow(RLIMIT_AS, 256u << 20);
          const Status none = world.all[1]->Group(1, {0, 1}, In(20)).status();
          if (none.code() != Code::kCapacity) return 2;
          return none.message().find("RLIMIT_AS") != std::string::npos ? 0 : 3;
        }) == 0);
}

TEST_CASE("host side: calls of a group that outlives its communicator fail") {
  HostCommunicators world(1);
  auto group = world.all[0]->Group(1, {0}, In(5));
  REQUIRE(group.ok());
  world.all[0].reset();
  std::vector<float> tensor(100000, 1);
  CHECK((*group)->Run(Sum(tensor.data(), tensor.size())).code() == Code::kClosed);
}

}  // namespace byteps_like::testing
