// How the contributions of a version become one gradient: g = Σ dᵢ wᵢ gᵢ / D, with D = 1 for a sum and Σ wᵢ for a mean;
// w has a factor by age in it, d is one. Twin of byteps_like/store/combine.py, which says why, to the last bit: factors
// are fp64, D is added up from the first contribution to the last; a factor is rounded once to the type of the value, a
// product once, and products are added from the first to the last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "compression/spec.h"
#include "csrc/base/dtype.h"
#include "server/store/policy.h"

namespace byteps_like {

// By what a contribution counts that is so many versions old: above 0, at most 1.
using AgeFactor = double (*)(int64_t age);

class Combining {
 public:
  // Of a text as Combining.text of Python writes it: "mean:age=none,damp=none". kInvalid. To add an age factor, write a
  // row in combining.cc, and in AGES of its twin.
  static Result<Combining> Parse(std::string_view text);

  bool adds_integers() const { return !is_mean_ && age_ == nullptr && damp_ == nullptr; }  // factors are the weights
  // By what each of the contributions that `version` is made of is multiplied.
  std::vector<double> Factors(std::span<const StorePush> pushes, int64_t version) const;

 private:
  bool is_mean_ = true;
  AgeFactor age_ = nullptr, damp_ = nullptr;  // nullptr: 1 at any age
};

// kInvalid if nothing can be combined by this weight. Weights travel as fp32.
Status CheckWeight(double weight);

// The sum of all arrays, each multiplied by its factor, into the first. All are of one type (fp32, fp64, int64;
// integers wrap, and factors are whole), finite, disjoint, of `count` elements, aligned to one. False if the sum is not
// finite: then what is in the first means nothing.
bool AddUp(DType dtype, std::span<void* const> arrays, std::span<const double> factors, size_t count);

}  // namespace byteps_like
