// Log records of the native core. They go to standard error unless a sink is set.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace byteps_like {

// The values of Python's `logging`.
enum class LogLevel : uint8_t { kDebug = 10, kInfo = 20, kWarning = 30, kError = 40 };

// Called from any thread, also from loop threads: must not block for long nor call back into the core.
using LogSink = std::function<void(LogLevel level, std::string_view text)>;

// Replaces the process-wide sink; an empty one restores the default (warnings and errors to standard error). Records
// that other threads began before the call may still reach the old sink.
void SetLogSink(LogSink sink);

void Log(LogLevel level, const std::string& text);

}  // namespace byteps_like
