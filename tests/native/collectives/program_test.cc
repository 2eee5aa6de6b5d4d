#include <doctest/doctest.h>

#include <algorithm>

#include "tests/native/collectives/schedules.h"

namespace byteps_like::testing {
namespace {

std::string WhyNot(Program program, int32_t alias = -1) {
  const auto compiled = Program::Compile(std::move(program), alias);
  if (compiled.ok()) return "";
  CHECK(compiled.status().code() == Code::kInvalid);
  return compiled.status().message();
}

Program WithSteps(std::vector<Step> steps) { return {0, 2, 2, 2, 1, std::move(steps), {}}; }

bool DependsOn(const Program& program, uint32_t step, uint32_t earlier) {
  const auto& after = program.after[step];
  return std::any_of(after.begin(), after.end(), [&](const Dependency& each) { return each.step == earlier; });
}

std::string WhyNoPlan(const ChunkTables& chunks, std::vector<Step> steps = {}, std::vector<uint32_t> ranks = {0, 1}) {
  auto program = Program::Compile(WithSteps(std::move(steps)), -1);
  REQUIRE(program.ok());
  const auto plan = Plan::Make(*program, std::move(ranks), chunks);
  if (plan.ok()) return "";
  CHECK(plan.status().code() == Code::kInvalid);
  return plan.status().message();
}

bool Has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("program: a step depends on earlier ones that touch its chunks, unless both only read") {
  auto compiled = Program::Compile(
      WithSteps({SendTo(1, 0, Input(0)), ReceiveFrom(1, 0, Output(0)), SendTo(1, 1, Output(0)), SendTo(1, 2, Output(0)),
                 ReduceFrom(1, 1, Input(0), Output(0)), SendTo(1, 3, Output(1))}),
      -1);
  REQUIRE(compiled.ok());
  const Program& program = **compiled;
  CHECK(program.after[0].empty());
  CHECK(program.after[1].empty());
  CHECK(DependsOn(program, 2, 1));
  CHECK(DependsOn(program, 3, 1));
  CHECK_FALSE(DependsOn(program, 3, 2));
  for (const uint32_t earlier : {1u, 2u, 3u}) CHECK(DependsOn(program, 4, earlier));
  CHECK_FALSE(DependsOn(program, 4, 0));
  CHECK(program.after[5].empty());
}

TEST_CASE("program: with an alias the input is the output, and copies onto themselves are dropped") {
  auto compiled = Program::Compile(
      WithSteps({CopyTo(Input(0), Output(0)), ReceiveFrom(1, 0, Output(1)), SendTo(1, 0, Input(1))}), 0);
  REQUIRE(compiled.ok());
  const Program& program = **compiled;
  REQUIRE(program.steps.size() == 2);
  CHECK(program.steps[1].source.buffer == BufferKind::kOutput);
  CHECK(DependsOn(program, 1, 0));
}

TEST_CASE("program: what is wrong is refused in words") {
  CHECK(Has(WhyNot({2, 2, 0, 0, 0, {}, {}}), "rank 2 of 2"));
  CHECK(Has(WhyNot(WithSteps({SendTo(0, 0, Input(0))})), "step 0: rank 0 of 2 has no peer 0"));
  CHECK(Has(WhyNot(WithSteps({SendTo(2, 0, Input(0))})), "no peer 2"));
  CHECK(Has(WhyNot(WithSteps({SendTo(1, 0, Input(1, 2))})), "chunks [1, 3) of input, which has 2"));
  CHECK(Has(WhyNot(WithSteps({SendTo(1, 0, Input(~0u, ~0u))})), "of input"));
  CHECK(Has(WhyNot(WithSteps({SendTo(1, 0, Input(0, 0))})), "chunks [0, 0)"));
  CHECK(Has(WhyNot(WithSteps({ReceiveFrom(1, 0, Input(0))})), "the input is only read"));
  CHECK(Has(WhyNot(WithSteps({CopyTo(Output(0), Scratch(1))})), "target: chunks [1, 2) of scratch"));
  CHECK(Has(WhyNot({0, 1, 0, 3, 0, {CopyTo(Output(0, 2), Output(1, 2))}, {}}), "overlap in part"));
  CHECK(Has(WhyNot(WithSteps({SendTo(1, 5, Input(0)), SendTo(1, 5, Input(1))})), "two sends to rank 1 have tag 5"));
  CHECK(WhyNot(WithSteps({SendTo(1, 5, Input(0)), ReceiveFrom(1, 5, Output(1))})).empty());
  CHECK(Has(WhyNot(WithSteps({}), 1), "alias 1"));
  Step strange = SendTo(1, 0, Input(0));
  strange.kind = static_cast<StepKind>(4);
  CHECK(Has(WhyNot(WithSteps({strange})), "no such kind"));
  strange = SendTo(1, 0, {static_cast<BufferKind>(3), 0, 1});
  CHECK(Has(WhyNot(WithSteps({strange})), "no such buffer"));
}

TEST_CASE("plan: chunk tables must fit the program") {
  const std::vector<Chunk> two = Lay({4, 4}, 1), one = Lay({4}, 1);
  CHECK(WhyNoPlan({two, two, one}).empty());
  CHECK(Has(WhyNoPlan({one, two, one}), "input has 1 chunks, the program's has 2"));
  CHECK(Has(WhyNoPlan({two, two, two}), "scratch has 2"));
  CHECK(Has(WhyNoPlan({two, two, one}, {}, {0}), "1 ranks for a program of 2"));
  CHECK(Has(WhyNoPlan({two, two, one}, {}, {3, 3}), "twice"));
  CHECK(Has(WhyNoPlan({two, two, {{-1, 4}}}), "before its buffer"));
  CHECK(Has(WhyNoPlan({two, {{0, 1ull << 49}, {0, 0}}, one}), "beyond any memory"));
  const std::vector<Chunk> apart = {{0, 4}, {5, 4}};
  CHECK(WhyNoPlan({apart, two, one}, {SendTo(1, 0, Input(1))}).empty());
  CHECK(Has(WhyNoPlan({apart, two, one}, {SendTo(1, 0, Input(0, 2))}), "step 0: chunk 1 does not lie behind"));
  CHECK(Has(WhyNoPlan({two, two, one}, {CopyTo(Input(0, 2), Output(0))}), "the source has 8 bytes, the target 4"));
}

TEST_CASE("plan: progress is mapped by the distance of the spans, and what does not overlap is not waited for") {
  const std::vector<Chunk> chunks = Lay({3, 0, 5}, 1);
  auto program = Program::Compile({0,
                                   2,
                                   0,
                                   3,
                                   0,
                                   {ReceiveFrom(1, 0, Output(0, 3)), SendTo(1, 0, Output(2)), SendTo(1, 1, Output(1)),
                                    ReceiveFrom(1, 1, Output(0, 3))},
                                   {}},
                                  -1);
  REQUIRE(program.ok());
  auto plan = Plan::Make(*program, {0, 1}, {{}, chunks, {}});
  REQUIRE(plan.ok());
  const auto& steps = (*plan)->steps;
  REQUIRE(steps[1].after_end - steps[1].after_begin == 1);
  CHECK((*plan)->after[steps[1].after_begin].lead == -3);  // its byte 0 is byte 3 of what comes
  CHECK(steps[2].after_end - steps[2].after_begin == 1);   // empty, but in order
  CHECK(steps[3].after_end - steps[3].after_begin == 2);   // after the receive and the send of chunk 2
}

}  // namespace byteps_like::testing
