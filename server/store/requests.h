// What a worker asks a shard for that brings it an answer: calls of functions, and what is saved and restored. Each
// rank numbers its requests of a kind from 0, and makes one after the other; one is answered once, and again if its
// answer was lost.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/wire/frame.h"

namespace byteps_like {

class StoreKey;

// The store keys of a shard, and the way back to its workers.
class RequestHost {
 public:
  virtual StoreKey* FindKey(uint64_t key) = 0;  // nullptr: there is none, or it has no value
  virtual void AnswerRequest(uint32_t rank, const Header& header, const std::string& payload) = 0;
  virtual void RefuseRequest(uint32_t rank, uint64_t key, const std::string& what) = 0;  // it has broken the protocol
  virtual double RequestTime() const = 0;                                                // seconds of any one clock

 protected:
  ~RequestHost() = default;
};

class NumberedRequests {
 public:
  // `kind`: what one is called.
  NumberedRequests(RequestHost& host, std::string kind) : host_(host), kind_(std::move(kind)) {}

  void Reset(uint32_t ranks) { ranks_ = std::vector<Rank>(ranks); }
  uint32_t ranks() const { return static_cast<uint32_t>(ranks_.size()); }
  // Whether it is the rank's next. Of one that has been, the answer is given again; any other is refused.
  bool Takes(uint32_t rank, const Header& request);
  // From here on it is answered so, however often it comes: with the payload, or with what the status says.
  void Answer(uint32_t rank, const Header& request, const Status& status, std::string payload);

 private:
  struct Rank {
    uint32_t number = 0;  // of its next request that is new
    bool answered = false;
    Header answer;  // to the one before
    std::string payload;
  };

  RequestHost& host_;
  const std::string kind_;
  std::vector<Rank> ranks_;
};

}  // namespace byteps_like
