#include "compression/low_rank.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace byteps_like {
namespace {

constexpr size_t kLanes = 16;
// A column counts as dependent on those before it if less than this fraction of it is left after subtracting their
// parts.
constexpr double kDependent = 1e-6;

using Column = std::span<double>;

double Dot(Column a, Column b) {
  double lanes[kLanes] = {};
  const size_t whole = a.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (size_t i = whole; i < a.size(); ++i) lanes[i - whole] += a[i] * b[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

void Subtract(Column from, double factor, Column what) {
  for (size_t i = 0; i < from.size(); ++i) from[i] -= factor * what[i];
}

// Twice is enough (Giraud et al., "The loss of orthogonality in the Gram-Schmidt orthogonalization process", 2005).
void Orthogonalize(Column column, std::span<const Column> before) {
  const double was = std::sqrt(Dot(column, column));
  for (int time = 0; time < 2; ++time)
    for (const Column other : before) Subtract(column, Dot(column, other), other);
  const double length = std::sqrt(Dot(column, column));
  const double factor = length > kDependent * was ? 1 / length : 0;
  for (double& value : column) value *= factor;
}

}  // namespace

template <typename T>
void Orthonormalize(T* basis, size_t rows, size_t rank) {
  std::vector<double> memory(rows * rank);
  std::vector<Column> columns;
  for (size_t k = 0; k < rank; ++k) {
    const Column column(memory.data() + k * rows, rows);
    for (size_t i = 0; i < rows; ++i) column[i] = basis[i * rank + k];
    Orthogonalize(column, columns);
    columns.push_back(column);
  }
  for (size_t i = 0; i < rows; ++i)
    for (size_t k = 0; k < rank; ++k) basis[i * rank + k] = static_cast<T>(columns[k][i]);
}

template <typename T>
void MultiplyFactors(const T* basis, const T* factor, size_t rows, size_t columns, size_t rank, T* out) {
  std::vector<T> transposed(columns * rank);
  for (size_t j = 0; j < columns; ++j)
    for (size_t k = 0; k < rank; ++k) transposed[k * columns + j] = factor[j * rank + k];
  for (size_t i = 0; i < rows; ++i) {
    T* const row = out + i * columns;
    std::fill_n(row, columns, T{0});
    for (size_t k = 0; k < rank; ++k) {
      const T weight = basis[i * rank + k];
      const T* const from = transposed.data() + k * columns;
      for (size_t j = 0; j < columns; ++j) row[j] += weight * from[j];
    }
  }
}

template void Orthonormalize(float*, size_t, size_t);
template void Orthonormalize(double*, size_t, size_t);
template void MultiplyFactors(const float*, const float*, size_t, size_t, size_t, float*);
template void MultiplyFactors(const double*, const double*, size_t, size_t, size_t, double*);

}  // namespace byteps_like
