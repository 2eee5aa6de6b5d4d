// Servers that say nothing. One that waits for another rank keeps warning us; one that is stopped or cut off is silent.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "csrc/engine/channel.h"
#include "csrc/engine/engine_context.h"

namespace byteps_like {

// While anything is under way: warns of every channel that has been silent for too long, and in the end fails the job.
// On the I/O thread.
class SilenceWatch {
 public:
  // `is_busy`: whether anything but the channels is under way; asked at each look, and may fail the job by itself.
  SilenceWatch(EngineContext& context, const std::vector<std::unique_ptr<Channel>>& channels, ChannelOwner& owner,
               std::function<bool()> is_busy);
  void Arm();  // something is under way; idempotent

 private:
  void Look();
  Status Judge(Channel& channel);  // kStalled: it has been silent for too long

  EngineContext& context_;
  const std::vector<std::unique_ptr<Channel>>& channels_;
  ChannelOwner& owner_;
  const std::function<bool()> is_busy_;
  bool armed_ = false;
};

}  // namespace byteps_like
