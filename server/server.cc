#include "server/server.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace byteps_like {
namespace {

constexpr auto kHandshakeTimeout = std::chrono::seconds(5);
constexpr auto kAcceptPause = std::chrono::milliseconds(50);
constexpr int kMaxHandshakes = 256;  // at once; more are cut off: nobody unauthenticated may use up threads

}  // namespace

Server::Server(Options options) : options_(std::move(options)) {
  for (uint32_t index = 0; index < options_.shards; ++index) {
    Shard::Options shard;
    shard.index = index;
    shard.memory_limit = options_.memory_limit / options_.shards;
    shard.segment_bytes = std::clamp<size_t>(options_.segment_bytes, 1, kMaxPayload);
    shard.on_event = [this](Code code, const std::string& text, bool fatal) {
      if (fatal) Fail(code, text);
      if (options_.on_event) options_.on_event(code, text, fatal);
    };
    shards_.push_back(std::make_unique<Shard>(std::move(shard)));
  }
}

Result<std::unique_ptr<Server>> Server::Start(Options options) {
  if (options.shards == 0) return Status(Code::kInvalid, "a server needs at least one shard");
  std::unique_ptr<Server> server(new Server(std::move(options)));
  Status listening = server->Listen();
  if (!listening.ok()) return listening;
  return server;
}

Server::~Server() { Stop(); }

Status Server::Listen() {
  for (const std::string& url : options_.urls) {
    auto listener = byteps_like::Listen(url);
    if (!listener.ok()) return listener.status();
    listeners_.push_back(std::move(*listener));
  }
  for (auto& listener : listeners_) acceptors_.emplace_back([this, &listener] { AcceptLoop(*listener); });
  return Status();
}

std::vector<std::string> Server::urls() const {
  std::vector<std::string> urls;
  for (const auto& listener : listeners_) urls.push_back(listener->url());
  return urls;
}

void Server::SetWorld(const ShardWorld& world) {
  for (auto& shard : shards_) shard->SetWorld(world);
  epoch_ = world.epoch;
}

void Server::Fail(Code code, const std::string& text) {
  for (auto& shard : shards_) shard->Fail(code, text);
}

void Server::Stop() {
  if (stopping_.exchange(true)) return;
  for (auto& listener : listeners_) listener->Close();
  for (std::thread& acceptor : acceptors_) acceptor.join();
  for (int waiting = *handshakes_; waiting != 0; waiting = *handshakes_) handshakes_->wait(waiting);
  // All of them before any is destroyed: a shard's last words go to the others.
  for (auto& shard : shards_) shard->Stop();
}

void Server::AcceptLoop(Listener& listener) {
  while (!stopping_) {
    auto stream = listener.Accept(Clock::now() + std::chrono::hours(24));
    if (!stream.ok() && stream.status().code() == Code::kClosed) return;
    if (!stream.ok()) {
      // Out of descriptors, most likely: nothing tells when there are some again.
      std::this_thread::sleep_for(kAcceptPause);
      continue;
    }
    if (++*handshakes_ > kMaxHandshakes) {
      --*handshakes_;
      continue;
    }
    auto shared = std::make_shared<std::unique_ptr<Stream>>(std::move(*stream));
    std::thread([this, shared, number = ++accepted_, handshakes = handshakes_] {
      Admit(std::move(*shared), number);
      --*handshakes;
      handshakes->notify_all();
    }).detach();
  }
}

void Server::Admit(std::unique_ptr<Stream> stream, uint64_t number) {
  const Credentials credentials{options_.job, options_.secret, epoch_};
  auto peer = ServerHandshake(*stream, credentials, Clock::now() + kHandshakeTimeout);
  if (!peer.ok()) return;  // logged by the handshake, and the peer was told
  if (peer->role != Role::kWorker || peer->shard >= shards_.size()) return stream->Shutdown();
  shards_[peer->shard]->AddLink(std::move(stream), *peer, credentials.epoch, number);
}

}  // namespace byteps_like
