#include "compression/registry.h"

#include <string>

namespace byteps_like {

Result<CodecPointer> MakeInt(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeOnebit(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeQsgd(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeTernary(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeDithering(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeEden(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeThc(CodecSpec& spec, uint32_t world);

namespace {

struct Row {
  const char* name;
  CodecMaker make;
};

// In the order of their ids.
constexpr Row kRows[] = {
    {"int", MakeInt},         {"onebit", MakeOnebit},       {"qsgd", MakeQsgd},
    {"ternary", MakeTernary}, {"dithering", MakeDithering}, {"eden", MakeEden},
    {"thc", MakeThc},
};

}  // namespace

Result<CodecPointer> MakeCodec(std::string_view text, uint32_t world) {
  auto spec = CodecSpec::Parse(text);
  if (!spec.ok()) return spec.status();
  if (world == 0 || world > UINT16_MAX)
    return Status(Code::kInvalid, "codec " + spec->text() + ": " + std::to_string(world) + " ranks are too many");
  for (const Row& row : kRows)
    if (spec->name() == row.name) return row.make(*spec, world);
  return Status(Code::kInvalid, "there is no codec " + spec->name());
}

std::vector<std::string> CodecNames() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

}  // namespace byteps_like
