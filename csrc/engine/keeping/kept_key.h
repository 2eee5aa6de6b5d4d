// One store key as a worker uses it: what it contributes and wants to read, in the order of its calls, on whatever link
// there is. docs/reference/protocol.md, "Store keys", has the sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>

#include "csrc/engine/keeping/contributions.h"
#include "csrc/engine/keeping/kept.h"
#include "csrc/engine/keeping/key_door.h"

namespace byteps_like {

// A read of the whole value, of version `least` or newer, to `out`; or, `filtered`, of what filters on the server make
// of it, to KeepOperation::ranges.
struct KeepRead {
  std::byte* out = nullptr;
  bool filtered = false;
  uint32_t least = 0;
  int32_t priority = 0;
  uint64_t order = 0;
  KeepTicket ticket;
};

class KeptKey final : public Kept {
 public:
  KeptKey(const KeySpec& spec, KeepSink& sink);
  KeptKey(const KeptKey&) = delete;

  void Open(const std::byte* initial, KeepTicket opening) override;
  void Change(uint32_t text, KeepTicket change) override { door_.Change(text, std::move(change)); }
  void Push(KeepPush push);
  void Read(KeepRead read);

  void OnNewLink() override;
  void Move(KeepSink& sink, const Renumber& renumber) override;
  std::optional<Turn> next() override;
  std::optional<uint64_t> begins() override;
  void Next(size_t segment, Outgoing& next) override;

  std::byte* PlaceFor(const Header& header) override;
  Status OnFrame(const Header& header, const std::byte* payload) override;
  void End(const Status& why) override;

  const KeySpec& spec() const override { return door_.spec(); }
  uint64_t unanswered() const override { return pushes_.unanswered(); }
  bool opened() const override { return door_.opened(); }
  bool HasSent(uint64_t order) override {
    const Pushing* const unsent = pushes_.unsent();
    return door_.open() && (unsent == nullptr || unsent->order > order);
  }
  bool busy() const override { return door_.busy() || !pushes_.empty() || !reads_.empty(); }
  size_t under_way() const override { return door_.under_way() + pushes_.size() + reads_.size(); }

 private:
  struct Reading : KeepRead {
    uint32_t clock = 0;
    bool asked = false;
    uint32_t landed = 0;
    uint32_t total = 0;    // of the answer, of which something has landed,
    uint32_t version = 0;  // and its version
  };

  Reading* NextRead();
  bool changes_next();
  Reading* ReadToSend();
  Header HeaderFor(FrameType type) const;
  void Ask(Reading& read, Outgoing& next);
  void SendSetting(size_t segment, Outgoing& next);
  Status OnOpened(const Header& header);
  Status OnApplied(const Header& header, const std::byte* payload);
  Status OnValue(const Header& header);
  void SetCutOff(bool is_so);
  std::list<Reading>::iterator Awaited(const Header& header);
  bool Fits(const Reading& read, const Header& header) const;

  KeepSink* sink_;
  KeyDoor door_;
  const std::byte* initial_ = nullptr;
  std::optional<Pushing> setting_;  // the first value, on its way
  Contributions pushes_;
  std::list<Reading> reads_;  // asked for: of those with one clock, one at a time
  bool cut_off_ = false;      // as the sink was told
};

}  // namespace byteps_like
