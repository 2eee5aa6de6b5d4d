// Error feedback at the server, for codecs with `two_way`: the encoding error of a key's results so far is added to the
// sum of the next round. (Double squeeze: Tang et al., ICML 2019.) Non-finite elements leave no error behind.
#pragma once

#include <memory>

#include "server/codecs.h"
#include "server/memory.h"
#include "server/policy/policy.h"

namespace byteps_like {

class ServerFeedback final : public Update {
 public:
  explicit ServerFeedback(ShardMemory& memory) : memory_(memory) {}
  static std::unique_ptr<Update> Make(ShardMemory& memory) { return std::make_unique<ServerFeedback>(memory); }

  // Adds the error so far to `sum`, and remembers the total.
  Status Apply(const Terms& terms, std::span<std::byte> sum) override;
  void Encoded(const Terms& terms, const Draw& draw, std::byte* workspace, Bytes result) override;
  std::span<const float> residual() const { return {values(), numel_}; }

 private:
  float* values() const { return reinterpret_cast<float*>(buffer_.data()); }

  ShardMemory& memory_;
  ShardBuffer buffer_;
  uint32_t numel_ = 0;                  // 0: nothing yet
  const ServerCodec* codec_ = nullptr;  // whose results left the error
};

}  // namespace byteps_like
