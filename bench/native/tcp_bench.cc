// Processor time and speed of the way to servers over TCP on this host, beside bare sockets that move the same bytes
// with the same checksums, in turn in one run.
//
//   cmake -S . -B build/bench -G Ninja -DBYTEPS_LIKE_BENCH=ON -DBYTEPS_LIKE_PYTHON=OFF
//   cmake --build build/bench --target tcp_bench && build/bench/tcp_bench [bytes...]
//
// The contenders, each with processes of its own: a pair of sockets, one of which sends and the other receives; a pair
// of links likewise; and push_pull by two workers over two servers. Bare frames have a header of 64 bytes and a payload
// of 128 KiB at most, whose CRC32C both ends compute, just before it is sent and just after it has come. Prints medians
// of runs in turn: processor seconds of all processes for each GB that crossed sockets (by push_pull four times the
// tensor) and the ratio to the bare pair's in the same run, milliseconds and sleeps of an operation. Small sizes also
// there and back, for the ratio of times: a push_pull is there and back by itself.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/engine/engine.h"
#include "csrc/kernels/kernels.h"
#include "csrc/transport/links/link.h"
#include "server/server.h"

namespace byteps_like {
namespace {

constexpr int kWorkers = 2, kServers = 2;
constexpr size_t kMost = 64u << 20;
constexpr uint32_t kPartition = 4u << 20;
constexpr size_t kPiece = 128u << 10;
constexpr int kRuns = 15;

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  ::_exit(1);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void ReadAll(int fd, void* data, size_t size) {
  for (size_t got = 0; got < size;) {
    const ssize_t bytes = ::recv(fd, static_cast<char*>(data) + got, size - got, MSG_WAITALL);
    if (bytes <= 0) ::_exit(0);  // the parent is done
    got += static_cast<size_t>(bytes);
  }
}

void WriteAll(int fd, const void* data, size_t size) {
  for (size_t sent = 0; sent < size;) {
    const ssize_t bytes = ::send(fd, static_cast<const char*>(data) + sent, size - sent, MSG_NOSIGNAL);
    if (bytes <= 0) ::_exit(0);
    sent += static_cast<size_t>(bytes);
  }
}

enum class Kind : uint8_t { kStream, kPingPong };

struct Order {
  Kind kind = Kind::kStream;
  size_t bytes = 0;
  int rounds = 0;
};

// What a process does with an order: it is ended with the connection to its parent.
using Body = std::function<void(const Order&)>;

// The processes of one contender.
class Crew {
 public:
  explicit Crew(std::string name) : name_(std::move(name)) {}
  ~Crew() {
    for (const int fd : fds_) ::close(fd);
    for (const pid_t pid : pids_) ::kill(pid, SIGKILL), ::waitpid(pid, nullptr, 0);
  }

  // `begin` runs in the new process and gives its body; the text that it tells goes to the caller. Passive ones get no
  // orders.
  std::string Add(bool active, const std::function<Body(std::string& tells)>& begin) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) Die("socketpair");
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      Live(ends[1], begin);
    }
    ::close(ends[1]);
    pids_.push_back(pid);
    fds_.push_back(ends[0]);
    if (active) active_.push_back(ends[0]);
    char text[256];
    ReadAll(ends[0], text, sizeof text);
    return text;
  }

  struct Used {
    double seconds = 0, processor = 0, sleeps = 0;
  };
  Used Run(const Order& order) {
    const Used before{.processor = Processor(), .sleeps = Sleeps()};
    const auto begin = Clock::now();
    for (const int fd : active_) WriteAll(fd, &order, sizeof order);
    char done;
    for (const int fd : active_) ReadAll(fd, &done, 1);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return {seconds, Processor() - before.processor, Sleeps() - before.sleeps};
  }
  const std::string& name() const { return name_; }

 private:
  [[noreturn]] static void Live(int fd, const std::function<Body(std::string&)>& begin) {
    std::string tells;
    const Body body = begin(tells);
    char text[256] = {};
    std::memcpy(text, tells.data(), tells.size());
    WriteAll(fd, text, sizeof text);
    for (Order order;;) {
      ReadAll(fd, &order, sizeof order);
      body(order);
      WriteAll(fd, "", 1);
    }
  }

  double Processor() const {
    double sum = 0;
    for (const pid_t pid : pids_) {
      clockid_t clock;
      timespec time{};
      if (::clock_getcpuclockid(pid, &clock) == 0) ::clock_gettime(clock, &time);
      sum += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
    }
    return sum;
  }
  double Sleeps() const {
    double sum = 0;
    for (const pid_t pid : pids_)
      for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
        std::ifstream status(task.path() / "status");
        for (std::string line; std::getline(status, line);)
          if (line.starts_with("voluntary_ctxt_switches:")) sum += std::strtod(line.c_str() + 24, nullptr);
      }
    return sum;
  }

  const std::string name_;
  std::vector<pid_t> pids_;
  std::vector<int> fds_, active_;
};

