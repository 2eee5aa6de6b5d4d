// One store key as a worker uses it: what it contributes and wants to read, in the order of its calls, on whatever link
// there is. Makes frames and takes them; sends none by itself. docs/reference/protocol.md, "Store keys", has the
// sequences. On the I/O thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/engine/keeping/keep_operation.h"
#include "csrc/transport/links/link.h"
#include "csrc/wire/frame.h"
#include "csrc/wire/note.h"

namespace byteps_like {

inline constexpr uint32_t kNobodysValue = 0xFFFFFFFF;  // as KeySpec::root: the value begins as zeros

// What all ranks give alike for a key. `text` is the number of the spec's text on every link of this worker.
struct KeySpec {
  uint64_t key = 0;
  DType dtype{};
  uint32_t bytes = 0;
  uint64_t width = 1;             // elements of a row
  uint32_t root = kNobodysValue;  // rank that sets the first value
  uint32_t text = 0;
};

// A contribution. Its memory stays as it is until it is settled.
struct KeepPush {
  const std::byte* data = nullptr;
  Note note;
  int32_t priority = 0;
  uint64_t order = 0;  // of calls, over all keys
  KeepTicket ticket;
};

// A read of the whole value, of version `least` or newer.
struct KeepRead {
  std::byte* out = nullptr;
  uint32_t least = 0;
  int32_t priority = 0;
  uint64_t order = 0;
  KeepTicket ticket;
};

class KeptKey {
 public:
  KeptKey(const KeySpec& spec, KeepSink& sink);
  KeptKey(const KeptKey&) = delete;

  // Settled when it has a value. `initial`: the first one, on the rank that sets it. Once is enough.
  void Open(const std::byte* initial, KeepTicket opening);
  // Of a key that was opened: settled when the spec's text is that with this number, whose policy alone is another.
  // Goes after what was called before.
  void Change(uint32_t text, KeepTicket change);
  void Push(KeepPush push);
  void Read(KeepRead read);

  void OnNewLink();  // nothing is known to have arrived
  // Priority and order of the frame that it would send now; nullopt: none, until something comes, or is called.
  struct Turn {
    int32_t priority = 0;
    uint64_t order = 0;
  };
  std::optional<Turn> next();
  bool begins_push();  // that frame is the first of a contribution
  // Without member and view. A SPEC's text is left to the caller.
  void Next(size_t segment, Outgoing& next);

  std::byte* PlaceFor(const Header& header);  // of a VALUE's payload; kAnywhere: it is not waited for
  // kCorrupt: it makes no sense. kInvalid: the key can't be opened so; it is to be ended.
  Status OnFrame(const Header& header);
  void End(const Status& why);  // everything that is not settled

  const KeySpec& spec() const { return spec_; }
  uint64_t unanswered() const { return unanswered_; }  // bytes of contributions that were begun on this link
  bool opened() const { return opened_; }
  bool busy() const { return !openings_.empty() || !pushes_.empty() || !reads_.empty() || change_; }

 private:
  enum class Door { kShut, kAsked, kSetting, kOpen };
  struct Pushing : KeepPush {
    std::array<std::byte, kNoteBytes> written{};  // its note
    uint32_t clock = 0;
    bool begun = false;     // the note went out
    bool repeated = false;  // the server has it whole: its note brings the answer
    uint32_t sent = 0;
  };
  struct Reading : KeepRead {
    uint32_t clock = 0;
    bool asked = false;
    uint32_t landed = 0;
    uint32_t version = 0;  // of which something has landed
  };

  struct Changing {
    uint32_t text = 0;
    std::vector<KeepTicket> tickets;
    bool asked = false;
  };

  Reading* NextRead();
  bool changes_next();
  Reading* ReadToSend();
  Header HeaderFor(FrameType type, uint32_t number) const;
  void AskToOpen(uint32_t text, uint32_t number, Outgoing& next);
  void Ask(Reading& read, Outgoing& next);
  void Send(Pushing& push, size_t segment, Outgoing& next);
  Status OnOpened(const Header& header);
  void GoOn(uint32_t clock);
  void Changed();
  void EndChange(const Status& how);
  Status OnApplied(const Header& header);
  Status OnValue(const Header& header);
  std::list<Reading>::iterator Awaited(const Header& header);

  KeySpec spec_;
  KeepSink& sink_;
  const std::byte* initial_ = nullptr;
  std::vector<KeepTicket> openings_;  // until it is open
  bool opened_ = false;               // once, on whatever link
  std::optional<Changing> change_;
  Door door_ = Door::kShut;
  std::optional<Pushing> setting_;  // the first value, on its way
  uint32_t clock_ = 0;              // of the next contribution; before the first opening, how many were queued
  std::list<Pushing> pushes_;       // not settled
  std::list<Pushing>::iterator unsent_ = pushes_.end();  // the first that is not sent whole
  std::list<Reading> reads_;                             // asked for: of those with one clock, one at a time
  uint64_t unanswered_ = 0;
};

}  // namespace byteps_like
