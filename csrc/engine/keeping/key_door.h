// Whether a key is open on the link there is: its spec goes out, the answer lets in; and changes of its policy.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "csrc/engine/keeping/kept.h"

namespace byteps_like {

class KeyDoor {
 public:
  KeyDoor(const KeySpec& spec, KeepSink& sink) : spec_(spec), sink_(&sink) {}

  void Open(KeepTicket opening);  // see Kept, as the next
  void Change(uint32_t text, KeepTicket change);
  void OnNewLink();
  void Move(KeepSink& sink, const Kept::Renumber& renumber);

  bool waits() const { return at_ == At::kAsked; }  // for the answer, before which nothing else may go
  bool open() const { return at_ == At::kOpen; }
  bool opened() const { return opened_; }                      // once, on whatever link
  bool changes() const { return change_ && !change_->asked; }  // to be asked for, behind all else
  void Ask(Outgoing& next);                                    // to open
  void BeginAsZeros() { zeros_ = true; }                       // if it has no value
  void AskToChange(Outgoing& next);

  enum class Answer { kNothing, kLacksValue, kFirst, kAgain };  // the last two: it is open, and was not, or was, before
  Answer OnOpened(const Header& header);
  void Shut() { at_ = At::kShut; }  // to be asked again
  void Settle();                    // its openings
  void End(const Status& why);

  const KeySpec& spec() const { return spec_; }
  bool busy() const { return !openings_.empty() || change_; }
  size_t under_way() const { return openings_.size() + (change_ ? change_->tickets.size() : 0); }

 private:
  enum class At { kShut, kAsked, kOpen };
  struct Changing {
    uint32_t text = 0;
    std::vector<KeepTicket> tickets;
    bool asked = false;
  };

  void Ask(uint32_t text, uint32_t number, Outgoing& next) const;
  void Changed();
  void EndChange(const Status& how);

  KeySpec spec_;
  KeepSink* sink_;
  std::vector<KeepTicket> openings_;  // until it is open
  bool opened_ = false;
  bool moved_ = false;
  bool zeros_ = false;
  At at_ = At::kShut;
  std::optional<Changing> change_;
};

}  // namespace byteps_like
