#include "collectives/mesh/mesh_dial.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/base/thread.h"

namespace byteps_like {
namespace {

constexpr auto kOneTry = std::chrono::seconds(2);
constexpr auto kFirstPause = std::chrono::milliseconds(2);  // between tries, doubled up to:
constexpr auto kLongestPause = std::chrono::milliseconds(50);
// A peer listens before the world is formed, so if its address refuses connections, its process is gone. Not at the
// first refusal: a backlog may be full.
constexpr auto kNobodyThere = std::chrono::milliseconds(200);

}  // namespace

// One attempt ---------------------------------------------------------------------------------------------------------

void MeshDial::Run() {
  auto stream = Dial();
  if (Enter(nullptr)) done_(std::move(stream));
}

void MeshDial::Cancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (stream_ != nullptr) stream_->Shutdown();
  changed_.notify_all();
}

bool MeshDial::Pause(Clock::duration time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [&] { return cancelled_; });
}

bool MeshDial::Enter(Stream* stream) {
  std::lock_guard lock(mutex_);
  stream_ = stream;
  return !cancelled_;
}

Result<std::unique_ptr<Stream>> MeshDial::Dial() {
  const Deadline begin = Clock::now(), end = begin + target_.patience;
  Status last(Code::kInvalid, "it has no address");
  for (auto pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    bool nobody = true;
    for (const std::string& url : target_.urls) {
      bool certain = false;
      auto stream = byteps_like::Connect(url, std::min(end, Clock::now() + kOneTry));
      nobody = nobody && stream.status().code() == Code::kPeerLost;
      if (stream.ok()) stream = Greet(std::move(*stream), end, certain);
      if (stream.ok() && &url != &target_.urls.front()) {
        Log(LogLevel::kInfo, "connected to " + url + ", a better way being closed: " + last.message());
      }
      if (stream.ok() || (stream.status().code() == Code::kRefused && certain)) return stream;
      last = stream.status();
    }
    const Deadline deadline = nobody ? std::min(begin + kNobodyThere, end) : end;
    if (Clock::now() + pause > deadline || !Pause(pause)) return last;
  }
}

// The peer answers when it knows of this world, which may take it a while.
Result<std::unique_ptr<Stream>> MeshDial::Greet(std::unique_ptr<Stream> stream, Deadline deadline, bool& certain) {
  if (!Enter(stream.get())) return Status(Code::kClosed, "cancelled");
  const Meeting met = Meet(*stream, target_.credentials, target_.who, deadline);
  Enter(nullptr);
  certain = met.certain;
  if (!met.status.ok()) return met.status;
  return stream;
}

// The threads that dial -----------------------------------------------------------------------------------------------

Status MeshDialers::Start(std::shared_ptr<MeshDial> dial) {
  std::lock_guard lock(mutex_);
  if (closed_) return Status(Code::kClosed, "the mesh is closed");
  waiting_.push_back(std::move(dial));
  const auto over = [](const Dialer& dialer) { return dialer.over; };
  const auto free = std::find_if(dialers_.begin(), dialers_.end(), over);
  if (free == dialers_.end()) return {};
  if (free->thread.joinable()) free->thread.join();  // it has let go of the mutex for the last time
  auto thread = StartThread("to dial with", [this, free] { Serve(*free); });
  if (thread.ok()) {
    free->thread = std::move(*thread);
    free->over = false;
    return {};
  }
  if (!std::all_of(dialers_.begin(), dialers_.end(), over)) return {};
  waiting_.pop_back();
  return thread.status();
}

void MeshDialers::Serve(Dialer& self) {
  for (;;) {
    std::shared_ptr<MeshDial> dial;
    {
      std::lock_guard lock(mutex_);
      self.dial = nullptr;
      self.over = waiting_.empty();
      if (self.over) return;
      dial = self.dial = std::move(waiting_.front());
      waiting_.pop_front();
    }
    dial->Run();
  }
}

void MeshDialers::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    waiting_.clear();
    for (Dialer& dialer : dialers_) {
      if (dialer.dial != nullptr) dialer.dial->Cancel();
    }
  }
  for (Dialer& dialer : dialers_) {
    if (dialer.thread.joinable()) dialer.thread.join();
  }
}

}  // namespace byteps_like
