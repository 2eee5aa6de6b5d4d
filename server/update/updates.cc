#include "server/update/updates.h"

namespace byteps_like {

Result<UpdatePointer> MakeNoUpdate(CodecSpec& spec);
Result<UpdatePointer> MakeAssign(CodecSpec& spec);
Result<UpdatePointer> MakeAdd(CodecSpec& spec);
Result<UpdatePointer> MakeSgd(CodecSpec& spec);
Result<UpdatePointer> MakeMomentum(CodecSpec& spec);
Result<UpdatePointer> MakeNesterov(CodecSpec& spec);
Result<UpdatePointer> MakeAdagrad(CodecSpec& spec);
Result<UpdatePointer> MakeRowAdagrad(CodecSpec& spec);
Result<UpdatePointer> MakeAdam(CodecSpec& spec);
Result<UpdatePointer> MakeAdamW(CodecSpec& spec);
Result<UpdatePointer> MakeLars(CodecSpec& spec);
Result<UpdatePointer> MakeLamb(CodecSpec& spec);
Result<UpdatePointer> MakeProximal(CodecSpec& spec);
Result<UpdatePointer> MakeFunction(CodecSpec& spec);

namespace {

struct Row {
  const char* name;
  UpdateMaker make;
};

constexpr Row kRows[] = {
    {"none", MakeNoUpdate},     {"assign", MakeAssign},     {"add", MakeAdd},         {"sgd", MakeSgd},
    {"momentum", MakeMomentum}, {"nesterov", MakeNesterov}, {"adagrad", MakeAdagrad}, {"row_adagrad", MakeRowAdagrad},
    {"adam", MakeAdam},         {"adamw", MakeAdamW},       {"lars", MakeLars},       {"lamb", MakeLamb},
    {"proximal", MakeProximal}, {"function", MakeFunction},
};

}  // namespace

Result<UpdatePointer> MakeUpdate(std::string_view text) {
  auto spec = CodecSpec::Parse(text, "update");
  if (!spec.ok()) return spec.status();
  std::string known;
  for (const Row& row : kRows) {
    if (spec->name() == row.name) return row.make(*spec);
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return Status(Code::kInvalid, "there is no update " + spec->name() + "; there are " + known);
}

std::vector<std::string> UpdateNames() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

}  // namespace byteps_like
