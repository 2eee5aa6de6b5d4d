#include "csrc/base/log.h"

#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

#include "csrc/base/simulation.h"

namespace byteps_like {
namespace {

std::mutex sink_mutex;

std::shared_ptr<LogSink>& Sink() {
  // Leaked on purpose: threads may still log while the process runs its static destructors.
  static auto* sink = new std::shared_ptr<LogSink>();
  return *sink;
}

void ToStandardError(LogLevel level, const std::string& text) {
  if (level < LogLevel::kWarning) return;
  std::fprintf(stderr, "byteps_like %s: %s\n", level == LogLevel::kError ? "error" : "warning", text.c_str());
}

}  // namespace

void SetLogSink(LogSink sink) {
  auto fresh = sink ? std::make_shared<LogSink>(std::move(sink)) : nullptr;
  std::lock_guard lock(sink_mutex);
  Sink().swap(fresh);
}

void Log(LogLevel level, const std::string& text) {
  if (Simulation* const simulation = TheSimulation()) return simulation->Log(level, text);
  std::shared_ptr<LogSink> sink;
  {
    std::lock_guard lock(sink_mutex);
    sink = Sink();
  }
  if (sink != nullptr) {
    (*sink)(level, text);
  } else {
    ToStandardError(level, text);
  }
}

}  // namespace byteps_like
