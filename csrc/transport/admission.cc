#include "csrc/transport/admission.h"

#include <chrono>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/base/thread.h"

namespace byteps_like {
namespace {

constexpr auto kHandshakeTimeout = std::chrono::seconds(5);
constexpr auto kAcceptPause = std::chrono::milliseconds(50);
constexpr auto kTellPause = std::chrono::seconds(10);  // between two complaints about the same
constexpr int kMaxHandshakes = 256;  // at once; more are cut off: nobody unauthenticated may use up threads

}  // namespace

Result<std::unique_ptr<Admission>> Admission::Open(const std::vector<std::string>& urls, Options options) {
  std::unique_ptr<Admission> admission(new Admission(std::move(options)));
  if (Status listening = admission->Listen(urls); !listening.ok()) return listening;
  return admission;
}

Admission::~Admission() { Close(); }

Status Admission::Listen(const std::vector<std::string>& urls) {
  for (const std::string& url : urls) {
    auto listener = byteps_like::Listen(url);
    if (!listener.ok()) return listener.status();
    listeners_.push_back(std::move(*listener));
  }
  for (auto& listener : listeners_) {
    auto acceptor = StartThread("to listen with", [this, &listener] { AcceptLoop(*listener); });
    if (!acceptor.ok()) return acceptor.status();
    acceptors_.push_back(std::move(*acceptor));
  }
  return Status();
}

std::vector<std::string> Admission::urls() const {
  std::vector<std::string> urls;
  for (const auto& listener : listeners_) urls.push_back(listener->url());
  return urls;
}

void Admission::Close() {
  if (closing_.exchange(true)) return;
  for (auto& listener : listeners_) listener->Close();
  for (std::thread& acceptor : acceptors_) acceptor.join();
  {
    std::lock_guard lock(mutex_);
    for (Stream* stream : under_way_) stream->Shutdown();
  }
  for (int waiting = *handshakes_; waiting != 0; waiting = *handshakes_) handshakes_->wait(waiting);
}

void Admission::AcceptLoop(Listener& listener) {
  Deadline told{};
  while (!closing_) {
    auto stream = listener.Accept(Clock::now() + std::chrono::hours(24));
    if (!stream.ok() && stream.status().code() == Code::kClosed) return;
    if (!stream.ok()) {
      // Out of descriptors, most likely: nothing tells when there are some again.
      if (Clock::now() > told + kTellPause) {
        told = Clock::now();
        Log(LogLevel::kWarning, "nobody can come in by " + listener.url() + " now: " + stream.status().message());
      }
      std::this_thread::sleep_for(kAcceptPause);
      continue;
    }
    if (++*handshakes_ > kMaxHandshakes) {
      --*handshakes_;
      continue;
    }
    if (!StartHandshake(std::move(*stream))) std::this_thread::sleep_for(kAcceptPause);
  }
}

// False: no thread can be had, and whoever came is cut off.
bool Admission::StartHandshake(std::unique_ptr<Stream> stream) {
  auto shared = std::make_shared<std::unique_ptr<Stream>>(std::move(stream));
  auto thread = StartThread("to shake hands with", [this, shared, number = ++accepted_, handshakes = handshakes_] {
    Admit(std::move(*shared), number);
    --*handshakes;
    handshakes->notify_all();
  });
  if (thread.ok()) {
    thread->detach();
    return true;
  }
  Log(LogLevel::kWarning, "a connection was cut off: " + thread.status().message());
  --*handshakes_;
  return false;
}

bool Admission::Enter(Stream& stream) {
  std::lock_guard lock(mutex_);
  if (closing_) return false;
  under_way_.insert(&stream);
  return true;
}

void Admission::Leave(Stream& stream) {
  std::lock_guard lock(mutex_);
  under_way_.erase(&stream);
}

void Admission::Admit(std::unique_ptr<Stream> stream, uint64_t number) {
  const auto epoch = options_.epoch();
  if (!epoch || !Enter(*stream)) return;
  const Credentials credentials{options_.job, options_.secret, *epoch};
  auto peer = ServerHandshake(*stream, credentials, Clock::now() + kHandshakeTimeout);
  Leave(*stream);
  if (!peer.ok()) return;  // logged by the handshake, and the peer was told
  options_.admit(std::move(stream), *peer, *epoch, number);
}

}  // namespace byteps_like