std::vector<std::byte> Block() { return std::vector<std::byte>(kMost, std::byte{1}); }

// Bare sockets
// ---------------------------------------------------------------------------------------------------------

struct BareHeader {
  uint32_t crc;
  std::array<std::byte, 60> rest;
};

void SendFrame(int fd, std::byte* payload, size_t size) {
  BareHeader header{kernels::Crc32c(0, payload, size), {}};
  iovec pieces[] = {{&header, sizeof header}, {payload, size}};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL);
  if (sent < static_cast<ssize_t>(sizeof header)) ::_exit(0);
  const size_t done = static_cast<size_t>(sent) - sizeof header;
  WriteAll(fd, payload + done, size - done);
}

void ReceiveFrame(int fd, std::byte* payload, size_t size) {
  BareHeader header;
  ReadAll(fd, &header, sizeof header);
  ReadAll(fd, payload, size);
  if (kernels::Crc32c(0, payload, size) != header.crc) Die("bare: wrong checksum");
}

template <typename Do>
void ByPieces(std::vector<std::byte>& block, size_t bytes, Do&& act) {
  for (size_t at = 0; at < bytes; at += kPiece) act(block.data() + at, std::min(kPiece, bytes - at));
}

Body BareEnd(int fd, bool first) {
  return [fd, first, block = Block()](const Order& order) mutable {
    const auto send = [&] { ByPieces(block, order.bytes, [&](auto at, size_t size) { SendFrame(fd, at, size); }); };
    const auto receive = [&] {
      ByPieces(block, order.bytes, [&](auto at, size_t size) { ReceiveFrame(fd, at, size); });
    };
    for (int round = 0; round < order.rounds; ++round) {
      if (first) send();
      if (!first || order.kind == Kind::kPingPong) receive();
      if (!first && order.kind == Kind::kPingPong) send();
    }
  };
}

// Two connected sockets with the options of our own.
std::pair<int, int> Sockets() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0), one = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const at = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener, at, size) != 0 || ::listen(listener, 1) != 0) Die("listen");
  ::getsockname(listener, at, &size);
  if (::connect(one, at, size) != 0) Die("connect");
  const int other = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  const int yes = 1;
  for (const int fd : {one, other}) {
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
  }
  return {one, other};
}

void AddBare(Crew& crew) {
  const auto [one, other] = Sockets();
  crew.Add(true, [&](auto&) { return BareEnd(one, true); });
  crew.Add(true, [&](auto&) { return BareEnd(other, false); });
}

// Links
// ----------------------------------------------------------------------------------------------------------------

// One end, whose loop the waiting thread runs.
class LinkEnd final : public LinkHandler {
 public:
  LinkEnd(std::unique_ptr<Stream> stream, bool first) : first_(first), block_(Block()) {
    link_ = MakeLink(loop_, std::move(stream), *this);
    loop_.ShareCores(2);
    std::thread([this] { loop_.Run(); }).detach();
    loop_.Post([this] { link_->Start(); });
  }

  void Do(const Order& order) {
    for (int round = 0; round < order.rounds; ++round) {
      if (first_) Send(order.bytes);
      if (!first_ || order.kind == Kind::kPingPong) Await(order.bytes);
      if (!first_ && order.kind == Kind::kPingPong) Send(order.bytes);
    }
    Drive([this] { return sent_ == to_send_; });
  }

