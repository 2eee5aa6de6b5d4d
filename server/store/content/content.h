// What a store key keeps, and what becomes of it: a dense value, or rows by id. Whatever the kind, the key has one
// ledger, one policy, one way of combining, and stages contributions until they are part of a version (store_key.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "server/memory.h"
#include "server/store/gradient_estimate.h"
#include "server/store/policies/policy.h"
#include "server/update/update.h"

namespace byteps_like {

// Ids of rows, strictly ascending.
struct IdList {
  std::span<const uint64_t> ids() const { return {reinterpret_cast<const uint64_t*>(bytes.data()), count}; }

  ShardBuffer bytes;  // 8 of each
  size_t count = 0;
  uint32_t crc = 0;  // CRC32C of all
};

// Of which rows a contribution has gradients.
struct NamedRows {
  std::shared_ptr<const IdList> list;
  ShardBuffer slots;  // where the content has them
};

struct WholePush {
  StorePush push;
  ShardBuffer gradient;      // as long as the value, of its type; or a row for each id
  std::optional<double> lr;  // nullopt: the update's own
  NamedRows rows = {};       // of a content of rows
};

// What the contributions to a version have added up to.
struct CombinedGradient {
  ShardBuffer bytes;
  std::shared_ptr<const IdList> rows = nullptr;  // of which it has gradients; nullptr: of the whole value
};

// Of what a version is made, and how.
struct VersionCall {
  int64_t version = 0;
  std::span<WholePush> pushes;      // finite, one at least; their gradients may be overwritten
  std::span<const double> factors;  // one each
  double lr = 0;
  const ValueUpdate& update;
  std::span<const StorePush> made_of = {};  // one each
};

class StoreContent {
 public:
  virtual ~StoreContent() = default;
  virtual DType dtype() const = 0;
  virtual size_t CountOf(const WholePush& whole) const = 0;  // elements that it brings
  // Memory for what may have to be copied before the next contribution comes. kCapacity.
  virtual Status Reserve(ShardBuffer* /*fresh*/) { return {}; }
  // This contribution is about to be staged: what Apply will need for it is made now. kCapacity.
  virtual Status Admit(WholePush& /*whole*/) { return {}; }
  // Of what several contributions bring; nullopt: there is none, as of rows, which differ from one to the other.
  virtual std::optional<GradientEstimate> Estimate(std::span<const WholePush> /*pushes*/) const { return std::nullopt; }
  // False if the contributions add up to what is not finite, or the update makes that of them: then nothing has
  // changed, but for other rows. An error is the update's. `fresh` is what was reserved.
  virtual Result<bool> Apply(const VersionCall& call, ShardBuffer& fresh) = 0;
  // What that has made of them, which it takes out of them. kCapacity.
  virtual Result<CombinedGradient> TakeCombined(std::span<WholePush> applied) const = 0;
};

}  // namespace byteps_like
