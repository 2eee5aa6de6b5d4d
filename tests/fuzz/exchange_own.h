// Rank 0 in the fuzzer of exchanges: its own calls, good and bad, and what must hold when they end. Of those that end
// well: they have heard all that they need, and come to what a slow interpreter makes of that.
#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/exchange/exchange_core.h"
#include "collectives/execution/executor.h"
#include "collectives/point_to_point/point_impl.h"
#include "tests/fuzz/exchange_calls.h"
#include "tests/native/compression/exact_buffer.h"

namespace byteps_like::fuzzing {

using testing::ExactBuffer;

inline constexpr uint32_t kLengths[] = {0, 1, 64, 5000, 65536, 65537, 140000};  // bytes of a message
inline constexpr uint32_t kTags[] = {0, 1, kPointLines, 5000};

struct OwnRun {
  CallId id;
  std::shared_ptr<const Plan> plan;
  Buffer given, before;  // copies of input and output as they were
  ExactBuffer input, output;
  std::shared_ptr<Completion> done;
};

struct OwnPoint {
  bool sends = false;
  uint64_t lane = 0;
  int32_t peer = 0;
  uint32_t tag = 0, id = 0;
  ExactBuffer memory;
  std::shared_ptr<Completion> done;
};

// What it does, with the rank 0 in an action's first byte.
enum Own : uint32_t { kLaunch, kLaunchOther, kCancel, kSend, kReceive, kReceiveAny, kFailAll, kOwns };

class OwnCalls {
 public:
  // `said`: of the messages with its peers, as far as they have come.
  OwnCalls(Input& input, ExchangeCore& core, CallNumbers& next, Said& said, uint32_t segment_bytes)
      : input_(input), core_(core), next_(next), said_(said), segment_bytes_(segment_bytes) {
    executor_ = MakeExecutor(core_);
    points_ = std::make_unique<PointImpl>(core_);
  }

  void Act(Own action, uint32_t second) {
    const uint64_t lane = 1 + second % kLanes;
    const double timeout = (second & 0x40) != 0 ? 0 : 1800;
    const uint32_t peer = 1 + second / 2 % 2;
    switch (action) {
      case kLaunch:
      case kLaunchOther:
        return Launch({lane, next_[lane]++}, action == kLaunchOther, timeout);
      case kCancel:
        if (!runs_.empty())
          executor_->Cancel(runs_[second % runs_.size()].done, Status(Code::kTimeout, "it was given up"));
        return;
      case kSend:
        return SendPoint(peer, lane, timeout);
      case kReceive:
        return ReceivePoint(static_cast<int32_t>(peer), lane, timeout);
      case kReceiveAny:
        return ReceivePoint(PointToPoint::kAnySource, lane, timeout);
      case kFailAll:
        if (second < 0xF0) return;  // or inputs hold little else
        core_.FailAll(Status(Code::kSystem, "all is over"));
        return points_->FailAll(Status(Code::kSystem, "all is over"));
      case kOwns:
        return;
    }
  }

  void Launch(const CallId& id, bool other, double timeout) {
    Shape shape = ShapeOf(id);
    if (other) shape.count = shape.count == 0 ? 5 : shape.count / 2;
    auto plan = PlanOf(shape);
    const size_t bytes = shape.count * sizeof(int32_t);
    OwnRun run{id, plan, Buffer(bytes), Buffer(bytes), ExactBuffer(bytes), ExactBuffer(bytes), nullptr};
    for (size_t at = 0; at < bytes; ++at) {
      run.given[at] = std::byte(at * 7 + id.call);
      run.before[at] = shape.in_place ? run.given[at] : std::byte(0x55);
    }
    std::copy(run.given.begin(), run.given.end(), run.input.data());
    std::copy(run.before.begin(), run.before.end(), run.output.data());
    RunOptions options;
    options.id = id;
    options.description = WordsOf(id) + (other ? ", which is another one" : "");
    options.plan = std::move(plan);
    options.dtype = DType::kInt32;
    options.op = Op::kSum;
    options.input = run.input.data();
    options.output = run.output.data();
    options.timeout = timeout;
    options.segment_bytes = segment_bytes_;
    run.done = executor_->Launch(std::move(options));
    runs_.push_back(std::move(run));
  }

