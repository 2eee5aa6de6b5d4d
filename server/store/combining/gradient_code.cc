#include "server/store/combining/gradient_code.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace byteps_like {
namespace {

using Matrix = std::vector<std::vector<double>>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// From -1/2 to 1/2: SplitMix64's output of that number.
double Drawn(uint64_t seed, uint64_t number) {
  uint64_t word = seed * 0xD1342543DE82EF95u + (number + 1) * 0x9E3779B97F4A7C15u;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
  return static_cast<double>((word ^ (word >> 31)) >> 11) * 0x1p-53 - 0.5;
}

// Lines of random numbers that add up to 0.
Matrix Orthogonal(uint32_t lines, uint32_t ranks, uint64_t seed) {
  Matrix made(lines);
  for (uint32_t line = 0; line < lines; ++line) {
    double total = 0;
    for (uint32_t part = 0; part + 1 < ranks; ++part) {
      made[line].push_back(Drawn(seed, uint64_t{line} * ranks + part));
      total += made[line].back();
    }
    made[line].push_back(-total);
  }
  return made;
}

void Eliminate(Matrix& lines, size_t column, size_t width) {
  const auto& top = lines[column];
  for (size_t line = column + 1; line < lines.size(); ++line) {
    const double factor = top[column] != 0 ? lines[line][column] / top[column] : kNaN;
    for (size_t place = column; place <= width; ++place) lines[line][place] -= factor * top[place];
  }
}

std::vector<double> Substituted(const Matrix& lines, size_t width) {
  std::vector<double> found(width);
  for (size_t row = width; row-- > 0;) {
    double value = lines[row][width];
    for (size_t place = row + 1; place < width; ++place) value -= lines[row][place] * found[place];
    found[row] = lines[row][row] != 0 ? value / lines[row][row] : kNaN;
  }
  return found;
}

// x of `lines` x = their last column, by elimination with the greatest pivot of each column. More lines than columns
// are taken to agree.
std::vector<double> Solve(Matrix lines, size_t width) {
  for (size_t column = 0; column < width; ++column) {
    const auto greatest = std::max_element(
        lines.begin() + static_cast<ptrdiff_t>(column), lines.end(),
        [column](const auto& one, const auto& other) { return std::abs(one[column]) < std::abs(other[column]); });
    std::swap(lines[column], *greatest);
    Eliminate(lines, column, width);
  }
  return Substituted(lines, width);
}

}  // namespace

GradientCode::GradientCode(uint32_t ranks, uint32_t missing, uint64_t seed) : ranks_(ranks), missing_(missing) {
  if (repeats()) return;
  const Matrix orthogonal = Orthogonal(missing, ranks, seed);
  for (uint32_t rank = 0; rank < ranks; ++rank) rows_.push_back(RowOf(rank, orthogonal));
}

std::vector<double> GradientCode::RowOf(uint32_t rank, const Matrix& orthogonal) const {
  Matrix lines;
  for (const auto& line : orthogonal) {
    lines.emplace_back();
    for (uint32_t number = 1; number <= missing_; ++number) lines.back().push_back(line[(rank + number) % ranks_]);
    lines.back().push_back(-line[rank]);
  }
  std::vector<double> row = Solve(std::move(lines), missing_);
  row.insert(row.begin(), 1.0);
  return row;
}

std::vector<double> GradientCode::Decode(std::span<const uint32_t> present) const {
  return repeats() ? Chosen(present) : Solved(present);
}

// The first of each group of ranks that compute the same.
std::vector<double> GradientCode::Chosen(std::span<const uint32_t> present) const {
  const uint32_t width = missing_ + 1;
  std::set<uint32_t> found;
  std::vector<double> factors;
  for (const uint32_t rank : present) factors.push_back(found.insert(rank / width).second ? 1.0 : 0.0);
  return found.size() * width == ranks_ ? factors : std::vector<double>();
}

// The first that are enough.
std::vector<double> GradientCode::Solved(std::span<const uint32_t> present) const {
  const size_t needed = ranks_ - missing_;
  if (present.size() < needed) return {};
  Matrix lines(ranks_, std::vector<double>(needed + 1));
  for (size_t place = 0; place < needed; ++place)
    for (uint32_t number = 0; number <= missing_; ++number)
      lines[(present[place] + number) % ranks_][place] = rows_[present[place]][number];
  for (auto& line : lines) line[needed] = 1;
  std::vector<double> factors = Solve(std::move(lines), needed);
  factors.resize(present.size());
  return factors;
}

}  // namespace byteps_like
