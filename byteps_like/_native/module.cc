// byteps_like._core: addresses, sizes and dtype codes cross here; no torch, and nothing specific to a Python version
// beyond nanobind. One *_py.cc per class.
#include <nanobind/nanobind.h>

namespace byteps_like {
void BindKernels(nanobind::module_& m);
}  // namespace byteps_like

NB_MODULE(_core, m) {
  m.doc() = "Native core of byteps_like";
  byteps_like::BindKernels(m);
}
