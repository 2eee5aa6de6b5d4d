// Strangers in number: a process of its own opens connections that say nothing, nonsense, or a HELLO they have
// recorded, while members come and must get in.
#include "csrc/transport/entrance/admission.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <future>

#include "csrc/base/log.h"
#include "tests/native/server/raw_client.h"
#include "tests/native/transport/transport_fixture.h"

namespace byteps_like::testing {
namespace {

constexpr int kPerSecond = 1500;
constexpr size_t kHeld = 600;  // connections that the strangers keep open themselves

// In a child, until it is killed. `addresses`: from how many of 127.0.0.0/8 they come.
[[noreturn]] void BeStrangers(uint16_t port, const std::string& hello, uint32_t addresses) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::deque<Fd> held;
  const auto begin = Clock::now();
  for (uint32_t count = 0;; ++count) {
    std::this_thread::sleep_until(begin + std::chrono::microseconds(int64_t{1'000'000} * count / kPerSecond));
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    sockaddr_in from{}, to{};
    from.sin_family = to.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + count % addresses);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(port);
    ::bind(fd.get(), reinterpret_cast<sockaddr*>(&from), sizeof(from));
    ::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to));
    const std::string says[] = {"", "GET / HTTP/1.1\r\n\r\n", hello, "BPLH"};
    const std::string& said = says[count % 4];
    if (!said.empty()) ::send(fd.get(), said.data(), said.size(), MSG_NOSIGNAL);
    held.push_back(std::move(fd));
    if (held.size() > kHeld) held.pop_front();
  }
}

size_t Descriptors() {
  size_t count = 0;
  DIR* const directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

size_t ResidentKiB() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoul(line.substr(6));
  }
  return 0;
}

constexpr int kPatience = 10;  // seconds that a member tries to get in

// Server 9, to which worker 5 alone may come.
struct Entrance {
  explicit Entrance(std::function<void(std::unique_ptr<Stream>, const Admitted&)> admit) {
    auto opened = Admission::Open({"tcp://127.0.0.1:0"}, {recorded.job, recorded.secret, 1, std::move(admit)});
    if (!opened.ok()) throw std::runtime_error(opened.status().message());
    admission = std::move(*opened);
    incarnation.fill(static_cast<std::byte>('i'));
    admission->SetWorld({incarnation, recorded.view, {Role::kServer, 9}, 0, {5}});
  }
  std::string url() const { return admission->urls().front(); }
  // The member's way in, as engines and meshes go: again and again, with pauses. How long it took.
  double SecondsToGetIn() const {
    const Credentials credentials{recorded.job, recorded.secret, recorded.view, incarnation};
    const Introduction who{{Role::kWorker, 5}, {Role::kServer, 9}, 0};
    const auto begin = Clock::now();
    for (auto pause = std::chrono::milliseconds(2); Clock::now() - begin < std::chrono::seconds(kPatience);) {
      auto stream = Connect(url(), In(2));
      if (stream.ok() && Meet(**stream, credentials, who, In(2)).status.ok()) break;
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::milliseconds(100));
    }
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  const RawHello recorded;
  Incarnation incarnation;
  std::unique_ptr<Admission> admission;
};

}  // namespace

TEST_CASE("admission: members get in past 1,500 strangers a second, who cost little") {
  SetLogSink([](LogLevel, std::string_view) {});
  for (const uint32_t addresses : {1u, 40u}) {
    CAPTURE(addresses);
    std::atomic<int> in{0};
    Entrance entrance([&](std::unique_ptr<Stream>, const Admitted&) { ++in; });
    const std::string url = entrance.url();
    entrance.SecondsToGetIn();  // what the first one costs is paid
    const size_t descriptors = Descriptors(), resident = ResidentKiB();
    const auto port = static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
    const pid_t strangers = ::fork();
    if (strangers == 0) BeStrangers(port, entrance.recorded.bytes(), addresses);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    std::vector<double> seconds;
    size_t most = 0;
    for (int tries = 0; tries < 100; ++tries) {
      seconds.push_back(entrance.SecondsToGetIn());
      most = std::max(most, Descriptors());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ::kill(strangers, SIGKILL);
    ::waitpid(strangers, nullptr, 0);
    std::sort(seconds.begin(), seconds.end());
    MESSAGE("median ", seconds[50], " s, p99 ", seconds[98], " s; descriptors +", most - descriptors, ", resident +",
            ResidentKiB() - resident, " KiB");
    if (kSlow == 1) CHECK(seconds[98] <= 1.0);
    CHECK(seconds.back() < kPatience);  // all got in
    CHECK(most - descriptors <= 320);
    if (kSlow == 1) CHECK(ResidentKiB() - resident <= 32u << 10);  // sanitizers keep what was freed
    CHECK(in >= 101);  // one who was let in after it had given up comes again
  }
  SetLogSink({});
}

TEST_CASE("admission: whoever comes faster than it looks at them waits in the kernel") {
  std::promise<void> looking, go_on;
  Entrance entrance([&](std::unique_ptr<Stream>, const Admitted&) {
    looking.set_value();
    go_on.get_future().wait();
  });
  entrance.SecondsToGetIn();
  looking.get_future().wait();
  const size_t before = Descriptors();
  std::vector<std::unique_ptr<Stream>> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(std::move(*Connect(entrance.url(), In(5))));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(Descriptors() - before - silent.size() <= 32);
  go_on.set_value();
}

TEST_CASE("admission: it ends at once, whoever is still there") {
  Admission::Options options{"job", std::string(32, 's'), 1, {}};
  auto admission = Admission::Open({"tcp://127.0.0.1:0", FreshUrl("shm")}, std::move(options));
  REQUIRE(admission.ok());
  std::vector<std::unique_ptr<Stream>> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(std::move(*Connect((*admission)->urls()[i % 2], In(5))));
  const auto begin = Clock::now();
  (*admission)->Close();
  CHECK(Clock::now() - begin < std::chrono::seconds(2));
  std::byte nothing;
  CHECK_FALSE(ReadFull(*silent[0], std::span(&nothing, 1), In(2)).ok());
}

}  // namespace byteps_like::testing
