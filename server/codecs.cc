#include "server/codecs.h"

#include <algorithm>
#include <utility>

#include "csrc/kernels/kernels.h"

namespace byteps_like {
namespace {

constexpr std::string_view kTwoWay = "twoway ";

bool IsPlain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char one) { return one >= ' ' && one <= '~'; });
}

}  // namespace

Result<const ServerCodec*> ServerCodecs::Find(std::string_view text) {
  const auto found = codecs_.find(std::string(text));
  if (found != codecs_.end()) return found->second.get();
  if (codecs_.size() == kMaxCodecs) return Status(Code::kCapacity, "there are too many codecs");
  auto codec = std::make_unique<ServerCodec>();
  const Status made = Make(text, *codec);
  if (!made.ok()) return made;
  return codecs_.emplace(codec->text, std::move(codec)).first->second.get();
}

Status ServerCodecs::Make(std::string_view text, ServerCodec& out) const {
  if (!IsPlain(text)) return Status(Code::kInvalid, "the codec's text is not plain");
  out.text = text;
  out.two_way = text.starts_with(kTwoWay);
  auto made = MakeCodec(out.two_way ? text.substr(kTwoWay.size()) : text, world_);
  if (!made.ok()) return made.status();
  out.codec = *made;
  const std::string& spec = out.codec->spec();
  out.crc = kernels::Crc32c(0, spec.data(), spec.size());
  const Trait trait = out.codec->trait();
  if (trait == Trait::kOpaque || trait == Trait::kDense)
    return Status(Code::kInvalid, "codec " + spec + " can't be used for encoded rounds: its payloads are " +
                                      (trait == Trait::kDense ? "plain arrays" : "not summed"));
  if (out.two_way && trait != Trait::kReencode)
    return Status(Code::kInvalid, "codec " + spec + " needs no feedback at the server, which does not encode again");
  return {};
}

}  // namespace byteps_like
