#include "compression/gpu/registry.h"

#include <string>

namespace byteps_like {

Result<GpuCodecPointer> MakeGpuCast(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels);
Result<GpuCodecPointer> MakeGpuFp8(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels);
Result<GpuCodecPointer> MakeGpuFixed(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels);
Result<GpuCodecPointer> MakeGpuInt(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels);
Result<GpuCodecPointer> MakeGpuOnebit(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels);
Result<GpuCodecPointer> MakeGpuTopK(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels);
Result<GpuCodecPointer> MakeGpuRandomK(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels);
Result<GpuCodecPointer> MakeGpuChunkTopK(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels);
Result<GpuCodecPointer> MakeGpuThc(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels);
Result<GpuCodecPointer> MakeGpuBitmap(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels);
Result<GpuCodecPointer> MakeGpuBlockSparse(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels);
Result<GpuCodecPointer> MakeGpuCoo(const CodecPointer& codec, CodecSpec& spec, const KernelTable& kernels);

namespace {

struct Row {
  const char* name;
  const char* source;
  GpuCodecMaker make;
};

// In the order of their ids.
constexpr Row kRows[] = {
    {"fp16", "casts", MakeGpuCast},
    {"bf16", "casts", MakeGpuCast},
    {"fp8", "fp8", MakeGpuFp8},
    {"fixed", "fixed", MakeGpuFixed},
    {"int", "int", MakeGpuInt},
    {"onebit", "onebit", MakeGpuOnebit},
    {"topk", "sparse", MakeGpuTopK},
    {"randomk", "randomk", MakeGpuRandomK},
    {"chunktopk", "sparse", MakeGpuChunkTopK},
    {"thc", "thc", MakeGpuThc},
    {"bitmap", "sparse", MakeGpuBitmap},
    {"blocksparse", "blocksparse", MakeGpuBlockSparse},
    {"coo", "sparse", MakeGpuCoo},
};

struct Missing {
  const char* name;
  const char* why;
};

// Where there is more to say than that nobody has written them.
constexpr Missing kMissing[] = {
    {"sign", "no kernels are written for it; onebit has them"},
    {"qsgd", "no kernels are written for it; int with stochastic rounding has them"},
    {"natural", "no kernels are written for it; fp8 has them"},
    {"ternary", "no kernels are written for it; int with stochastic rounding has them"},
    {"dithering", "no kernels are written for it; int with stochastic rounding has them"},
    {"eden", "no kernels are written for it; thc has them"},
    {"sketch", "its sums are peeled one element after the other; bitmap and coo have kernels"},
};

const Row* Find(std::string_view name) {
  for (const Row& row : kRows)
    if (name == row.name) return &row;
  return nullptr;
}

}  // namespace

Result<GpuCodecPointer> MakeGpuCodec(const CodecPointer& codec, const KernelTable& kernels) {
  auto spec = CodecSpec::Parse(codec->spec());
  if (!spec.ok()) return spec.status();
  const Row* const row = Find(spec->name());
  if (row == nullptr)
    return Status(Code::kInvalid,
                  "codec " + spec->name() + " does not run on GPUs: " + std::string(WhyNoTwin(spec->name())));
  return row->make(codec, *spec, kernels);
}

std::string_view GpuSource(std::string_view name) {
  const Row* const row = Find(name);
  return row == nullptr ? "" : row->source;
}

std::string_view WhyNoTwin(std::string_view name) {
  for (const Missing& missing : kMissing)
    if (name == missing.name) return missing.why;
  return Find(name) != nullptr ? "" : "no kernels are written for it";
}

std::vector<std::string> GpuCodecNames() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

}  // namespace byteps_like
