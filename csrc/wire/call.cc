#include "csrc/wire/call.h"

#include <bit>

#include "csrc/wire/bytes.h"

namespace byteps_like {
namespace {

// Takes fields off the front of a message; once one is missing, nothing more comes.
class Fields {
 public:
  explicit Fields(std::span<const std::byte> bytes) : left_(bytes) {}

  template <typename T>
  T Number() {
    const auto bytes = Take(sizeof(T));
    return bytes.empty() ? T{} : GetLittle<T>(bytes.data());
  }
  std::string Name() {
    const auto bytes = Take(Number<uint8_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  bool ended() const { return whole_ && left_.empty(); }

 private:
  std::span<const std::byte> Take(size_t count) {
    whole_ = whole_ && count <= left_.size();
    if (!whole_) return {};
    const auto taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }

  std::span<const std::byte> left_;
  bool whole_ = true;
};

template <typename T>
void Append(std::string* to, T value) {
  std::byte bytes[sizeof(T)];
  PutLittle(bytes, value);
  to->append(reinterpret_cast<const char*>(bytes), sizeof(T));
}

bool IsName(std::string_view name) { return !name.empty() && name.size() <= kMaxNameBytes; }

}  // namespace

Result<ServerCall> DecodeCall(std::span<const std::byte> payload) {
  if (payload.size() > kMaxCall) return Status(Code::kCorrupt, "a call has more than 1,024 bytes");
  Fields fields(payload);
  ServerCall call;
  const auto tensors = fields.Number<uint8_t>();
  const auto scalars = fields.Number<uint8_t>();
  call.function = fields.Name();
  for (unsigned i = 0; i < tensors; ++i) call.tensors.push_back(fields.Number<uint32_t>());
  bool named = IsName(call.function);
  for (unsigned i = 0; i < scalars; ++i) {
    std::string name = fields.Name();
    named = named && IsName(name);
    call.scalars.emplace_back(std::move(name), std::bit_cast<double>(fields.Number<uint64_t>()));
  }
  if (!fields.ended()) {
    const auto low = fields.Number<uint64_t>(), high = fields.Number<uint64_t>(), since = fields.Number<uint64_t>();
    call.rows = {.low = low, .high = high, .since = since};
  }
  if (!fields.ended() || !named || tensors == 0) return Status(Code::kCorrupt, "a call makes no sense");
  return call;
}

Result<std::string> EncodeFigures(const Figures& figures) {
  if (figures.size() > kMaxFigures) return Status(Code::kInvalid, "more than 255 numbers have come of it");
  std::string payload;
  Append(&payload, static_cast<uint8_t>(figures.size()));
  for (const auto& [name, value] : figures) {
    if (!IsName(name)) return Status(Code::kInvalid, "a number has no name of 1 to 64 bytes: '" + name + "'");
    Append(&payload, static_cast<uint8_t>(name.size()));
    payload += name;
    Append(&payload, std::bit_cast<uint64_t>(value));
  }
  return payload;
}

}  // namespace byteps_like
