// Executors of one process, connected by real links: one loop thread each.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/execution/executor.h"
#include "tests/native/collectives/mesh_fixture.h"

namespace byteps_like::testing {

class LinkWorld {
 public:
  LinkWorld(uint32_t n, const std::string& scheme, const std::string& query = "") : ranks_(n, scheme, query) {
    for (auto& rank : ranks_.all) executors_.push_back(MakeExecutor(rank->core));
  }
  ~LinkWorld() {
    for (uint32_t rank = 0; rank < executors_.size(); ++rank) Lose(rank);
  }

  Executor& at(uint32_t rank) { return *executors_[rank]; }
  LinkCounters counters(uint32_t rank, uint32_t peer) { return ranks_[rank].mesh->counters(peer); }
  void Do(const std::function<void()>& task) { task(); }
  void Lose(uint32_t rank) {  // its runs are aborted, its links break
    if (executors_[rank] == nullptr) return;
    ranks_[rank].Do([&] { executors_[rank].reset(); });
    ranks_[rank].Die();
  }

 private:
  Ranks ranks_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

}  // namespace byteps_like::testing
