#include "collectives/mesh_dial.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "csrc/base/log.h"

namespace byteps_like {
namespace {

constexpr auto kOneTry = std::chrono::seconds(2);
constexpr auto kFirstPause = std::chrono::milliseconds(2);  // between tries, doubled up to:
constexpr auto kLongestPause = std::chrono::milliseconds(50);
// A peer listens before the world is formed: where nobody does any more, its process has gone. Not at the first
// refusal: a backlog may be full.
constexpr auto kNobodyThere = std::chrono::milliseconds(200);

}  // namespace

struct MeshDial::State {
  Target target;
  Done done;
  std::mutex mutex;
  std::condition_variable changed;
  bool cancelled = false;
  Stream* stream = nullptr;  // in its handshake

  bool Pause(Clock::duration time) {  // false: cancelled
    std::unique_lock lock(mutex);
    return !changed.wait_for(lock, time, [&] { return cancelled; });
  }
  bool Enter(Stream* entering) {
    std::lock_guard lock(mutex);
    stream = entering;
    return !cancelled;
  }
};

MeshDial::MeshDial(Target target, Done done) : state_(std::make_shared<State>()) {
  state_->target = std::move(target);
  state_->done = std::move(done);
  try {
    thread_ = std::thread([state = state_] {
      auto stream = Run(*state);
      if (state->Enter(nullptr)) state->done(std::move(stream));
    });
  } catch (const std::system_error& error) {
    state_->done(Status(Code::kSystem, std::string("no thread to dial with: ") + error.what()));
  }
}

MeshDial::~MeshDial() {
  {
    std::lock_guard lock(state_->mutex);
    state_->cancelled = true;
    if (state_->stream != nullptr) state_->stream->Shutdown();
    state_->changed.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Result<std::unique_ptr<Stream>> MeshDial::Run(State& state) {
  const Deadline nobody = Clock::now() + kNobodyThere;
  Status last(Code::kInvalid, "it has no address");
  for (auto pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    bool anybody = false;
    for (const std::string& url : state.target.urls) {
      auto stream = Try(state, url);
      if (stream.ok() && &url != &state.target.urls.front()) {
        Log(LogLevel::kInfo, "connected to " + url + ", a better way being closed: " + last.message());
      }
      if (stream.ok() || stream.status().code() == Code::kRefused) return stream;
      last = stream.status();
      anybody = anybody || last.code() != Code::kSystem;
    }
    const Deadline deadline = anybody ? state.target.deadline : std::min(nobody, state.target.deadline);
    if (Clock::now() + pause > deadline || !state.Pause(pause)) return last;
  }
}

Result<std::unique_ptr<Stream>> MeshDial::Try(State& state, const std::string& url) {
  const Target& target = state.target;
  auto stream = byteps_like::Connect(url, std::min(target.deadline, Clock::now() + kOneTry));
  if (!stream.ok()) return stream;
  if (!state.Enter(stream->get())) return Status(Code::kClosed, "cancelled");
  // The peer answers when it knows of this world, which may take it a while.
  Status met = ClientHandshake(**stream, target.credentials, target.self, target.deadline);
  state.Enter(nullptr);
  if (!met.ok()) return met;
  return stream;
}

}  // namespace byteps_like
