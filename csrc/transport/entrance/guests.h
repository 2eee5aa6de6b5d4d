// Connections that are no links, and whom they are passed on to: sockets of this process, each for those that open in
// one way. Who answers there knows a connection by the name of its Unix socket, and says when it has proven the secret.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "csrc/transport/entrance/opening.h"
#include "csrc/transport/entrance/passage.h"

namespace byteps_like {

class Guests {
 public:
  // Any thread.
  void PassOn(Opening opening, std::string path);  // from now on
  bool expects(Opening opening) const;
  bool empty() const;  // nobody is expected
  void Prove(const std::string& name);
  std::string VisitorOf(const std::string& name) const;  // Stream::peer of the far end; "": it has gone

  // On the thread that owns the passage. Leave comes before its end.
  Result<std::unique_ptr<Passage>> Enter(Opening opening, std::unique_ptr<Stream> stream);
  void Leave(const Passage& passage);

 private:
  mutable std::mutex mutex_;
  std::map<Opening, std::string> paths_;
  std::map<std::string, Passage*> passages_;
};

}  // namespace byteps_like
