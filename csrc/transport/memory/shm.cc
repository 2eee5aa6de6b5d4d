// shm: between processes of one host. The two meet at an abstract unix socket, "\0byteps_like/<name>", which leaves no
// file behind; the listening side makes the rings and doorbells and passes them through it.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "csrc/base/log.h"
#include "csrc/transport/memory/ring_stream.h"
#include "csrc/transport/memory/socket_channel.h"
#include "csrc/transport/stream.h"
#include "csrc/transport/tcp/listen_socket.h"

namespace byteps_like {
namespace {

constexpr std::string_view kScheme = "shm://";
constexpr std::string_view kPrefix = "byteps_like/";
constexpr int kBacklog = 1024;

// The only message before the rings: it describes the descriptors that come with it. In the byte order of the host,
// which both ends share.
struct Offer {
  uint32_t magic = 0x534C5042;  // "BPLS"
  uint32_t layout = 2;          // of the shared page and the descriptors
  uint64_t memory_bytes = RingMemoryBytes();
};

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

Result<Address> AddressOf(const std::string& url) {
  const std::string path = std::string(kPrefix) + url.substr(kScheme.size());
  Address address;
  if (path.size() + 1 > sizeof(address.name.sun_path)) {
    return Status(Code::kInvalid, "address " + url + ": the name is too long for a unix socket");
  }
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path + 1, path.data(), path.size());  // the zero before it makes it abstract
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  return address;
}

Result<std::unique_ptr<Stream>> Offering(Fd socket) {
  const int raw = socket.get();
  auto channel = SocketChannel::Make(std::move(socket));
  if (!channel.ok()) return channel.status();
  auto memory = MakeRingMemory();
  auto doorbell = MakeDoorbell();
  auto peer_doorbell = MakeDoorbell();
  for (const Status& status : {memory.status(), doorbell.status(), peer_doorbell.status()}) {
    if (!status.ok()) return status;
  }
  const Offer offer;
  const Status sent =
      SendWithFds(raw, &offer, sizeof(offer), {(*memory)->fd(), doorbell->button.get(), peer_doorbell->inside.get()});
  if (!sent.ok()) return sent;
  RingEnd end{*memory, 0, std::move(doorbell->inside), std::move(peer_doorbell->button), std::move(*channel)};
  return std::unique_ptr<Stream>(std::make_unique<RingStream>(std::move(end)));
}

Result<Received> AwaitOffer(int socket, const std::string& url, Deadline deadline) {
  auto ready = PollUntil(socket, POLLIN, deadline);
  if (!ready.ok()) return ready.status();
  if (!*ready) return Status(Code::kTimeout, "connect to " + url + ": no answer in time");
  Offer offer;
  auto received = ReceiveWithFds(socket, &offer, sizeof(offer));
  if (!received.ok()) return Status(received.status().code(), "connect to " + url + ": " + received.status().message());
  const Offer expected;
  if (received->bytes != sizeof(offer) || std::memcmp(&offer, &expected, sizeof(offer)) != 0 ||
      received->fds.size() != 3) {
    return Status(Code::kCorrupt, "connect to " + url + ": it offers no rings of this release");
  }
  return received;
}

Result<std::unique_ptr<Stream>> Accepting(Fd socket, const std::string& url, Deadline deadline) {
  const int raw = socket.get();
  auto channel = SocketChannel::Make(std::move(socket));
  if (!channel.ok()) return channel.status();
  auto received = AwaitOffer(raw, url, deadline);
  if (!received.ok()) return received.status();
  auto memory = SharedBuffer::Map(received->fds[0].Release());
  if (!memory.ok()) return memory.status();
  if ((*memory)->size() != RingMemoryBytes()) {
    return Status(Code::kCorrupt, "connect to " + url + ": its rings have another size than it says");
  }
  RingEnd end{*memory, 1, std::move(received->fds[2]), std::move(received->fds[1]), std::move(*channel)};
  return std::unique_ptr<Stream>(std::make_unique<RingStream>(std::move(end)));
}

class ShmListener final : public Listener {
 public:
  explicit ShmListener(std::unique_ptr<ListenSocket> socket) : socket_(std::move(socket)) {}
  ~ShmListener() override { Close(); }

  Result<std::unique_ptr<Stream>> Accept(Deadline deadline) override {
    for (;;) {
      auto fd = socket_->Accept(deadline);
      if (!fd.ok()) return fd.status();
      auto stream = Offering(std::move(*fd));
      const Code code = stream.status().code();
      if (code != Code::kRefused && code != Code::kPeerLost) return stream;
      Log(LogLevel::kWarning, "connection to " + url() + ": " + stream.status().message());
    }
  }

  std::string url() const override { return socket_->url(); }
  void Close() override { socket_->Close(); }

 private:
  const std::unique_ptr<ListenSocket> socket_;
};

Result<Fd> MakeSocket(int flags) {
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!fd) return SystemError("unix socket", errno);
  return fd;
}

}  // namespace

Result<std::unique_ptr<Stream>> ConnectShm(const std::string& url, Deadline deadline) {
  auto address = AddressOf(url);
  if (!address.ok()) return address.status();
  auto fd = MakeSocket(0);
  if (!fd.ok()) return fd.status();
  // A unix connect only waits when the backlog is full, and then for as long as this.
  const auto left =
      std::max<int64_t>(1, std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now()).count());
  const timeval limit{left / 1'000'000, left % 1'000'000};
  ::setsockopt(fd->get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (::connect(fd->get(), address->get(), address->size) != 0) {
    if (errno == EAGAIN) return Status(Code::kTimeout, "connect to " + url + ": no answer in time");
    return SystemError("connect to " + url, errno);
  }
  return Accepting(std::move(*fd), url, deadline);
}

Result<std::unique_ptr<Listener>> ListenShm(const std::string& url) {
  auto address = AddressOf(url);
  if (!address.ok()) return address.status();
  auto fd = MakeSocket(SOCK_NONBLOCK);
  if (!fd.ok()) return fd.status();
  if (::bind(fd->get(), address->get(), address->size) != 0) return SystemError("listen on " + url, errno);
  if (::listen(fd->get(), kBacklog) != 0) return SystemError("listen on " + url, errno);
  auto socket = ListenSocket::Make(std::move(*fd), url);
  if (!socket.ok()) return socket.status();
  return std::unique_ptr<Listener>(std::make_unique<ShmListener>(std::move(*socket)));
}

Status ShmIsViable() { return MakeRingMemory().status(); }

}  // namespace byteps_like
