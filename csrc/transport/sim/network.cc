#include "csrc/transport/sim/network.h"

#include <algorithm>
#include <cerrno>
#include <deque>

#include "csrc/transport/sim/connection.h"

namespace byteps_like::sim {
namespace {

constexpr auto kKnockAgain = std::chrono::seconds(1);  // where nobody answers

thread_local std::map<const Simulation*, Network*> networks;

class SimStream final : public Stream {
 public:
  SimStream(std::shared_ptr<Connection> connection, Side side) : connection_(std::move(connection)), side_(side) {}
  ~SimStream() override { Shutdown(); }

  Result<size_t> Read(std::byte* data, size_t size) override { return connection_->Read(side_, {data, size}); }
  Result<size_t> Write(std::span<const iovec> pieces) override { return connection_->Write(side_, pieces); }
  std::vector<int> fds() const override { return {connection_->descriptor(side_)}; }
  void Shutdown() override { connection_->Close(side_); }
  std::string peer() const override { return "sim process " + std::to_string(connection_->process(1 - side_)); }
  std::string source() const override { return peer(); }
  void LimitSilence(double seconds) override {
    connection_->LimitSilence(side_,
                              std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
  }

 private:
  const std::shared_ptr<Connection> connection_;
  const Side side_;
};

}  // namespace

// Where connections to an address wait to be accepted.
class Door {
 public:
  explicit Door(Simulation& simulation) : simulation(simulation), process(simulation.process()) {}
  Simulation& simulation;
  const uint32_t process;
  std::deque<std::shared_ptr<Connection>> waiting;
  bool closed = false;

  void Enter(std::shared_ptr<Connection> connection) {
    waiting.push_back(std::move(connection));
    simulation.Wake(this, false);
  }
};

namespace {

class SimListener final : public Listener {
 public:
  SimListener(std::string url, std::shared_ptr<Door> door) : url_(std::move(url)), door_(std::move(door)) {}
  ~SimListener() override { Close(); }

  Result<std::unique_ptr<Stream>> Accept(Deadline deadline) override {
    while (!door_->closed && door_->waiting.empty())
      if (!door_->simulation.Block(door_.get(), deadline)) break;
    if (door_->closed) return Status(Code::kClosed, "the listener on " + url_ + " is closed");
    if (door_->waiting.empty()) return Status(Code::kTimeout, "nobody connected to " + url_ + " in time");
    auto stream = std::make_unique<SimStream>(std::move(door_->waiting.front()), kAccepted);
    door_->waiting.pop_front();
    return std::unique_ptr<Stream>(std::move(stream));
  }

  std::string url() const override { return url_; }

  void Close() override {
    if (std::exchange(door_->closed, true)) return;
    if (Network::Here() != nullptr) Network::Here()->Close(url_, *door_);
    for (const auto& connection : door_->waiting) connection->Close(kAccepted);
    door_->waiting.clear();
    door_->simulation.Wake(door_.get(), true);
  }

