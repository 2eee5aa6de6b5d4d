// The functions behind the rows of the transport table; one pair per transport.
#pragma once

#include <memory>
#include <string>

#include "csrc/transport/stream.h"

namespace byteps_like {

Result<std::unique_ptr<Stream>> ConnectInproc(const std::string& url, Deadline deadline);
Result<std::unique_ptr<Listener>> ListenInproc(const std::string& url);

Result<std::unique_ptr<Stream>> ConnectTcp(const std::string& url, Deadline deadline);
Result<std::unique_ptr<Listener>> ListenTcp(const std::string& url);

Status ShmIsViable();
Result<std::unique_ptr<Stream>> ConnectShm(const std::string& url, Deadline deadline);
Result<std::unique_ptr<Listener>> ListenShm(const std::string& url);

Status RdmaIsViable();
Result<std::unique_ptr<Stream>> ConnectRdma(const std::string& url, Deadline deadline);
Result<std::unique_ptr<Listener>> ListenRdma(const std::string& url);

// Adds a transport that is found by its scheme but not listed, for tests of everything that links may do. Call it once,
// before any address of it is used.
void AddTransport(const Transport& transport);

}  // namespace byteps_like
