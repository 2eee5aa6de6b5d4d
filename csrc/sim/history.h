// The history of a simulated job: an event at a time, and a number that tells two histories apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/wire/frame.h"

namespace byteps_like::sim {

class History {
 public:
  // `names`: of the processes, whose numbers begin at 1: the columns. `keeps`: lines, and not only the number.
  History(std::vector<std::string> names, bool keeps) : names_(std::move(names)), keeps_(keeps) {}

  // `glyph`: docs/explanation/simulation.md lists them. Process 0 is the world itself, which has no column.
  void Note(Clock::duration when, uint32_t process, char glyph, const std::string& text);
  void NoteFrame(Clock::duration when, uint32_t process, const Header& frame, const std::string& from);

  uint64_t number() const { return number_; }
  uint64_t events() const { return events_; }
  std::string heading() const;
  std::vector<std::string> TakeLines() { return std::exchange(lines_, {}); }
  const std::string& NameOf(uint32_t process) const;

 private:
  void Mix(uint64_t value);
  void Keep(Clock::duration when, uint32_t process, char glyph, const std::string& text);

  const std::vector<std::string> names_;
  const bool keeps_;
  uint64_t number_ = 0xCBF29CE484222325;  // FNV-1a
  uint64_t events_ = 0;
  std::vector<std::string> lines_;
};

}  // namespace byteps_like::sim
