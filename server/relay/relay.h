// The way up from a shard of an aggregator. Its sums go on, each as one contribution of all ranks of its rack, to the
// servers that own the partitions, and results come back in place of the sums. A relay speaks as a worker does, over
// channels like a worker's: links that break are resumed, and keep to credit, priorities and step.
//
// A relay lives for one epoch, on its shard's loop; it is destroyed there once its timers have run out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/engine/channel.h"
#include "csrc/engine/engine_context.h"
#include "csrc/engine/silence_watch.h"
#include "server/rounds/round.h"

namespace byteps_like {

// What a relay tells its shard, on the loop.
class RelaySink {
 public:
  // So much of the round's result has landed where its sum was. `movable`: all ranks of the world know where the tensor
  // goes next.
  virtual void OnAnswer(uint64_t key, uint32_t round, uint32_t landed, bool movable) = 0;
  virtual void OnRelayWarning(const std::string& text) = 0;
  virtual void OnRelayFailed(const Status& why) = 0;  // the job has failed, or an owner is lost

 protected:
  ~RelaySink() = default;
};

class Relay : private ChannelOwner {
 public:
  // `owners`: the shards that it may pass sums on to.
  Relay(EventLoop& loop, EngineOptions options, const std::vector<ShardAddress>& owners, RelaySink& sink);

  Status Connect();  // before anything else, not on the loop: blocks up to the timeout in the options, for each owner
  // On the loop, as all that follows.
  void Start();
  // Which shard owns the key. kInvalid: there is no such shard; kMismatch: another one was named before.
  Status SetOwner(uint64_t key, ShardNumber owner);
  // More of the round's sum is there. kCorrupt: nobody has said who owns the key.
  Status PassOn(uint64_t key, Round& round);
  void Forget(uint64_t key);  // for ever; what is in flight of it is given up
  void Goodbye();             // the rack's ranks have left
  void Abort(const Status& why);

  LinkCounters counters() const;                     // any thread
  size_t links_here() const { return links_here_; }  // those that share memory with their owner

 private:
  struct Passage {
    Part part;
    bool in_flight = false;
  };

  void Fill(Part& part, Round& round);
  void Arrived(Part& part, const Header& result) override;
  void Landed(Part& part, const Status& status) override;
  void FailOnLoop(const Status& why) override { sink_.OnRelayFailed(why); }
  void OnChannelClosed() override {}
  void LetGo() override;
  SharedRegion RegionOf(const std::byte*, size_t) override { return {}; }  // sums are in private memory
  BounceBuffers& bounces() override { return bounces_; }
  void OnRoom() override {}
  const std::string& CodecText(uint32_t number) override;
  void Settled(const KeepTicket&, const Status&, KeepOutcome) override {}
  void CutOff(uint64_t, bool) override {}

  RelaySink& sink_;
  EngineContext context_;
  RegionTable regions_;
  BounceBuffers bounces_{regions_, 0};
  std::vector<std::unique_ptr<Channel>> channels_;
  std::vector<ShardNumber> owners_;  // of each channel
  SilenceWatch silence_;
  std::unordered_map<uint64_t, std::unique_ptr<Passage>> passages_;  // by key
  std::vector<std::unique_ptr<Passage>> forgotten_;                  // that a channel's queue still passes over
  uint64_t order_ = 0;
  size_t links_here_ = 0;
};

}  // namespace byteps_like
