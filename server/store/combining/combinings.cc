#include <algorithm>
#include <iterator>
#include <string>

#include "server/store/combining/decoded.h"
#include "server/store/combining/weighed.h"

namespace byteps_like {
namespace {

const CombiningRow kRows[] = {
    {"coded", Decoded::Make},
    {"mean", Weighed::MakeMean},
    {"sum", Weighed::MakeSum},
};

}  // namespace

Result<std::unique_ptr<Combining>> MakeCombining(std::string_view text) {
  auto spec = CodecSpec::Parse(text, "combining");
  if (!spec.ok()) return spec.status();
  const auto row = std::ranges::find(kRows, spec->name(), &CombiningRow::name);
  if (row == std::end(kRows))
    return Status(Code::kInvalid, "contributions can be combined by sum or mean, or coded, not by " + spec->name());
  auto made = row->make(*spec);
  if (Status done = spec->Done(); !done.ok()) return done;
  return made;
}

}  // namespace byteps_like
