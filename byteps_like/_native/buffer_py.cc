#include <fcntl.h>
#include <nanobind/stl/shared_ptr.h>

#include <cerrno>

#include "byteps_like/_native/events.h"
#include "csrc/transport/memory/shared_buffer.h"

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
      .def_static(
          "map",
          [](int fd) {
            const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
            if (own < 0) ThrowIfFailed(SystemError("a shared buffer's file", errno));
            auto buffer = SharedBuffer::Map(own);
            ThrowIfFailed(buffer.status());
            return *buffer;
          },
          nb::arg("fd"), "That of another process, by an open file of it. Raises CorruptError for any other file.")
      .def_prop_ro("fd", &SharedBuffer::fd)
      .def_prop_ro("address", [](const SharedBuffer& self) { return reinterpret_cast<uintptr_t>(self.data()); })
      .def_prop_ro("nbytes", &SharedBuffer::size);
}

}  // namespace byteps_like