 private:
  const std::string url_;
  const std::shared_ptr<Door> door_;
};

}  // namespace

Network::Network(Simulation& simulation, Tap& tap, NetworkOptions options)
    : simulation_(simulation), tap_(tap), options_(options) {
  networks.emplace(&simulation, this);
}

Network::~Network() { networks.erase(&simulation_); }

Network* Network::Here() {
  const auto found = networks.find(TheSimulation());
  return found == networks.end() ? nullptr : found->second;
}

Clock::duration Network::OneWay() {
  const auto jitter = static_cast<uint64_t>(options_.jitter.count());
  return options_.delay + Clock::duration(simulation_.Draw(jitter + 1));
}

bool Network::Passes(uint32_t from, uint32_t to) const {
  return !cuts_.contains({from, to}) && !silent_.contains(from) && !silent_.contains(to);
}

// There and back, as long as nobody answers again and again.
Result<std::unique_ptr<Stream>> Network::Dial(const std::string& url, Deadline deadline) {
  const uint32_t process = simulation_.process();
  for (;;) {
    simulation_.Block(nullptr, simulation_.Now() + OneWay());
    auto connection = Knock(url, process);
    if (!connection.ok() && connection.status().code() != Code::kTimeout) return connection.status();
    simulation_.Block(nullptr, simulation_.Now() + OneWay());
    if (connection.ok() && Passes((*connection)->process(kAccepted), process))
      return std::unique_ptr<Stream>(std::make_unique<SimStream>(std::move(*connection), kDialled));
    const Deadline again = simulation_.Now() + kKnockAgain;
    simulation_.Block(nullptr, std::min(again, deadline));
    if (again >= deadline) return Status(Code::kTimeout, "connect to " + url + ": no answer in time");
  }
}

// kTimeout: nobody hears it.
Result<std::shared_ptr<Connection>> Network::Knock(const std::string& url, uint32_t process) {
  const auto found = doors_.find(url);
  const auto door = found == doors_.end() ? nullptr : found->second.lock();
  if (dead_.contains(process)) return SystemError("connect to " + url, ENETDOWN);
  if (dark_.contains(url) || (door != nullptr && !Passes(process, door->process))) return Status(Code::kTimeout, url);
  if (door == nullptr || door->closed || dead_.contains(door->process))
    return SystemError("connect to " + url, ECONNREFUSED);
  auto connection = std::make_shared<Connection>(*this, Wire{++last_, process, door->process});
  connections_.emplace(last_, connection);
  door->Enter(connection);
  Settle(connection);
  return connection;
}

void Network::Settle(const std::shared_ptr<Connection>& connection) {
  tap_.OnOpened(connection->wire());
  if (slow_one_in_ == 0 || simulation_.Draw(slow_one_in_) != 0) return;
  connection->Stall(simulation_.Now() + Clock::duration(simulation_.Draw(static_cast<uint64_t>(slowest_.count()) + 1)));
}

Result<std::unique_ptr<Listener>> Network::Open(const std::string& url) {
  auto& known = doors_[url];
  if (const auto door = known.lock(); door != nullptr && !door->closed && !dead_.contains(door->process))
    return SystemError("listen on " + url, EADDRINUSE);
  auto door = std::make_shared<Door>(simulation_);
  known = door;
  return std::unique_ptr<Listener>(std::make_unique<SimListener>(url, std::move(door)));
}

void Network::Close(const std::string& url, const Door& door) {
  const auto found = doors_.find(url);
  if (found != doors_.end() && found->second.lock().get() == &door) doors_.erase(found);
}

std::vector<std::shared_ptr<Connection>> Network::Living() const {
  std::vector<std::shared_ptr<Connection>> living;
  for (const auto& [number, connection] : connections_)
    if (auto one = connection.lock(); one != nullptr && one->is_in_order()) living.push_back(std::move(one));
  return living;
}

std::vector<Wire> Network::wires() const {
  std::vector<Wire> wires;
  for (const auto& connection : Living()) wires.push_back(connection->wire());
  return wires;
}

std::shared_ptr<Connection> Network::Find(uint64_t wire) const {
  const auto found = connections_.find(wire);
  return found == connections_.end() ? nullptr : found->second.lock();
}

void Network::Reset(uint64_t wire) {
  const auto connection = Find(wire);
  if (connection == nullptr) return;
  const Status why(Code::kPeerLost, "connection " + std::to_string(wire) + ": reset");
  connection->Break(kDialled, why);
  connection->Break(kAccepted, why);
}

void Network::Stall(uint64_t wire, Clock::duration time) {
  if (const auto connection = Find(wire)) connection->Stall(simulation_.Now() + time);
}

void Network::Swallow(uint64_t wire) {
  if (const auto connection = Find(wire)) connection->Swallow();
}

void Network::Cut(uint32_t from, uint32_t to) {
  cuts_.emplace(from, to);
  for (const auto& connection : Living())
    if (!Passes(connection->wire().dialled_by, connection->wire().accepted_by) ||
        !Passes(connection->wire().accepted_by, connection->wire().dialled_by))
      connection->WatchSilence();
}

void Network::Mend(uint32_t from, uint32_t to) {
  cuts_.erase({from, to});
  for (const auto& [number, connection] : connections_)  // of a dead process the last word may be under way
    if (const auto one = connection.lock()) one->Resume();
}

void Network::SlowDials(uint64_t one_in, Clock::duration most) {
  slow_one_in_ = one_in;
  slowest_ = most;
}

void Network::Sever(uint32_t process, bool silently) {
  dead_.insert(process);
  if (silently) silent_.insert(process);
  for (const auto& [url, door] : doors_)
    if (const auto open = door.lock(); silently && open != nullptr && open->process == process) dark_.insert(url);
  for (const auto& connection : Living())
    for (const size_t side : {kDialled, kAccepted})
      if (connection->process(side) == process) connection->Leave(side, silently);
}

// The row of the table of transports
// -----------------------------------------------------------------------------------

}  // namespace byteps_like::sim

namespace byteps_like {

Status SimIsViable() {
  if (sim::Network::Here() != nullptr) return {};
  return Status(Code::kInvalid, "it is for simulations only");
}

Result<std::unique_ptr<Stream>> ConnectSim(const std::string& url, Deadline deadline) {
  return sim::Network::Here()->Dial(url, deadline);
}

Result<std::unique_ptr<Listener>> ListenSim(const std::string& url) { return sim::Network::Here()->Open(url); }

}  // namespace byteps_like
