// Any bytes in fewer, where they repeat: a stream of zlib (RFC 1950).
#include <zlib.h>

#include "server/store/filters/filters.h"

namespace byteps_like {
namespace {

Bytef* In(const std::byte* bytes) { return const_cast<Bytef*>(reinterpret_cast<const Bytef*>(bytes)); }

class Zlib final : public PayloadFilter {
 public:
  explicit Zlib(CodecSpec& spec) : level_(static_cast<int>(spec.Integer("level", 1, 9))) {}

  size_t Most(DType, size_t bytes) const override { return compressBound(bytes); }

  Result<size_t> Encode(DType, const Draw&, std::span<const std::byte> in, std::span<std::byte> out) const override {
    uLongf bytes = out.size();
    if (compress2(In(out.data()), &bytes, In(in.data()), in.size(), level_) == Z_OK) return size_t{bytes};
    return Status(Code::kCapacity, "zlib has no memory");
  }

  // zlib writes no more than there is room for.
  Result<size_t> Decode(DType, std::span<const std::byte> in, std::span<std::byte> out) const override {
    uLongf bytes = out.size();
    uLong taken = in.size();
    const int how = uncompress2(In(out.data()), &bytes, In(in.data()), &taken);
    if (how == Z_OK && taken == in.size()) return size_t{bytes};
    if (how == Z_MEM_ERROR) return Status(Code::kCapacity, "zlib has no memory");
    return Status(Code::kCorrupt, "a payload of filter zlib is damaged, or stands for too many bytes");
  }

 private:
  const int level_;
};

}  // namespace

Result<FilterPointer> MakeZlib(CodecSpec& spec) { return MadeFilter<Zlib>(spec); }

}  // namespace byteps_like