  // Those that have ended are looked at, and forgotten.
  void Look() {
    for (size_t i = runs_.size(); i-- > 0;) {
      if (!runs_[i].done->done()) continue;
      Check(runs_[i]);
      runs_.erase(runs_.begin() + static_cast<ptrdiff_t>(i));
    }
    for (size_t i = 0; i < own_points_.size();) {
      if (!own_points_[i].done->done()) {
        ++i;
        continue;
      }
      Check(own_points_[i]);
      own_points_.erase(own_points_.begin() + static_cast<ptrdiff_t>(i));
    }
  }

  bool last_ended_well() const { return last_ended_well_; }  // one of the lane that a good call goes by at the end

  // The peers are gone: so are all calls but receives from anybody, which end with what runs them.
  void End() {
    for (const OwnRun& run : runs_) Require(run.done->done());
    for (const OwnPoint& point : own_points_) Require(point.done->done() || point.peer < 0);
    executor_.reset();
    points_.reset();
  }
  void RequireAllFailed() const {
    for (const OwnRun& run : runs_) Require(run.done->done() && !run.done->status().ok());
    for (const OwnPoint& point : own_points_) Require(point.done->done() && !point.done->status().ok());
  }

 private:
  static bool Failed(const Completion& done) {
    Require(done.status().ok() || !done.status().message().empty());
    return !done.status().ok();
  }

  void Check(OwnRun& run) {
    if (Failed(*run.done)) return;
    const Interpreter expected(*run.plan, run.given, run.before, said_.heard, run.id);
    Require(std::equal(expected.output().begin(), expected.output().end(), run.output.data()));
    for (const auto& [name, message] : expected.sent()) {
      const auto sent = said_.sent.find(name);
      Require(sent != said_.sent.end() && sent->second.begun && sent->second.bytes == message.bytes);
    }
    last_ended_well_ = last_ended_well_ || run.id.lane == kLastLane;
  }

  void SendPoint(uint32_t peer, uint64_t lane, double timeout) {
    const uint32_t length = kLengths[input_.Byte() % std::size(kLengths)];
    OwnPoint point{
        true,   lane, static_cast<int32_t>(peer), kTags[input_.Byte() % std::size(kTags)], ++ids_, ExactBuffer(length),
        nullptr};
    FillWith(point.id, point.memory.data(), length);
    point.done =
        points_->Send({lane, testing::WorldRanks(kRanks), point.tag, timeout}, peer, point.memory.data(), length);
    own_points_.push_back(std::move(point));
  }
  void ReceivePoint(int32_t peer, uint64_t lane, double timeout) {
    const uint32_t length = kLengths[input_.Byte() % std::size(kLengths)];
    OwnPoint point{false, lane, peer, kTags[input_.Byte() % std::size(kTags)], ++ids_, ExactBuffer(length), nullptr};
    point.done =
        points_->Receive({lane, testing::WorldRanks(kRanks), point.tag, timeout}, peer, point.memory.data(), length);
    own_points_.push_back(std::move(point));
  }

  // Of what was sent or heard, it is one message that is nobody else's; of several from one peer, in order.
  void Check(OwnPoint& point) {
    if (Failed(*point.done)) return;
    const auto peer = point.sends ? static_cast<uint32_t>(point.peer) : point.done->source();
    Require(peer > 0 && peer < kRanks && (point.peer < 0 || peer == static_cast<uint32_t>(point.peer)));
    const auto bytes = point.memory.bytes();
    for (auto& [name, message] : point.sends ? said_.sent : said_.heard) {
      const auto& [whose, lane, number, line] = name;
      if (whose != peer || lane != (point.lane | kPointLane) || !message.begun || message.claimed) continue;
      if (message.tag != point.tag || message.length != bytes.size()) continue;
      if (!std::equal(bytes.begin(), bytes.end(), message.bytes.begin(), message.bytes.end())) continue;
      message.claimed = true;
      return;
    }
    Require(false);
  }

  Input& input_;
  ExchangeCore& core_;
  CallNumbers& next_;
  Said& said_;
  const uint32_t segment_bytes_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<PointImpl> points_;
  std::vector<OwnRun> runs_;
  std::vector<OwnPoint> own_points_;
  uint32_t ids_ = 0;
  bool last_ended_well_ = false;
};

}  // namespace byteps_like::fuzzing
