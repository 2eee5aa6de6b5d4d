// byteps_like._core: addresses, sizes and dtype codes cross here; no torch, and nothing specific to a Python version
// beyond nanobind. One *_py.cc per class.
#include "byteps_like/_native/events.h"

namespace nb = nanobind;

namespace byteps_like {

void ThrowIfFailed(const Status& status) {
  if (status.ok()) return;
  const nb::object error =
      nb::module_::import_("byteps_like.errors").attr("from_code")(static_cast<int>(status.code()), status.message());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

}  // namespace byteps_like

NB_MODULE(_core, m) {
  // A worker that ends by an exception still holds its engine in globals and daemon threads: said to be leaks, they
  // would bury the traceback.
  nb::set_leak_warnings(false);
  m.doc() = "Native core of byteps_like";
  // A model that lives until the interpreter ends keeps its arena; that is no leak worth a page of warnings.
  nanobind::set_leak_warnings(false);
  byteps_like::BindBuffer(m);
  byteps_like::BindCodec(m);
  byteps_like::BindEngine(m);
  byteps_like::BindFeedback(m);
  byteps_like::BindFilters(m);
  byteps_like::BindFunctions(m);
  byteps_like::BindOwnFilters();
  byteps_like::BindGpu(m);
  byteps_like::BindGpuCodec(m);
  byteps_like::BindGpuPeers(m);
  byteps_like::BindHost(m);
  byteps_like::BindInprocLink(m);
  byteps_like::BindKernels(m);
  byteps_like::BindLedger(m);
  byteps_like::BindRdma(m);
  byteps_like::BindLowRank(m);
  byteps_like::BindProgram(m);
  byteps_like::BindEntrances(m);
  byteps_like::BindServer(m);
  byteps_like::BindSim(m);
  byteps_like::BindStoreKey(m);
  byteps_like::BindTls(m);
  byteps_like::BindTrace(m);
  byteps_like::BindUpdates(m);
  byteps_like::BindCommunicator(m);
}
