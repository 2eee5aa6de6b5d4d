// Calls on what one shard keeps: one after the other, behind contributions, again on new links.
#include "csrc/engine/keeping/kept_calls.h"

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <set>
#include <string>

namespace byteps_like::testing::kept_calls {
namespace {

struct Settlements : KeepSink {
  void CutOff(uint64_t, bool) override {}
  void Settled(const KeepTicket& ticket, const Status& status, KeepOutcome) override {
    found[ticket.index] = status.ok() ? ticket.operation->answers[ticket.index] : status.message();
  }
  std::map<size_t, std::string> found;
};

struct Calls {
  Calls() { operation->answers.resize(10); }

  void Call(size_t number, uint64_t order, std::vector<uint64_t> keys) {
    calls.Call({.keys = std::move(keys),
                .here = 2,
                .parts = 5,
                .text = "text",
                .order = order,
                .ticket = {operation, number}});
  }
  Header Sent() {
    REQUIRE(calls.due());
    Outgoing next;
    calls.Next(next);
    CHECK(next.header.type == FrameType::kCall);
    CHECK(std::string(reinterpret_cast<const char*>(next.payload), next.header.length) == "text");
    return next.header;
  }
  Status Answered(uint32_t number, const std::string& payload, Code code = Code::kOk) {
    Header header;
    header.type = FrameType::kCall;
    header.round = number;
    header.aux = static_cast<uint32_t>(code);
    return calls.OnAnswer(header, payload);
  }

  std::set<uint64_t> unsent;  // keys with contributions before anything
  size_t asked = 0;
  Settlements told;
  KeptCalls calls{[this](uint64_t key, uint64_t) {
                    ++asked;
                    return !unsent.contains(key);
                  },
                  told};
  std::shared_ptr<KeepOperation> operation = std::make_shared<KeepOperation>();
};

}  // namespace

TEST_CASE("kept calls: one after the other, each with a number") {
  Calls on;
  CHECK_FALSE(on.calls.due());
  on.Call(0, 1, {7, 8});
  on.Call(1, 2, {8});
  const Header first = on.Sent();
  CHECK(first.key == 7);
  CHECK(first.round == 0);
  CHECK(first.aux == 2);
  CHECK(first.total == 5);
  CHECK_FALSE(on.calls.due());
  CHECK(on.Answered(0, "one").ok());
  CHECK(on.told.found == std::map<size_t, std::string>{{0, "one"}});
  CHECK(on.Sent().round == 1);
  CHECK(on.Answered(0, "again").ok());  // the server had answered on the link before, too
  CHECK(on.Answered(1, "it went wrong", Code::kInvalid).ok());
  CHECK(on.told.found[1] == "it went wrong");
  CHECK_FALSE(on.calls.waits());
}

TEST_CASE("kept calls: behind contributions that were made before, which are looked for once") {
  Calls on;
  on.unsent = {8};
  on.Call(0, 1, {7, 8, 9});
  CHECK_FALSE(on.calls.due());
  CHECK_FALSE(on.calls.due());
  CHECK(on.asked == 3);
  on.unsent.clear();
  CHECK(on.Sent().key == 7);
  CHECK(on.asked == 5);
}

TEST_CASE("kept calls: again on a new link, behind contributions that go again") {
  Calls on;
  on.Call(0, 1, {7});
  CHECK(on.Sent().round == 0);
  on.unsent = {7};
  on.calls.OnNewLink();
  CHECK_FALSE(on.calls.due());
  on.unsent.clear();
  CHECK(on.Sent().round == 0);
  CHECK(on.Answered(0, "at last").ok());
  CHECK(on.told.found[0] == "at last");
}

TEST_CASE("kept calls: answers to what was not called are corrupt, and an end is told to all") {
  Calls on;
  CHECK(on.Answered(0, "").code() == Code::kCorrupt);
  on.Call(0, 1, {7});
  CHECK(on.Answered(0, "").code() == Code::kCorrupt);  // it has not been sent
  on.Call(1, 2, {7});
  on.Sent();
  CHECK(on.Answered(1, "").code() == Code::kCorrupt);
  on.calls.End(Status(Code::kClosed, "over"));
  CHECK(on.told.found == std::map<size_t, std::string>{{0, "over"}, {1, "over"}});
}

}  // namespace byteps_like::testing::kept_calls
