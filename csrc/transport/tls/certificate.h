// Certificates of the control plane, whose gRPC knows no pre-shared keys: the job's secret makes a P-256 key, the job's
// authority, and who listens makes itself a certificate that the authority has signed. All members can do so, nobody
// else can, and all trust this authority alone.
#pragma once

#include <string>

#include "csrc/base/status.h"

namespace byteps_like::tls {

inline constexpr char kCertificateName[] = "byteps-like";  // for whom it is, wherever it listens

struct Certificate {             // all PEM
  std::string key, certificate;  // fresh ones
  std::string authority;         // its key is the same for all who have the secret
};

Result<Certificate> MakeCertificate(const std::string& secret);  // kSystem if OpenSSL fails

}  // namespace byteps_like::tls
