// Values of store keys as arrays of Python: contiguous, on the CPU, rows first.
#pragma once

#include <nanobind/ndarray.h>

#include <stdexcept>

#include "csrc/base/dtype.h"
#include "server/update/update.h"

namespace byteps_like {

using ValueArray = nanobind::ndarray<nanobind::c_contig, nanobind::device::cpu>;
using ValueSource = nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu>;

template <typename A>
DType TypeOf(const A& array) {
  if (array.dtype() == nanobind::dtype<float>()) return DType::kFloat32;
  if (array.dtype() == nanobind::dtype<double>()) return DType::kFloat64;
  if (array.dtype() == nanobind::dtype<int64_t>()) return DType::kInt64;
  throw std::invalid_argument("values are of float32, float64 or int64");
}

template <typename A>
ValueShape ShapeOf(const A& array) {
  if (array.ndim() == 0) throw std::invalid_argument("a value has at least one dimension");
  const size_t rows = array.shape(0);
  return {rows, rows == 0 ? 0 : array.size() / rows};
}

}  // namespace byteps_like
