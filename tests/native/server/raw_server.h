// An engine whose only server is the test: it says byte by byte what a server would never send, or not in this order.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "csrc/engine/engine.h"
#include "tests/native/server/raw_worker.h"

namespace byteps_like::testing {

class RawServer {
 public:
  explicit RawServer(const std::string& scheme = "inproc") {
    auto listener = Listen(FreshUrl(scheme));
    if (!listener.ok()) throw std::runtime_error(listener.status().message());
    EngineOptions options;
    options.credentials = {"job", std::string(32, 's'), 1};
    options.bounce_bytes = 0;
    options.on_event = [](Code, const std::string&, bool) {};
    std::thread accept([&] {
      auto stream = (*listener)->Accept(In(5));
      if (stream.ok() && ServerHandshake(**stream, options.credentials, In(5)).ok())
        link_ = std::make_unique<RawLink>(std::move(*stream));
    });
    auto engine = Engine::Start(options, {{0, 0, {(*listener)->url()}}});
    accept.join();
    if (!engine.ok()) throw std::runtime_error(engine.status().message());
    engine_ = std::move(*engine);
  }

  Engine& engine() { return *engine_; }
  RawLink& link() { return *link_; }

 private:
  std::unique_ptr<RawLink> link_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace byteps_like::testing
