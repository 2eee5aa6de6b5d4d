#include "csrc/sim/history.h"

#include <array>
#include <cstdio>

namespace byteps_like::sim {
namespace {

constexpr uint64_t kPrime = 0x100000001B3;
constexpr size_t kColumn = 3;  // characters

struct FrameName {
  FrameType type;
  char glyph;
  const char* name;
};
constexpr FrameName kFrames[] = {
    {FrameType::kPush, 'P', "push"},
    {FrameType::kResult, 'R', "result"},
    {FrameType::kResume, 'r', "resume"},
    {FrameType::kResumed, 'u', "resumed"},
    {FrameType::kError, 'E', "error"},
    {FrameType::kWarning, 'W', "warning"},
    {FrameType::kGoodbye, 'G', "goodbye"},
    {FrameType::kForget, 'F', "forget"},
    {FrameType::kSpec, 'S', "spec"},
    {FrameType::kOpened, 'O', "opened"},
    {FrameType::kApplied, 'A', "applied"},
    {FrameType::kPull, 'L', "pull"},
    {FrameType::kValue, 'V', "value"},
    {FrameType::kCutoff, 'C', "cutoff"},
    {FrameType::kContributors, 'c', "contributors"},
    {FrameType::kAdopt, 'a', "adopt"},
    {FrameType::kAdopted, 'd', "adopted"},
    {FrameType::kTake, 't', "take"},
    {FrameType::kGive, 'g', "give"},
    {FrameType::kCopy, 'y', "copy"},
    {FrameType::kCopied, 'k', "copied"},
};
constexpr FrameName kOther{{}, '?', "another frame"};

const FrameName& NameOfFrame(FrameType type) {
  for (const FrameName& name : kFrames)
    if (name.type == type) return name;
  return kOther;
}

std::string Describe(const Header& frame, const std::string& from) {
  char text[192];
  std::snprintf(text, sizeof text, "%s of key %llu, round %u, %llu+%u of %u, from %s", NameOfFrame(frame.type).name,
                static_cast<unsigned long long>(frame.key), frame.round, static_cast<unsigned long long>(frame.offset),
                frame.length, frame.total, from.c_str());
  return text;
}

}  // namespace

void History::Mix(uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) number_ = (number_ ^ ((value >> (8 * byte)) & 0xFF)) * kPrime;
}

const std::string& History::NameOf(uint32_t process) const {
  static const std::string world = "world";
  return process == 0 || process > names_.size() ? world : names_[process - 1];
}

void History::Note(Clock::duration when, uint32_t process, char glyph, const std::string& text) {
  ++events_;
  Mix(static_cast<uint64_t>(when.count()));
  Mix((uint64_t{process} << 8) | static_cast<unsigned char>(glyph));
  for (const char letter : text) number_ = (number_ ^ static_cast<unsigned char>(letter)) * kPrime;
  if (keeps_) Keep(when, process, glyph, text);
}

void History::NoteFrame(Clock::duration when, uint32_t process, const Header& frame, const std::string& from) {
  ++events_;
  Mix(static_cast<uint64_t>(when.count()));
  Mix((uint64_t{process} << 8) | static_cast<uint64_t>(frame.type));
  Mix(frame.key);
  Mix((uint64_t{frame.round} << 32) | frame.payload_crc);
  Mix(frame.offset);
  if (keeps_) Keep(when, process, NameOfFrame(frame.type).glyph, Describe(frame, from));
}

std::string History::heading() const {
  std::string line = "    seconds ";
  for (const std::string& name : names_) line += name + std::string(kColumn - std::min(kColumn, name.size()), ' ');
  return line;
}

void History::Keep(Clock::duration when, uint32_t process, char glyph, const std::string& text) {
  char time[32];
  std::snprintf(time, sizeof time, "%11.6f ", std::chrono::duration<double>(when).count());
  std::string columns(kColumn * names_.size(), ' ');
  for (size_t i = 0; i < names_.size(); ++i) columns[kColumn * i] = '.';
  if (process != 0 && process <= names_.size()) columns[kColumn * (process - 1)] = glyph;
  lines_.push_back(time + columns + (process == 0 ? std::string(1, glyph) + " " : "") + text);
}

}  // namespace byteps_like::sim
