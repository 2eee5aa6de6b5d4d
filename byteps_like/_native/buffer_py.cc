#include <nanobind/stl/shared_ptr.h>

#include "byteps_like/_native/events.h"
#include "csrc/transport/shared_buffer.h"

namespace nb = nanobind;

namespace byteps_like {

void BindBuffer(nb::module_& m) {
  nb::class_<SharedBuffer>(m, "SharedBuffer",
                           "Zero-filled memory that same-host servers can map; freed with its last owner.")
      .def(nb::new_([](size_t nbytes) {
             auto buffer = SharedBuffer::Create(nbytes);
             ThrowIfFailed(buffer.status());
             return *buffer;
           }),
           nb::arg("nbytes"))
      .def_prop_ro("address", [](const SharedBuffer& self) { return reinterpret_cast<uintptr_t>(self.data()); })
      .def_prop_ro("nbytes", &SharedBuffer::size);
}

}  // namespace byteps_like
