// What a worker contributes to one key, in the order of its calls: numbered by a clock, kept until it is answered, and
// repeated on a new link. Which frames carry it is its owner's affair.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "csrc/base/status.h"
#include "csrc/engine/keeping/keep_operation.h"
#include "csrc/engine/keeping/row_list.h"
#include "csrc/transport/links/link.h"
#include "csrc/wire/frame.h"
#include "csrc/wire/note.h"

namespace byteps_like {

// A contribution. Its memory stays as it is until it is settled.
struct KeepPush {
  const std::byte* data = nullptr;
  uint32_t bytes = 0;                             // 0: those of the whole value, unless it is idle
  std::shared_ptr<const RowList> rows = nullptr;  // which, of a table; nullptr: the whole value
  bool idle = false;                              // brings nothing: a clock goes by
  Note note;
  int32_t priority = 0;
  uint64_t order = 0;  // of calls, over all keys
  KeepTicket ticket;
};

struct Pushing : KeepPush {
  std::array<std::byte, kNoteBytes> written{};  // its note
  uint32_t clock = 0;
  bool begun = false;     // the note went out
  bool repeated = false;  // the server has it whole: its note brings the answer
  uint32_t sent = 0;

  explicit Pushing(KeepPush push) : KeepPush(std::move(push)) { EncodeNote(note, written); }
  bool whole() const { return begun && sent == bytes; }
  // Its next frame, but for its key and, unless it is idle, what it is. The note goes alone, so that no byte behind it
  // is copied.
  void Send(size_t segment, Outgoing& next);
};

class Contributions {
 public:
  void Add(KeepPush push);
  uint32_t clock() const { return clock_; }  // of the next one; before the first opening, how many were queued
  Pushing* unsent();                         // the first that is not sent whole; nullptr: there is none
  Pushing* Find(uint32_t clock);             // nullptr: it is settled, or there never was one
  uint32_t heard() const { return pushes_.empty() ? 0 : pushes_.front().clock; }  // what became of those before
  void Send(size_t segment, Outgoing& next);                                      // of `unsent`: see Pushing

  void OnNewLink();
  void Begin(uint32_t clock);   // the key is open for the first time, and the next contribution has this number
  void Repeat(uint32_t clock);  // on a new link: the server has those before that
  void Rewind(Pushing& push);   // that one, and those behind it, are sent again
  // The one that is answered by an APPLIED, and is removed; none: it is still held, or not waited for. kCorrupt: it
  // was not sent whole.
  Result<std::optional<Pushing>> Answered(const Header& applied);
  void End(KeepSink& sink, const Status& why);

  uint64_t unanswered() const { return unanswered_; }  // bytes of those that were begun on this link
  size_t begun() const { return begun_; }              // how many these are
  bool empty() const { return pushes_.empty(); }
  size_t size() const { return pushes_.size(); }

 private:
  void Restart(Pushing& push);

  uint32_t clock_ = 0;
  std::list<Pushing> pushes_;                            // not settled
  std::list<Pushing>::iterator unsent_ = pushes_.end();  // the first that is not sent whole
  uint64_t unanswered_ = 0;
  size_t begun_ = 0;
};

}  // namespace byteps_like
