#include "csrc/engine/silence_watch.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace byteps_like {

SilenceWatch::SilenceWatch(EngineContext& context, const std::vector<std::unique_ptr<Channel>>& channels,
                           ChannelOwner& owner, std::function<bool()> is_busy)
    : context_(context), channels_(channels), owner_(owner), is_busy_(std::move(is_busy)) {}

void SilenceWatch::Arm() {
  const EngineOptions& options = context_.options;
  if (armed_ || options.stall_warning <= 0) return;
  armed_ = true;
  const std::chrono::duration<double> period(
      std::clamp(std::min(options.stall_warning, options.stall_timeout) / 5, 0.05, 1.0));
  context_.loop.CallAt(Clock::now() + std::chrono::duration_cast<Clock::duration>(period), [this] { Look(); });
}

void SilenceWatch::Look() {
  armed_ = false;
  bool busy = is_busy_();
  for (const auto& channel : channels_) {
    if (!channel->busy()) continue;
    busy = true;
    if (const Status stalled = Judge(*channel); !stalled.ok()) return owner_.FailOnLoop(stalled);
  }
  if (busy) Arm();
}

Status SilenceWatch::Judge(Channel& channel) {
  const EngineOptions& options = context_.options;
  const std::chrono::duration<double> silence = Clock::now() - channel.last_heard();
  const std::string text = context_.name() + " has heard nothing from " + channel.name() + " for " +
                           std::to_string(static_cast<int>(silence.count())) + " s";
  // Half a warning period of grace: the server's own, better informed, report comes first.
  if (silence.count() >= options.stall_timeout + options.stall_warning / 2) return Status(Code::kStalled, text);
  const auto warnings = static_cast<uint32_t>(silence.count() / (1.5 * options.stall_warning));
  if (warnings > channel.warnings) {
    channel.warnings = warnings;
    options.on_event(Code::kStalled, text, false);
  }
  return Status();
}

}  // namespace byteps_like