  std::byte* PlaceFor(Link&, const Header& header) override { return block_.data() + header.offset; }
  void OnFrame(Link&, const Header& header, std::byte*) override { received_ += header.length; }
  bool NextFrame(Link&, Outgoing& next) override {
    if (next_ == to_send_) return false;
    next.header.type = FrameType::kPush;
    next.header.offset = next_ % size_;
    next.header.length = static_cast<uint32_t>(std::min(kPiece, size_ - next.header.offset));
    next.header.total = static_cast<uint32_t>(size_);
    next.payload = block_.data() + next.header.offset;
    next_ += next.header.length;
    return true;
  }
  void OnSent(Link&, const Header& header) override { sent_ += header.length; }
  void OnClosed(Link&, const Status& why) override { Die(why.message()); }

 private:
  void Send(size_t bytes) {
    Drive([this] { return next_ == to_send_; });
    loop_.PostOrRun([this, bytes] {
      if (size_ != bytes) next_ = to_send_ = sent_ = 0;
      size_ = bytes;
      to_send_ += bytes;
      link_->Kick();
    });
  }
  void Await(size_t bytes) {
    expected_ += bytes;
    Drive([this] { return received_ >= expected_; });
  }
  template <typename Until>
  void Drive(Until&& until) {
    loop_.Drive(until, Deadline::max(), [] { return Die("link: cannot drive"), false; });
  }

  EventLoop loop_;
  const bool first_;
  std::vector<std::byte> block_;
  std::unique_ptr<Link> link_;
  std::atomic<uint64_t> size_{0}, to_send_{0}, next_{0}, sent_{0}, received_{0};
  uint64_t expected_ = 0;
};

Body BodyOf(Result<std::unique_ptr<Stream>> stream, bool first) {
  if (!stream.ok()) Die(stream.status().message());
  auto end = std::make_shared<LinkEnd>(std::move(*stream), first);
  return [end](const Order& order) { end->Do(order); };
}

Deadline Soon() { return Clock::now() + std::chrono::seconds(10); }

void AddLinks(Crew& crew) {
  auto listener = Listen("tcp://127.0.0.1:0");
  if (!listener.ok()) Die(listener.status().message());
  crew.Add(true, [&](auto&) { return BodyOf(Connect((*listener)->url(), Soon()), true); });
  crew.Add(true, [&](auto&) { return BodyOf((*listener)->Accept(Soon()), false); });
}

// push_pull
// ------------------------------------------------------------------------------------------------------------

Credentials JobOf() { return {"bench", std::string(kMinSecretBytes, 's'), 1}; }

Body ServerBody(uint32_t index, std::string& url) {
  Server::Options options;
  options.job = JobOf().job;
  options.secret = JobOf().secret;
  options.urls = {"tcp://127.0.0.1:0"};
  options.on_event = [](Code, const std::string& text, bool) { std::fprintf(stderr, "%s\n", text.c_str()); };
  auto server = Server::Start(std::move(options));
  if (!server.ok()) Die(server.status().message());
  ShardWorld world{.epoch = 1, .workers = {0, 1}, .server = index, .member = kWorkers + index};
  (*server)->SetWorld(world);
  url = (*server)->urls().front();
  return [kept = std::shared_ptr<Server>(std::move(*server))](const Order&) {};
}

class Worker {
 public:
  Worker(uint32_t rank, const std::vector<std::string>& urls) : block_(Block()) {
    EngineOptions options;
    options.credentials = JobOf();
    options.standing = {rank, kWorkers};
    options.member = rank;
    options.local_workers = kWorkers;
    std::vector<ShardAddress> shards;
    for (uint32_t index = 0; index < kServers; ++index) shards.push_back({index, 0, {urls[index]}, kWorkers + index});
    options.on_event = [](Code, const std::string& text, bool) { std::fprintf(stderr, "%s\n", text.c_str()); };
    auto engine = Engine::Start(std::move(options), std::move(shards));
    if (!engine.ok()) Die(engine.status().message());
    engine_ = std::move(*engine);
  }

  void Do(const Order& order) {
    Engine::Request request;
    request.tensor = TensorOf(order.bytes);
    request.address = block_.data();
    request.last_part = static_cast<uint32_t>(PartsOf(order.bytes).size());
    for (int round = 0; round < order.rounds; ++round) {
      auto operation = engine_->Submit(request);
      const Status status = operation.ok() ? engine_->Wait(**operation, Soon()) : operation.status();
      if (!status.ok()) Die(status.message());
    }
  }

