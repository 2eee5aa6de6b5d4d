// What servers keep under one key, as a worker uses it on whatever link there is: makes frames and takes them, sends
// none by itself. A dense value is a KeptKey, the rows of a table at one shard are a KeptTable. On the I/O thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "csrc/base/status.h"
#include "csrc/engine/keeping/keep_operation.h"
#include "csrc/transport/links/link.h"
#include "csrc/wire/frame.h"

namespace byteps_like {

inline constexpr uint32_t kNobodysValue = 0xFFFFFFFF;  // as KeySpec::root: the value begins as zeros

// What all ranks give alike for a key. `text` is the number of the spec's text on every link of this worker.
struct KeySpec {
  uint64_t key = 0;
  DType dtype{};
  uint32_t bytes = 0;             // of the value; of a table: of a row
  uint64_t width = 1;             // elements of a row
  uint32_t root = kNobodysValue;  // rank that sets the first value
  uint32_t text = 0;
};

class Kept {
 public:
  virtual ~Kept() = default;
  // Settled when it has a value. `initial`: the first one, on the rank that sets it. Once is enough.
  virtual void Open(const std::byte* initial, KeepTicket opening) = 0;
  // Of a key that was opened: settled when the spec's text is that with this number, whose policy alone is another.
  // Goes after what was called before.
  virtual void Change(uint32_t text, KeepTicket change) = 0;

  virtual void OnNewLink() = 0;  // nothing is known to have arrived
  // Its server is gone, and another has a copy: from here on that hears of it, and texts have other numbers.
  using Renumber = std::function<uint32_t(uint32_t text)>;
  virtual void Move(KeepSink& sink, const Renumber& renumber) = 0;
  // Priority and order of the frame that it would send now; nullopt: none, until something comes, or is called.
  struct Turn {
    int32_t priority = 0;
    uint64_t order = 0;
  };
  virtual std::optional<Turn> next() = 0;
  virtual std::optional<uint64_t> begins() = 0;  // bytes of the contribution whose first frame that is
  // Without member and view. A SPEC's text is left to the caller.
  virtual void Next(size_t segment, Outgoing& next) = 0;

  // Whether all contributions from calls before `order` have been sent on this link.
  virtual bool HasSent(uint64_t order) = 0;

  virtual std::byte* PlaceFor(const Header& header) = 0;  // of a VALUE's payload; kAnywhere: it is not waited for
  // kCorrupt: it makes no sense. kInvalid: the key can't be opened so; it is to be ended.
  virtual Status OnFrame(const Header& header, const std::byte* payload) = 0;
  virtual void End(const Status& why) = 0;  // everything that is not settled

  virtual const KeySpec& spec() const = 0;
  virtual uint64_t unanswered() const = 0;  // bytes of contributions that were begun on this link
  virtual bool opened() const = 0;
  virtual bool busy() const = 0;
  virtual size_t under_way() const = 0;  // openings, changes, contributions and reads that are not settled
};

}  // namespace byteps_like
