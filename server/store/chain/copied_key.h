// The copy of a store key whose value another server has: frames of its chain make it and keep it the same. On the
// shard's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "csrc/wire/frame.h"
#include "server/memory.h"
#include "server/store/chain/record.h"
#include "server/store/shard/spec_text.h"
#include "server/store/store_key.h"

namespace byteps_like {

class CopiedKey {
 public:
  // `text`: of a frame that begins it. kCorrupt; kInvalid; kCapacity.
  static Result<std::unique_ptr<CopiedKey>> Make(const Header& header, std::span<const std::byte> text,
                                                 uint32_t sources, double now, ShardMemory& memory);

  const KeyTerms& terms() const { return whole_.terms; }
  const WholeCopy& begun_as() const { return whole_; }
  // To the head of its chain: as chains only lose servers, it is the newer one.
  bool IsCloserThan(const CopiedKey& other) const { return whole_.before.size() < other.whole_.before.size(); }
  uint32_t last() const { return last_; }  // number of the newest frame
  bool holds() const { return holds_; }    // it is whole, and nobody has heard of what isn't in it
  bool is_set_aside() const { return holds_ && is_set_aside_; }
  StoreKey& key() { return *key_; }
  std::unique_ptr<StoreKey> TakeKey() { return std::move(key_); }

  bool IsNext(const Header& header) const { return header.round == last_ + 1; }
  // Where the bytes of the next frame go; nullptr: anywhere.
  std::byte* PlaceFor(const Header& header);
  // The next frame, which doesn't begin it. kCorrupt: it makes no sense; kCapacity, or an error of the update.
  Status OnFrame(const Header& header, std::span<const std::byte> payload);
  // Up to the last frame all has been done that it brought.
  bool is_settled() const { return missing_ == 0; }
  // What became of contributions since this was last asked, so that others can copy it.
  std::vector<CopyRecord> TakeUpdates() { return std::exchange(updates_, {}); }
  // From here on there is somebody who asks.
  void Forward(bool on) { forwards_ = on; }
  bool forwards() const { return forwards_; }

 private:
  CopiedKey(WholeCopy whole, uint32_t number) : whole_(std::move(whole)), last_(number) {}
  Status Prepare(uint32_t sources, double now, ShardMemory& memory);
  Result<std::unique_ptr<StoreKey>> FreshKey(uint32_t sources, double now, ShardMemory& memory) const;
  Status Expect(uint64_t bulk);
  Status BeginUpdate(const Header& header, std::span<const std::byte> text);
  Status PrepareVersion(CopyUpdate::Made& made);
  Status Land(const Header& header, std::span<const std::byte> payload);
  Status LandRows(std::span<const std::byte> payload);
  Status Settle();
  CopyRecord RecordOfUpdate();

  WholeCopy whole_;
  SpecTerms spec_;
  ShardMemory* memory_ = nullptr;
  std::unique_ptr<StoreKey> key_;
  uint32_t last_ = 0;
  bool whole_here_ = false, holds_ = false, is_set_aside_ = false;
  // Of the text that came last.
  std::string text_;
  CopyUpdate update_;
  uint64_t landed_ = 0;                      // bytes of what follows it,
  uint64_t missing_ = 0;                     // and those that have not come
  std::deque<std::span<std::byte>> places_;  // where they go; none: they are saved rows
  std::string rows_;                         // of these, the part of one
  bool forwards_ = false;
  std::vector<CopyRecord> updates_;
};

}  // namespace byteps_like
