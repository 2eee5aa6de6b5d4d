// A port for all but links: of a process that is no server.
#include <nanobind/stl/vector.h>

#include <utility>

#include "byteps_like/_native/server/entrance.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

// Closing joins threads: always without the GIL.
class PyEntrance {
 public:
  explicit PyEntrance(std::unique_ptr<Admission> admission) : admission_(std::move(admission)) {}
  ~PyEntrance() {
    nb::gil_scoped_release release;
    Close();
    if (fork_guard_.forked()) (void)admission_.release();
  }

  Admission& admission() {
    fork_guard_.Check();
    return *admission_;
  }
  void Close() {
    if (!fork_guard_.forked()) admission_->Close();
  }

 private:
  const ForkGuard fork_guard_;
  std::unique_ptr<Admission> admission_;
};

PyEntrance* Open(const std::string& url, const std::string& job, nb::bytes secret,
                 const std::map<std::string, std::string>& guests) {
  Admission::Options options{job, std::string(secret.c_str(), secret.size()), 0, {}};
  for (const auto& [kind, path] : guests) {
    auto opening = OpeningNamed(kind);
    ThrowIfFailed(opening.status());
    options.guests[*opening] = path;
  }
  auto admission = Admission::Open({url}, std::move(options));
  ThrowIfFailed(admission.status());
  return new PyEntrance(std::move(*admission));
}

}  // namespace

void BindEntrances(nb::module_& m) {
  nb::class_<PyEntrance> entrance(m, "Entrance", "A port; see byteps_like/control/calls/entrance.py.");
  entrance
      .def(nb::new_(&Open), nb::arg("url"), nb::arg("job"), nb::arg("secret"),
           nb::arg("guests") = std::map<std::string, std::string>())
      .def_prop_ro("url", [](PyEntrance& self) { return self.admission().urls().front(); })
      .def(
          "stop_listening", [](PyEntrance& self) { self.admission().StopListening(); },
          nb::call_guard<nb::gil_scoped_release>(), "Nobody comes any more; who is here stays.")
      .def("close", &PyEntrance::Close, nb::call_guard<nb::gil_scoped_release>());
  BindEntrance(entrance, [](PyEntrance& self) -> Admission& { return self.admission(); });
}

}  // namespace byteps_like
