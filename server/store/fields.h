// Little-endian fields one after the other, as requests and what goes to copies have them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "csrc/wire/bytes.h"

namespace byteps_like {

class Fields {
 public:
  explicit Fields(std::span<const std::byte> bytes) : rest_(bytes) {}

  // False: there are too few bytes.
  template <typename T>
    requires std::is_integral_v<T>
  bool Take(T* value) {
    if (rest_.size() < sizeof(T)) return false;
    *value = GetLittle<T>(rest_.data());
    rest_ = rest_.subspan(sizeof(T));
    return true;
  }
  bool Take(double* value) {
    uint64_t bits = 0;
    if (!Take(&bits)) return false;
    *value = std::bit_cast<double>(bits);
    return true;
  }
  bool Take(float* value) {
    uint32_t bits = 0;
    if (!Take(&bits)) return false;
    *value = std::bit_cast<float>(bits);
    return true;
  }
  bool Take(bool* value) {
    uint8_t bits = 0;
    if (!Take(&bits)) return false;
    *value = bits != 0;
    return true;
  }
  // With its length before it.
  bool Take(std::string* text) {
    uint32_t length = 0;
    if (!Take(&length) || rest_.size() < length) return false;
    text->assign(reinterpret_cast<const char*>(rest_.data()), length);
    rest_ = rest_.subspan(length);
    return true;
  }
  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
};

template <typename T>
  requires std::is_integral_v<T>
void Append(std::string& to, T value) {
  std::byte bytes[sizeof(T)];
  PutLittle(bytes, value);
  to.append(reinterpret_cast<const char*>(bytes), sizeof bytes);
}
inline void Append(std::string& to, double value) { Append(to, std::bit_cast<uint64_t>(value)); }
inline void Append(std::string& to, float value) { Append(to, std::bit_cast<uint32_t>(value)); }
inline void Append(std::string& to, bool value) { Append(to, static_cast<uint8_t>(value)); }
inline void Append(std::string& to, std::string_view text) {
  Append(to, static_cast<uint32_t>(text.size()));
  to += text;
}

}  // namespace byteps_like
