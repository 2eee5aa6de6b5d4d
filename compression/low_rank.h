// The two steps of PowerSGD (Vogels et al., NeurIPS 2019) that every rank makes for itself and that must give the same
// bits on all of them, whatever their CPUs: sums in a fixed order, no fused operations. Matrices are row-major.
#pragma once

#include <cstddef>

namespace byteps_like {

// Makes the columns of `basis` (rows x rank) orthonormal, by Gram-Schmidt done twice in fp64; a column that depends on
// those before it becomes zero. Allocates rows * rank doubles.
template <typename T>
void Orthonormalize(T* basis, size_t rows, size_t rank);

// out (rows x columns) = basis (rows x rank) times the transpose of `factor` (columns x rank). Allocates a copy of
// that.
template <typename T>
void MultiplyFactors(const T* basis, const T* factor, size_t rows, size_t columns, size_t rank, T* out);

}  // namespace byteps_like
