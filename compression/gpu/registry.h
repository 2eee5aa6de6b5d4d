// All codecs that have a twin on GPUs. A new one is a file of kernels (csrc/cuda/NAME.cu), a file of recipes
// (compression/gpu/NAME.cc) and a row in registry.cc.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compression/registry.h"
#include "csrc/gpu/codec.h"
#include "csrc/gpu/kernel_table.h"

namespace byteps_like {

using GpuCodecPointer = std::shared_ptr<const GpuCodec>;

// The codec's twin, of these kernels. kInvalid: it has none, or a kernel is missing.
Result<GpuCodecPointer> MakeGpuCodec(const CodecPointer& codec, const KernelTable& kernels);

// The file of csrc/cuda, without its ending, whose kernels a codec of this name needs; empty: it has no twin.
std::string_view GpuSource(std::string_view name);
std::string_view WhyNoTwin(std::string_view name);  // empty: it has one
std::vector<std::string> GpuCodecNames();

// Each file of recipes defines one of these. It takes the keys it needs from the codec's spec, which has been checked,
// and the kernels by KernelsOf.
using GpuCodecMaker = Result<GpuCodecPointer> (*)(const CodecPointer& codec, CodecSpec& spec,
                                                  const KernelTable& kernels);

// Such a file's end: a T of what its constructor takes, the kernels last.
template <typename T, typename... A>
Result<GpuCodecPointer> MakeTwin(const KernelTable& kernels, A&&... arguments) {
  KernelsOf kernel(kernels);
  auto made = std::make_shared<T>(std::forward<A>(arguments)..., kernel);
  if (!kernel.status().ok()) return kernel.status();
  return GpuCodecPointer(std::move(made));
}

}  // namespace byteps_like