 private:
  static std::vector<PartitionSpec> PartsOf(size_t bytes) {
    std::vector<PartitionSpec> parts;
    const size_t most = std::min<size_t>(kPartition, std::max<size_t>(bytes / kServers, 64 << 10));
    for (size_t at = 0; at < bytes; at += most) {
      const auto index = static_cast<uint32_t>(parts.size());
      parts.push_back({bytes + index, at, static_cast<uint32_t>(std::min(most, bytes - at)), index % kServers});
    }
    return parts;
  }
  uint32_t TensorOf(size_t bytes) {
    const auto found = tensors_.find(bytes);
    if (found != tensors_.end()) return found->second;
    return tensors_[bytes] = engine_->Declare(DType::kFloat32, PartsOf(bytes));
  }

  std::vector<std::byte> block_;
  std::unique_ptr<Engine> engine_;
  std::map<size_t, uint32_t> tensors_;
};

void AddServersAndWorkers(Crew& crew) {
  std::vector<std::string> urls;
  for (uint32_t index = 0; index < kServers; ++index)
    urls.push_back(crew.Add(false, [&](std::string& url) { return ServerBody(index, url); }));
  for (uint32_t rank = 0; rank < kWorkers; ++rank)
    crew.Add(true, [&](auto&) {
      auto worker = std::make_shared<Worker>(rank, urls);
      return [worker](const Order& order) { worker->Do(order); };
    });
}

// The report
// -----------------------------------------------------------------------------------------------------------

int RoundsOf(size_t bytes) { return static_cast<int>(std::clamp<size_t>((64u << 20) / bytes, 1, 500)); }

double MovedBy(const Crew& crew, const Order& order) {
  const double times = crew.name() == "push_pull" ? 2 * kWorkers : order.kind == Kind::kPingPong ? 2 : 1;
  return times * static_cast<double>(order.bytes) * order.rounds;
}

struct Figures {  // one of each per run
  std::vector<double> processor, processor_ratio, milliseconds, time_ratio, sleeps;
};

void RunAll(const std::vector<Crew*>& crews, const Order& order, std::vector<Figures>& figures) {
  for (size_t i = 0; i < crews.size(); ++i) {
    const Crew::Used used = crews[i]->Run(order);
    Figures& mine = figures[i];
    mine.processor.push_back(used.processor / MovedBy(*crews[i], order) * 1e9);
    mine.milliseconds.push_back(used.seconds / order.rounds * 1e3);
    mine.sleeps.push_back(used.sleeps / order.rounds);
    mine.processor_ratio.push_back(mine.processor.back() / figures[0].processor.back());
    mine.time_ratio.push_back(mine.milliseconds.back() / figures[0].milliseconds.back());
  }
}

void Report(const std::vector<Crew*>& crews, Kind kind, size_t bytes) {
  const Order order{kind, bytes, RoundsOf(bytes)};
  std::vector<Figures> figures(crews.size());
  RunAll(crews, order, figures);  // warms up
  figures.assign(crews.size(), {});
  for (int run = 0; run < kRuns; ++run) RunAll(crews, order, figures);
  const char* const way = kind == Kind::kPingPong ? "there and back" : "one way";
  for (size_t i = 0; i < crews.size(); ++i)
    std::printf("%9zu B %-14s %-10s %7.3f CPU s/GB (%.2f of bare) %9.4f ms (%.2f) %7.1f sleeps\n", bytes, way,
                crews[i]->name().c_str(), Median(figures[i].processor), Median(figures[i].processor_ratio),
                Median(figures[i].milliseconds), Median(figures[i].time_ratio), Median(figures[i].sleeps));
  std::fflush(stdout);
}

}  // namespace
}  // namespace byteps_like

int main(int count, char** arguments) {
  using namespace byteps_like;  // NOLINT
  Crew bare("bare"), links("links"), servers("push_pull");
  AddBare(bare);
  AddLinks(links);
  AddServersAndWorkers(servers);
  const std::vector<Crew*> crews = {&bare, &links, &servers};
  std::vector<size_t> sizes = {4u << 10, 64u << 10, 1u << 20, 64u << 20};
  if (count > 1) sizes.clear();
  for (int i = 1; i < count; ++i) sizes.push_back(std::strtoul(arguments[i], nullptr, 10));
  for (const size_t bytes : sizes) {
    Report(crews, Kind::kStream, bytes);
    if (bytes <= 64u << 10) Report(crews, Kind::kPingPong, bytes);
  }
}
