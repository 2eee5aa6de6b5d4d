// Functions of users as updates: what they may change, and what becomes of what they get wrong.
#include "server/update/function.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/update/updates.h"

namespace byteps_like::testing::functions {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Adds the gradient times the age, and counts in its state; a gradient of 13 is an error.
class Aging final : public ServerFunction {
 public:
  size_t StateCount(const ValueShape&) const override { return 1; }
  Status Run(const UpdateCall& call) const override {
    auto* const value = static_cast<float*>(call.value);
    const auto* const gradient = static_cast<const float*>(call.gradient);
    const auto age = static_cast<float>(static_cast<int64_t>(call.step) - 1 - call.pushes.front().base);
    if (gradient[0] == 13) return Status(Code::kInvalid, "an unlucky number");
    for (size_t i = 0; i < call.shape.count(); ++i) value[i] += age * gradient[i];
    ++*static_cast<float*>(call.state);
    return {};
  }
};

UpdatePointer Made() {
  SetFunctionFinder([](const std::string& name) {
    return name == "aging" ? std::make_unique<const Aging>() : std::unique_ptr<const Aging>();
  });
  auto update = MakeUpdate("function:of=aging");
  REQUIRE_MESSAGE(update.ok(), update.status().message());
  return std::move(*update);
}

struct Key {
  Result<bool> Apply(std::vector<float> gradient) {
    const StorePush push{.source = 3, .clock = 4, .base = 5, .weight = 1, .loss = 2};
    return update->Apply({.dtype = DType::kFloat32,
                          .shape = {3, 1},
                          .value = value.data(),
                          .state = state.data(),
                          .gradient = gradient.data(),
                          .lr = update->lr(),
                          .step = 8,
                          .pushes = {&push, 1}});
  }

  UpdatePointer update = Made();
  std::vector<float> value{1, 2, 3}, state{0};
};

}  // namespace

TEST_CASE("functions: they see what was pushed, and change value and state") {
  Key key;
  auto applied = key.Apply({1, 10, 100});
  REQUIRE(applied.ok());
  CHECK(*applied);
  CHECK(key.value == std::vector<float>{3, 22, 203});
  CHECK(key.state == std::vector<float>{1});
  CHECK(std::isnan(key.update->lr()));
}

TEST_CASE("functions: what is not finite afterwards is put back") {
  Key key;
  for (const float bad : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    auto applied = key.Apply({1, bad, 1});
    REQUIRE(applied.ok());
    CHECK_FALSE(*applied);
  }
  CHECK(key.value == std::vector<float>{1, 2, 3});
  CHECK(key.state == std::vector<float>{0});
}

TEST_CASE("functions: their errors are passed on, and a name that nobody knows is one") {
  Key key;
  CHECK(key.Apply({13, 0, 0}).status().message() == "an unlucky number");
  auto unknown = MakeUpdate("function:of=other");
  CHECK(unknown.status().code() == Code::kInvalid);
  CHECK(unknown.status().message().find("--import") != std::string::npos);
  SetFunctionFinder(nullptr);
  CHECK(MakeUpdate("function:of=aging").status().code() == Code::kInvalid);
}

}  // namespace byteps_like::testing::functions
