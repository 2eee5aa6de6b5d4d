// inproc: both ends in this process. For tests, for a worker and a server in one process, and for the portable door.
#include <fcntl.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "csrc/transport/memory/ring_stream.h"
#include "csrc/transport/stream.h"

namespace byteps_like {
namespace {

// Descriptors on their way to one end.
struct Parcel {
  std::mutex mutex;
  std::deque<Fd> fds;
};

class LocalChannel final : public PeerChannel {
 public:
  LocalChannel(std::string name, std::shared_ptr<Parcel> in, std::shared_ptr<Parcel> out)
      : name_(std::move(name)), in_(std::move(in)), out_(std::move(out)) {}

  bool alive() const override { return true; }  // as long as we are
  int fd() const override { return -1; }
  std::string peer() const override { return "inproc " + name_; }

  Status Pass(int fd) override {
    Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy) return SystemError("pass a shared buffer", errno);
    std::lock_guard lock(out_->mutex);
    out_->fds.push_back(std::move(copy));
    return {};
  }

  Result<Fd> Take() override {
    std::lock_guard lock(in_->mutex);
    if (in_->fds.empty()) return Status(Code::kCorrupt, peer() + " announced a shared buffer but passed none");
    Fd fd = std::move(in_->fds.front());
    in_->fds.pop_front();
    return fd;
  }

 private:
  const std::string name_;
  const std::shared_ptr<Parcel> in_, out_;
};

using Pair = std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>>;

Result<Pair> MakePair(const std::string& name) {
  auto memory = MakeRingMemory();
  if (!memory.ok()) return memory.status();
  auto parcels = std::pair{std::make_shared<Parcel>(), std::make_shared<Parcel>()};
  RingEnd ends[2];
  for (int side = 0; side < 2; ++side) {
    auto doorbell = MakeDoorbell();
    if (!doorbell.ok()) return doorbell.status();
    ends[1 - side].peer_doorbell = std::move(doorbell->button);
    ends[side].doorbell = std::move(doorbell->inside);
    ends[side].memory = *memory;
    ends[side].side = side;
  }
  ends[0].channel = std::make_unique<LocalChannel>(name, parcels.first, parcels.second);
  ends[1].channel = std::make_unique<LocalChannel>(name, parcels.second, parcels.first);
  return Pair{std::make_unique<RingStream>(std::move(ends[0])), std::make_unique<RingStream>(std::move(ends[1]))};
}

// Where connections to one name wait to be accepted.
struct Door {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::unique_ptr<Stream>> waiting;
  bool closed = false;
};

struct Doors {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Door>> by_url;
};

Doors& AllDoors() {
  static auto* doors = new Doors();  // leaked on purpose: listeners may close during static destruction
  return *doors;
}

class InprocListener final : public Listener {
 public:
  InprocListener(std::string url, std::shared_ptr<Door> door) : url_(std::move(url)), door_(std::move(door)) {}
  ~InprocListener() override { Close(); }

  Result<std::unique_ptr<Stream>> Accept(Deadline deadline) override {
    std::unique_lock lock(door_->mutex);
    const bool ready =
        door_->changed.wait_until(lock, deadline, [this] { return door_->closed || !door_->waiting.empty(); });
    if (door_->closed) return Status(Code::kClosed, "the listener on " + url_ + " is closed");
    if (!ready) return Status(Code::kTimeout, "nobody connected to " + url_ + " in time");
    auto stream = std::move(door_->waiting.front());
    door_->waiting.pop_front();
    return stream;
  }

  std::string url() const override { return url_; }

  void Close() override {
    {
      std::lock_guard lock(AllDoors().mutex);
      auto& by_url = AllDoors().by_url;
      const auto found = by_url.find(url_);
      if (found != by_url.end() && found->second.lock() == door_) by_url.erase(found);
    }
    std::deque<std::unique_ptr<Stream>> refused;
    std::lock_guard lock(door_->mutex);
    door_->closed = true;
    refused.swap(door_->waiting);
    door_->changed.notify_all();
  }

 private:
  const std::string url_;
  const std::shared_ptr<Door> door_;
};

}  // namespace

Result<std::unique_ptr<Stream>> ConnectInproc(const std::string& url, Deadline) {
  std::shared_ptr<Door> door;
  {
    std::lock_guard lock(AllDoors().mutex);
    const auto found = AllDoors().by_url.find(url);
    if (found != AllDoors().by_url.end()) door = found->second.lock();
  }
  if (door == nullptr) return SystemError("connect to " + url, ECONNREFUSED);
  auto pair = MakePair(url.substr(url.find("://") + 3));
  if (!pair.ok()) return pair.status();
  std::lock_guard lock(door->mutex);
  if (door->closed) return SystemError("connect to " + url, ECONNREFUSED);
  door->waiting.push_back(std::move(pair->second));
  door->changed.notify_one();
  return std::move(pair->first);
}

Result<std::unique_ptr<Listener>> ListenInproc(const std::string& url) {
  std::lock_guard lock(AllDoors().mutex);
  auto& known = AllDoors().by_url[url];
  if (known.lock() != nullptr) return SystemError("listen on " + url, EADDRINUSE);
  auto door = std::make_shared<Door>();
  known = door;
  return std::unique_ptr<Listener>(std::make_unique<InprocListener>(url, std::move(door)));
}

}  // namespace byteps_like
