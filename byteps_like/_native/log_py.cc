// Log records of the core, for byteps_like/log.py to hand to Python's `logging`.
#include "byteps_like/_native/events.h"
#include "csrc/base/log.h"

namespace nb = nanobind;

namespace byteps_like {

void BindLog(nb::module_& m) {
  static EventQueue* const records = new EventQueue;  // threads may log until the process ends
  m.def("capture_log", [] {
    SetLogSink([](LogLevel level, std::string_view text) {
      records->Push(static_cast<int>(level), std::string(text), false);
    });
  });
  m.def(
      "next_log_record", [](double seconds) { return BlockWithoutGil([&] { return records->Pop(seconds); }); },
      nb::arg("seconds"), "(level, text, False) of the oldest record not taken, or None.");
}

}  // namespace byteps_like
