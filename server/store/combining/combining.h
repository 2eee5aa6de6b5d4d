// How the contributions of a version become one gradient: g = Σ fᵢ gᵢ. A way of combining says the factors f, in fp64;
// a factor is rounded once to the type of the value, a product once, and products are added from the first to the last.
// Twins of byteps_like/store/combining, which say why, to the last bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "compression/spec.h"
#include "csrc/base/dtype.h"
#include "server/store/policies/policy.h"

namespace byteps_like {

class Combining {
 public:
  virtual ~Combining() = default;
  virtual bool AddsIntegers() const = 0;  // factors are the weights
  // By what each of the contributions that `version` is made of is multiplied. None at all: nothing can be made of
  // them.
  virtual std::vector<double> Factors(std::span<const StorePush> pushes, int64_t version) const = 0;
  // kInvalid if no contribution can have this weight. Weights travel as fp32.
  virtual Status CheckWeight(double weight) const;
  virtual bool TakesBlocks() const { return true; }  // contributions may be cut into several
};

struct CombiningRow {
  std::string_view name;
  std::unique_ptr<Combining> (*make)(CodecSpec& spec);
};

// Of a text as Combining.text of Python writes it: "mean:age=none,damp=none". kInvalid. To add a way, write a file in
// this folder and its twin in Python, and add a row to combinings.cc. A shard's thread makes and asks it.
Result<std::unique_ptr<Combining>> MakeCombining(std::string_view text);

// The sum of all arrays, each multiplied by its factor, into the first. All are of one type (fp32, fp64, int64;
// integers wrap, and factors are whole), finite, disjoint, of `count` elements, aligned to one. False if the sum is not
// finite: then what is in the first means nothing.
bool AddUp(DType dtype, std::span<void* const> arrays, std::span<const double> factors, size_t count);

}  // namespace byteps_like
