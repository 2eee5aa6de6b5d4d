// Defects to be planted in a simulated job, so that what would find a real one can be seen to find it. Each changes
// what the seams around the code carry, frames on the network or times that threads wait for: the code itself knows of
// none.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/transport/sim/network.h"
#include "csrc/wire/frame.h"

namespace byteps_like::sim {

struct Frame {
  Header header;
  std::vector<std::byte> payload;
};

class Defect {
 public:
  virtual ~Defect() = default;
  // What is sent instead of a frame. `back`: from the server to the worker. A wire is another one after each link.
  virtual std::vector<Frame> Instead(const Wire& /*wire*/, bool /*back*/, Frame frame) { return {std::move(frame)}; }
  virtual bool loses_timers() const { return false; }  // servers do
};

std::vector<std::string> DefectNames();
std::unique_ptr<Defect> MakeDefect(std::string_view name);  // nullptr: there is none of that name

// A frame's bytes, with the checksums that belong to them.
void Append(const Frame& frame, std::vector<std::byte>& out);

}  // namespace byteps_like::sim
