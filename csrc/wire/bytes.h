// Little-endian fields at fixed places of a message, whatever the byte order of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace byteps_like {

template <typename T>
void PutLittle(std::byte* out, T value) {
  const auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (size_t i = 0; i < sizeof(T); ++i) out[i] = static_cast<std::byte>((bits >> (8 * i)) & 0xFF);
}

template <typename T>
T GetLittle(const std::byte* in) {
  std::make_unsigned_t<T> bits = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    bits = static_cast<std::make_unsigned_t<T>>(bits | (static_cast<std::make_unsigned_t<T>>(in[i]) << (8 * i)));
  }
  return static_cast<T>(bits);
}

}  // namespace byteps_like
