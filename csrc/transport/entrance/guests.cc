#include "csrc/transport/entrance/guests.h"

#include <utility>

namespace byteps_like {

void Guests::PassOn(Opening opening, std::string path) {
  std::lock_guard lock(mutex_);
  paths_[opening] = std::move(path);
}

bool Guests::expects(Opening opening) const {
  std::lock_guard lock(mutex_);
  return paths_.contains(opening);
}

bool Guests::empty() const {
  std::lock_guard lock(mutex_);
  return paths_.empty();
}

void Guests::Prove(const std::string& name) {
  std::lock_guard lock(mutex_);
  if (const auto found = passages_.find(name); found != passages_.end()) found->second->Prove();
}

std::string Guests::VisitorOf(const std::string& name) const {
  std::lock_guard lock(mutex_);
  const auto found = passages_.find(name);
  return found != passages_.end() ? found->second->visitor() : "";
}

Result<std::unique_ptr<Passage>> Guests::Enter(Opening opening, std::unique_ptr<Stream> stream) {
  std::lock_guard lock(mutex_);
  auto passage = Passage::Begin(std::move(stream), paths_[opening], opening == Opening::kDoor);
  if (passage.ok()) passages_[(*passage)->name()] = passage->get();
  return passage;
}

void Guests::Leave(const Passage& passage) {
  std::lock_guard lock(mutex_);
  passages_.erase(passage.name());
}

}  // namespace byteps_like
