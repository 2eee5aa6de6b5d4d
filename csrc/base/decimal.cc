#include "csrc/base/decimal.h"

#include <charconv>
#include <cmath>

namespace byteps_like {
namespace {

std::string Shortest(double value, std::chars_format format) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value, format).ptr};
}

}  // namespace

std::string DecimalOf(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-4 || size >= 1e16)) return Shortest(value, std::chars_format::scientific);
  const std::string text = Shortest(value, std::chars_format::fixed);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

}  // namespace byteps_like
