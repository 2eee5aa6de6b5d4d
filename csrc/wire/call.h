// What the frame CALL carries: a function that a server is to run on what it keeps of some tensors, and the numbers
// that come of it. docs/reference/protocol.md has the layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/base/status.h"

namespace byteps_like {

inline constexpr size_t kMaxCall = 1024;     // bytes
inline constexpr int kTensorShift = 16;      // the key of a partition is its tensor's number << this | its own number
inline constexpr size_t kMaxFigures = 255;   // of an answer
inline constexpr size_t kMaxNameBytes = 64;  // of a function, a scalar or a figure

// By name, in order.
using Figures = std::vector<std::pair<std::string, double>>;

// Rows with low <= id < high, of versions beyond `since`.
struct IdRange {
  uint64_t low = 0, high = 0, since = 0;
};

struct ServerCall {
  std::string function;
  std::vector<uint32_t> tensors;  // at least one
  Figures scalars;
  std::optional<IdRange> rows;  // of the first tensor, where these are tables
};

// kCorrupt says what is wrong.
Result<ServerCall> DecodeCall(std::span<const std::byte> payload);

// kInvalid: there are too many, or a name is too long.
Result<std::string> EncodeFigures(const Figures& figures);

}  // namespace byteps_like
