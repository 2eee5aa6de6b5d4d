#include "csrc/engine/keeping/key_door.h"

#include <string>
#include <utility>

namespace byteps_like {

void KeyDoor::Open(KeepTicket opening) {
  if (opened_) return sink_->Settled(opening, Status(), {});
  openings_.push_back(std::move(opening));
}

void KeyDoor::Change(uint32_t text, KeepTicket change) {
  if (!change_) {
    if (text == spec_.text) return sink_->Settled(change, Status(), {});
    change_ = Changing{.text = text};
  }
  if (change_->text != text)
    return sink_->Settled(
        change,
        Status(Code::kInvalid, "store key " + std::to_string(spec_.key) + " waits for another change of its policy"),
        {});
  change_->tickets.push_back(std::move(change));
}

void KeyDoor::OnNewLink() {
  at_ = At::kShut;
  if (change_) change_->asked = false;
}

void KeyDoor::Move(KeepSink& sink, const Kept::Renumber& renumber) {
  sink_ = &sink;
  moved_ = true;
  spec_.text = renumber(spec_.text);
  if (change_) change_->text = renumber(change_->text);
}

void KeyDoor::Ask(Outgoing& next) {
  at_ = At::kAsked;
  const uint32_t number = zeros_ ? kIsZeros : 0;
  Ask(spec_.text, moved_ && opened_ ? kMoved : number, next);
}

void KeyDoor::AskToChange(Outgoing& next) {
  change_->asked = true;
  Ask(change_->text, kChanges, next);
}

void KeyDoor::Ask(uint32_t text, uint32_t number, Outgoing& next) const {
  next.header = {};
  next.header.type = FrameType::kSpec;
  next.header.dtype = spec_.dtype;
  next.header.key = spec_.key;
  next.header.round = number;
  next.header.total = spec_.bytes;
  next.header.offset = spec_.width;
  next.header.root = spec_.root;
  next.header.aux = text;
}

KeyDoor::Answer KeyDoor::OnOpened(const Header& header) {
  if (header.aux == kChanged) Changed();
  if (at_ != At::kAsked || header.aux == kChanged) return Answer::kNothing;
  if (header.aux != kHasValue) {
    at_ = At::kShut;
    return Answer::kLacksValue;
  }
  at_ = At::kOpen;
  return std::exchange(opened_, true) ? Answer::kAgain : Answer::kFirst;
}

void KeyDoor::Changed() {
  if (!change_ || !change_->asked) return;
  spec_.text = change_->text;
  EndChange(Status());
}

void KeyDoor::EndChange(const Status& how) {
  const std::vector<KeepTicket> tickets = std::move(change_->tickets);
  change_.reset();
  for (const KeepTicket& ticket : tickets) sink_->Settled(ticket, how, {});
}

void KeyDoor::Settle() {
  for (const KeepTicket& opening : std::exchange(openings_, {})) sink_->Settled(opening, Status(), {});
}

void KeyDoor::End(const Status& why) {
  for (const KeepTicket& opening : std::exchange(openings_, {})) sink_->Settled(opening, why, {});
  if (change_) EndChange(why);
}

}  // namespace byteps_like
