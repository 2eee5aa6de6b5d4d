// The accepting side: requests for queue pairs are put together to connections.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <list>
#include <mutex>
#include <vector>

#include "csrc/base/fd.h"
#include "csrc/transport/rdma/endpoint.h"
#include "csrc/transport/stream.h"

namespace byteps_like::rdma {

class RdmaListener final : public Listener {
 public:
  // On all hosts of the options, under one port number. kSystem names a host that is no RDMA device's, or a port that
  // is taken.
  static Result<std::unique_ptr<Listener>> Make(Options options);
  ~RdmaListener() override;

  Result<std::unique_ptr<Stream>> Accept(Deadline deadline) override;
  std::string url() const override { return options_.url(); }
  void Close() override;

 private:
  struct Pending {  // a connection whose queue pairs have not all arrived
    std::string source;
    Greeting first;
    std::unique_ptr<Endpoint> endpoint;
    uint32_t asked = 0, established = 0;
    const Deadline since = Clock::now();
  };

  RdmaListener(Options options, CookieJar cookies) : cookies_(cookies), options_(std::move(options)) {}
  Status Listen(size_t rail);
  Status CheckDevice(const verbs::CmId& id, const std::string& what) const;
  Status MakeWatch();
  std::unique_ptr<Endpoint> TakeEvents();
  std::unique_ptr<Endpoint> OnEvent(CmEvent event);
  void OnRequest(CmEvent event);
  Status Admit(CmId id, const Greeting& greeting);
  Cookie CookieOf(const verbs::CmId& id, const Greeting& greeting) const;
  bool MayCome(const verbs::CmId& id, const Greeting& greeting);
  bool MakeRoom(const std::string& source);
  Deadline DropLate();
  Result<Pending*> PendingOf(const verbs::CmId& id, const Greeting& greeting);
  std::unique_ptr<Endpoint> OnEstablished(verbs::CmId* id);
  void Drop(const verbs::CmId* id);

  const CookieJar cookies_;
  Options options_;
  Fd stop_, watch_;
  CmChannel channel_;
  std::mutex mutex_;  // guards the members below: Close comes from any thread
  std::vector<CmId> listening_;
  std::list<Pending> pending_;
  std::atomic<bool> closed_{false};
};

}  // namespace byteps_like::rdma
