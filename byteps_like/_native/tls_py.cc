// Encryption as Python sees it: whether it works here, what it costs, and the control plane's certificates.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>

#include "byteps_like/_native/events.h"
#include "csrc/transport/links/link_rate.h"
#include "csrc/transport/tls/certificate.h"
#include "csrc/transport/tls/connection.h"

namespace nb = nanobind;

namespace byteps_like {
namespace {

std::tuple<std::string, std::string, std::string> Certify(nb::bytes secret) {
  auto made = tls::MakeCertificate(std::string(secret.c_str(), secret.size()));
  ThrowIfFailed(made.status());
  return {made->key, made->certificate, made->authority};
}

double LinkRate(const std::string& url, size_t bytes) {
  auto rate = [&] {
    nb::gil_scoped_release release;
    return MeasureLink(url, bytes);
  }();
  ThrowIfFailed(rate.status());
  return *rate;
}

}  // namespace

void BindTls(nb::module_& m) {
  m.def(
      "why_no_tls", [] { return tls::Connection::IsViable().message(); },
      "Why links can't be encrypted in this process; \"\" if they can.");
  m.def("certify", &Certify, nb::arg("secret"),
        "PEM texts: a fresh key, its certificate for the name CERTIFICATE_NAME, and the authority of this secret, which"
        " signed it.");
  m.attr("CERTIFICATE_NAME") = tls::kCertificateName;
  m.def("link_rate", &LinkRate, nb::arg("url"), nb::arg("nbytes"),
        "Bytes of payload per second on a link between two threads that listen and connect at `url`. Blocks without the"
        " GIL.");
}

}  // namespace byteps_like
