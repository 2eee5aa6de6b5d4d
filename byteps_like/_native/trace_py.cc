// The rings of csrc/base/trace.h, for byteps_like/timeline/recorder.py to drain.
#include <nanobind/stl/vector.h>

#include "byteps_like/_native/events.h"
#include "csrc/base/trace.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

nb::tuple Drain() {
  const Traced traced = BlockWithoutGil([] { return DrainTrace(); });
  const nb::bytes records(reinterpret_cast<const char*>(traced.records.data()),
                          traced.records.size() * sizeof(TraceRecord));
  return nb::make_tuple(records, traced.lost);
}

}  // namespace

void BindTrace(nb::module_& m) {
  m.def("trace_start", &StartTracing, nb::arg("records"), "Each thread's ring holds so many from here on.");
  m.def("trace_stop", &StopTracing);
  m.def("trace_drain", &Drain, "(records as bytes, how many were ever lost): see byteps_like/timeline/records.py.");
  m.def("trace_texts", &TraceTexts, nb::arg("first"), "Those numbered `first` and above, from 1.");
}

}  // namespace byteps_like
