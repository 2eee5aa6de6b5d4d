// The engine's tables: of its tensors, and of the memory that servers on the same host may use in place.
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "compression/registry.h"
#include "csrc/engine/channel.h"
#include "csrc/engine/region_table.h"
#include "csrc/engine/tensor_table.h"

namespace byteps_like::testing {
namespace {

std::shared_ptr<SharedBuffer> Buffer(size_t bytes) {
  auto buffer = SharedBuffer::Create(bytes);
  REQUIRE(buffer.ok());
  return *buffer;
}

CodecUse Use(const char* spec) {
  auto codec = MakeCodec(spec, 2);
  REQUIRE(codec.ok());
  return {*codec, spec};
}

const std::vector<std::unique_ptr<Channel>> kOneChannel(1);

}  // namespace

TEST_CASE("region table: bytes are found in the buffer that holds all of them, as long as somebody owns it") {
  RegionTable regions;
  auto first = Buffer(4096), second = Buffer(8192);
  regions.Add(first);
  regions.Add(second);
  CHECK(regions.Find(first->data(), 4096).buffer == first);
  CHECK(regions.Find(second->data() + 8000, 192).buffer == second);
  CHECK(regions.Find(second->data(), 1).id != regions.Find(first->data(), 1).id);
  CHECK(regions.Find(second->data() + 8000, 193).buffer == nullptr);
  const std::byte elsewhere{};
  CHECK(regions.Find(&elsewhere, 1).buffer == nullptr);

  CHECK(regions.TakeGone().empty());
  const uint32_t id = regions.Find(first->data(), 1).id;
  const std::byte* const was_at = first->data();
  first.reset();
  CHECK(regions.Find(was_at, 1).buffer == nullptr);
  CHECK(regions.TakeGone() == std::vector<uint32_t>{id});
  CHECK(regions.TakeGone().empty());
  auto third = Buffer(4096);
  regions.Add(third);
  CHECK(regions.Find(third->data(), 1).id != id);  // servers may know the old one
}

TEST_CASE("tensor table: ids are given again, tensors and texts stay where they are") {
  TensorTable tensors;
  const uint32_t first = tensors.Add(DType::kFloat32, {{1, 0, 8, 0, false}, {2, 8, 4, 0, true}}, kOneChannel);
  const DeclaredTensor* const where = &tensors.at(first);
  const uint32_t second = tensors.Add(DType::kInt8, {{3, 0, 5, 0, false}}, kOneChannel);
  CHECK(&tensors.at(first) == where);
  CHECK(tensors.size() == 2);
  CHECK(where->parts.at(1)->absent);
  CHECK(where->parts.at(1)->weight == 4);

  tensors.Encode(first, Use("onebit:block=64"));
  const std::string* const text = &tensors.CodecText(where->codings.at(0)->number);
  const uint32_t third = tensors.Add(DType::kFloat32, {{4, 0, 8, 0, false}}, kOneChannel);
  tensors.Encode(third, Use("fixed:bits=16,block=256"));
  CHECK(&tensors.CodecText(where->codings.at(1)->number) == text);
  CHECK(*text == "onebit:block=64");
  const Coding& fixed = *tensors.at(third).codings.at(0);
  CHECK(tensors.CodecText(fixed.number) == "fixed:bits=16,block=256");
  REQUIRE(fixed.prelude);
  CHECK(fixed.prelude->key == (4 | kPreludeKey));
  CHECK(tensors.at(third).parts.at(0)->weight == fixed.plan.prelude + fixed.plan.payload);

  tensors.Remove(second);
  CHECK(tensors.size() == 2);
  CHECK(tensors.Add(DType::kInt8, {{5, 0, 7, 0, false}}, kOneChannel) == second);
  CHECK(tensors.at(second).parts.at(0)->key == 5);
}

TEST_CASE("tensor table: a tensor is idle when nothing refers to its parts or their preludes") {
  TensorTable tensors;
  DeclaredTensor& tensor = tensors.at(tensors.Add(DType::kFloat32, {{1, 0, 8, 0, false}}, kOneChannel));
  tensors.Encode(0, Use("fixed:bits=16,block=256"));
  Part& part = *tensor.parts.at(0);
  CHECK(tensor.idle());
  part.operation = std::make_shared<Operation>();
  CHECK_FALSE(tensor.idle());
  part.operation = nullptr;
  part.waiting = 1;
  CHECK_FALSE(tensor.idle());
  part.waiting = 0;
  part.coding->prelude->waiting = 1;
  CHECK_FALSE(tensor.idle());
  part.coding->prelude->waiting = 0;
  tensor.stagings.push_back(std::make_unique<Staging>(part));
  CHECK_FALSE(tensor.idle());
}

TEST_CASE("tensor table: what can't be encoded is named") {
  const CodecUse use = Use("onebit:block=64");
  CHECK(CheckCoded({{1, 0, 8, 0, false}}, use, 2).ok());
  CHECK(CheckCoded({{1, 0, 8, 0, false}}, use, 3).message().find("for a world of 2") != std::string::npos);
  CHECK(CheckCoded({{1, 0, 7, 0, false}}, use, 2).message().find("key 1 is not of whole elements") !=
        std::string::npos);
  CHECK(CheckCoded({{1, 2, 8, 0, false}}, use, 2).code() == Code::kInvalid);
  CHECK(CheckCoded({{1, 0, 0, 0, false}}, use, 2).code() == Code::kInvalid);
  CHECK(CheckCoded({{1 | kPreludeKey, 0, 8, 0, false}}, use, 2).message().find("a prelude") != std::string::npos);
}

}  // namespace byteps_like::testing
