// What one worker of a simulated job does, as a program with an engine would, and whether what it gets is right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/engine/engine.h"
#include "csrc/sim/plan.h"
#include "csrc/sim/random.h"

namespace byteps_like::sim {

// What a member tells, and where it meets the others.
class Board {
 public:
  virtual void Complain(uint32_t rank, const std::string& what) = 0;  // something is wrong that no fault excuses
  // It has the result of a round, with this checksum.
  virtual void OnResult(uint32_t rank, const std::string& what, uint32_t checksum) = 0;
  virtual void OnStep(uint32_t rank, char glyph, const std::string& what) = 0;
  virtual bool IsDead(uint32_t rank) const = 0;
  virtual bool Meet(uint32_t rank) = 0;  // waits for all others; false: one of them doesn't come any more

 protected:
  ~Board() = default;
};

class Member {
 public:
  Member(const Plan& plan, uint32_t rank, Board& board);
  ~Member();

  // Everything from beginning to end, on the worker's thread. The failure of the job, if it fails.
  Status Run(EngineOptions options, std::vector<ShardAddress> shards);
  bool has_begun() const { return has_begun_; }               // it was connected
  bool has_opened() const { return has_opened_; }             // and its stores have values
  void Fail(Code code, const std::string& text);              // it is told that the job has failed; not on its threads
  void GoOnWithout(uint32_t server, const std::string& why);  // likewise, that a server has died

 private:
  struct Tensor;
  struct Store;

  std::vector<PartitionSpec> Cut(uint64_t bytes, uint64_t first_key, bool by_rack = false) const;
  Status Declare(Tensor& tensor);
  Status Work();
  Status Round(uint32_t round);
  Status Begin(Tensor& tensor, uint32_t round);
  Status Finish(Tensor& tensor, uint32_t round);
  Status Open(Store& store);
  Status Push(Store& store);
  Status Settle(Store& store);
  Status Read(Store& store, bool all);
  void CheckRead(const Store& store, const std::vector<int64_t>& value, bool all);
  void Think();
  Status Wait(Operation& operation, const std::string& what);

  const Plan& plan_;
  const uint32_t rank_;
  Board& board_;
  Random random_;
  bool has_begun_ = false, has_opened_ = false;
  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::vector<std::unique_ptr<Store>> stores_;
  std::unique_ptr<Engine> engine_;  // ends before their memory
};

}  // namespace byteps_like::sim
