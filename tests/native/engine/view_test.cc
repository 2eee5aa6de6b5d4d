// One engine through views of other sizes, in which this process has other ranks.
#include <doctest/doctest.h>

#include <initializer_list>
#include <string>

#include "compression/registry.h"
#include "csrc/engine/engine.h"

namespace byteps_like::testing {
namespace {

constexpr std::initializer_list<Standing> kViews = {{0, 2}, {3, 5}, {0, 1}, {1, 3}};

std::unique_ptr<Engine> EngineWithoutServers(Standing standing) {
  EngineOptions options;
  options.credentials = {"job", std::string(32, 's'), 1};
  options.standing = standing;
  options.on_event = [](Code, const std::string&, bool) {};
  auto engine = Engine::Start(std::move(options), {});
  REQUIRE(engine.ok());
  return std::move(*engine);
}

Code CodeOfBroadcast(Engine& engine, uint32_t tensor, uint32_t root) {
  Engine::Request request;
  request.tensor = tensor;
  request.op = Op::kBroadcast;
  request.root = root;
  return engine.Submit(request).status().code();
}

Code CodeOfCodec(Engine& engine, uint32_t world) {
  auto codec = MakeCodec("onebit:block=1024", world);
  REQUIRE(codec.ok());
  return engine.DeclareCoded({}, {*codec, (*codec)->spec()}).status().code();
}

}  // namespace

TEST_CASE("broadcasts have the ranks of the view in force for roots") {
  auto engine = EngineWithoutServers({0, 4});
  const uint32_t tensor = engine->Declare(DType::kFloat32, {});
  for (const Standing view : kViews) {
    CAPTURE(view.world_size);
    engine->SetStanding(view);
    CHECK(CodeOfBroadcast(*engine, tensor, view.world_size - 1) == Code::kOk);
    CHECK(CodeOfBroadcast(*engine, tensor, view.world_size) == Code::kInvalid);
  }
}

TEST_CASE("tensors are declared with codecs for the world of the view in force") {
  auto engine = EngineWithoutServers({0, 4});
  for (const Standing view : kViews) {
    CAPTURE(view.world_size);
    engine->SetStanding(view);
    CHECK(CodeOfCodec(*engine, view.world_size) == Code::kOk);
    CHECK(CodeOfCodec(*engine, view.world_size + 1) == Code::kInvalid);
  }
}

}  // namespace byteps_like::testing
