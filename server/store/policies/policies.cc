#include <algorithm>
#include <string>

#include "server/store/policies/bounded.h"
#include "server/store/policies/partial.h"
#include "server/store/policies/synchronous.h"

namespace byteps_like {
namespace {

const StorePolicyRow kRows[] = {
    {"asp", MakeAsp},     {"backup", Backup::Make}, {"bsp", Bsp::Make},
    {"dssp", Dssp::Make}, {"k_of_n", KOfN::Make},   {"ssp", Ssp::Make},
};

}  // namespace

double StorePolicy::Lead(const Ledger&, uint32_t) const { return kAnyLead; }

Result<std::unique_ptr<StorePolicy>> MakeStorePolicy(std::string_view text) {
  auto spec = CodecSpec::Parse(text, "policy");
  if (!spec.ok()) return spec.status();
  const auto row = std::ranges::find(kRows, spec->name(), &StorePolicyRow::name);
  if (row == std::end(kRows)) return Status(Code::kInvalid, "policy " + spec->name() + " is not known");
  auto made = row->make(*spec);
  if (Status done = spec->Done(); !done.ok()) return done;
  return made;
}

}  // namespace byteps_like
