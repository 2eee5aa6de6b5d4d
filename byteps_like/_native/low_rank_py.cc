// byteps_like._core.orthonormalize and multiply_factors: PowerSGD's steps on matrices of fp32 or fp64.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "byteps_like/_native/events.h"
#include "compression/low_rank.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace byteps_like {
namespace {

template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <typename T>
void BindOf(nb::module_& m) {
  m.def(
      "orthonormalize",
      [](Matrix<T> basis) {
        const nb::gil_scoped_release release;
        Orthonormalize(basis.data(), basis.shape(0), basis.shape(1));
      },
      "basis"_a.noconvert(), "Makes the columns orthonormal, in place; the same bits on every CPU");
  m.def(
      "multiply_factors",
      [](Matrix<const T> basis, Matrix<const T> factor, Matrix<T> out) {
        const size_t rows = basis.shape(0), columns = factor.shape(0), rank = basis.shape(1);
        if (factor.shape(1) != rank || out.shape(0) != rows || out.shape(1) != columns)
          throw std::invalid_argument("out (n x m) = basis (n x r) times factor (m x r) transposed");
        const nb::gil_scoped_release release;
        MultiplyFactors(basis.data(), factor.data(), rows, columns, rank, out.data());
      },
      "basis"_a.noconvert(), "factor"_a.noconvert(), "out"_a.noconvert(),
      "out = basis factor^T; the same bits on every CPU");
}

}  // namespace

void BindLowRank(nb::module_& m) {
  BindOf<float>(m);
  BindOf<double>(m);
}

}  // namespace byteps_like
