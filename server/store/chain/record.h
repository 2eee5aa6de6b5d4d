// What a server tells the next one in the chain of a store key, as texts of fields; values, states and gradients follow
// them as bytes. docs/reference/protocol.md, "Copies of store keys", has the fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/base/status.h"
#include "server/store/store_key.h"

namespace byteps_like {

// A stretch of bytes that goes to a copy; they stay as they are while `keep` is there.
struct CopyPiece {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<const void> keep;
};

// A text, and what follows it.
struct CopyRecord {
  std::string text;
  std::vector<CopyPiece> bulk;
};

// What all ranks have said of a key.
struct KeyTerms {
  std::string spec, former;  // texts; `former`: before its policy was changed, "" if it never was
  DType dtype{};
  uint32_t total = 0;
  uint64_t width = 0;
  uint32_t begun_by = 0, first = 0;
  uint32_t home = 0;  // shard, of all, where it was at first
};

// How far a source is.
struct CopiedSource {
  int64_t clock = 0;  // of its contributions that are settled
  bool unfinished = false, forgotten = false;
};

// A copy begins: all of a key, at one version. The value and the state follow, or rows with theirs.
struct WholeCopy {
  KeyTerms terms;
  std::vector<uint32_t> before;  // servers that have it before this one, from the head of the chain on
  uint32_t copies = 0;           // how many there are to be in all
  int64_t version = 0;
  std::vector<CopiedSource> sources;
  std::vector<PushAnswer> unheard;
};

// What has become of contributions since. Gradients of the versions follow, each behind the ids of its rows.
struct CopyUpdate {
  struct Made {
    MadeVersion version;  // without its gradient
    uint64_t bytes = 0;   // of that
    uint64_t ids = 0;     // of rows; 0: it has none
  };
  int64_t version = 0;
  std::vector<PushAnswer> settled;
  std::vector<int64_t> heard;  // of the source of each: what it may not have heard begins with this clock
  std::vector<Made> made;
};

std::string TextOf(const WholeCopy& whole);
// `bytes`: of a value, or of a row.
CopyRecord RecordOf(int64_t version, std::span<const PushAnswer> settled, std::span<const int64_t> heard,
                    std::vector<MadeVersion> made, size_t bytes);
void AddGradient(CopyRecord& to, CombinedGradient gradient, size_t bytes);  // so many of it
// kCorrupt.
Result<WholeCopy> ReadWhole(std::span<const std::byte> text);
Result<CopyUpdate> ReadUpdate(std::span<const std::byte> text);

}  // namespace byteps_like
