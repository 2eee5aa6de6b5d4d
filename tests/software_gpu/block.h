// The threads of one block, which run in turns. After a failure it is of no use any more.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/software_gpu/stack.h"

namespace software_gpu {

using Word = unsigned long long;

// Where some threads wait for one another. What they brought stays until the next meeting but one.
struct Meeting {
  const char* what = nullptr;
  unsigned arrived = 0;
  unsigned generation = 0;
  std::vector<Word> brought[2];
};

class Block {
 public:
  explicit Block(unsigned threads);

  // Every thread of it calls `run`. Returns what went wrong; "": nothing.
  std::string Run(unsigned number, void (*run)());

  // From a thread.
  const Word* Meet(Meeting& meeting, const char* what, unsigned place, Word value);
  Meeting& WarpOf(unsigned thread) { return warps_[thread / 32]; }
  Meeting& all() { return all_; }
  unsigned threads() const { return static_cast<unsigned>(threads_.size()); }
  [[noreturn]] void Fail(const std::string& what);

 private:
  struct Thread {
    std::unique_ptr<Stack> stack;      // none: not begun, or ended
    const Meeting* meeting = nullptr;  // where it waits, if it does
    unsigned generation = 0;
    bool ended = false;
    bool CanRun() const { return !ended && (meeting == nullptr || meeting->generation != generation); }
  };

  static void Begin();
  bool Turn();  // of each thread that can run; false: none could
  void Resume(unsigned thread);
  std::string Stuck() const;

  std::vector<Thread> threads_;
  std::vector<Meeting> warps_;
  Meeting all_;
  std::vector<std::unique_ptr<Stack>> spare_;
  unsigned now_ = 0;  // the thread that runs
  void (*run_)() = nullptr;
  bool backwards_ = false;  // every other time the last threads run first: a barrier that is missing shows
  std::string failure_;
};

}  // namespace software_gpu
