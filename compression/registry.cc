#include "compression/registry.h"

#include <string>

namespace byteps_like {

Result<CodecPointer> MakeFp16(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeBf16(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeFp8(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeFixed(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeInt(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeOnebit(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeSign(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeQsgd(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeNatural(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeTernary(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeDithering(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeTopK(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeRandomK(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeChunkTopK(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeEden(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeThc(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeBitmap(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeSketch(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeBlockSparse(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeCoo(CodecSpec& spec, uint32_t world);
Result<CodecPointer> MakeSparseLoco(CodecSpec& spec, uint32_t world);

namespace {

struct Row {
  const char* name;
  CodecMaker make;
};

// In the order of their ids.
constexpr Row kRows[] = {
    {"fp16", MakeFp16},
    {"bf16", MakeBf16},
    {"fp8", MakeFp8},
    {"fixed", MakeFixed},
    {"int", MakeInt},
    {"onebit", MakeOnebit},
    {"sign", MakeSign},
    {"qsgd", MakeQsgd},
    {"natural", MakeNatural},
    {"ternary", MakeTernary},
    {"dithering", MakeDithering},
    {"topk", MakeTopK},
    {"randomk", MakeRandomK},
    {"chunktopk", MakeChunkTopK},
    {"eden", MakeEden},
    {"thc", MakeThc},
    {"bitmap", MakeBitmap},
    {"sketch", MakeSketch},
    {"blocksparse", MakeBlockSparse},
    {"coo", MakeCoo},
    {"sparseloco", MakeSparseLoco},
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
