// Finds the frames in what one way of a connection carries: behind the messages of the handshake.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "csrc/wire/frame.h"

namespace byteps_like::sim {

class FrameScanner {
 public:
  // `back`: from the server to the worker.
  explicit FrameScanner(bool back);

  // `on_bytes`: of the handshake, or what is no frame. `on_frame`: its header, and all its bytes with that.
  using OnBytes = std::function<void(std::span<const std::byte>)>;
  using OnFrame = std::function<void(const Header&, std::span<const std::byte>)>;
  void Feed(std::span<const std::byte> bytes, const OnBytes& on_bytes, const OnFrame& on_frame);

 private:
  bool TakeFrame(const OnBytes& on_bytes, const OnFrame& on_frame);

  size_t handshake_;  // bytes of it that are still to come
  bool garbled_ = false;
  std::vector<std::byte> held_;
};

}  // namespace byteps_like::sim
