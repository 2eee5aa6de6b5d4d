// HMAC-SHA256, OpenSSL's, of several pieces as if they were one.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

#include "csrc/base/status.h"

namespace byteps_like {

using Mac = std::array<std::byte, 32>;

// Of `label` and `parts`, one after the other. kSystem if OpenSSL fails.
Result<Mac> HmacSha256(std::span<const std::byte> key, std::string_view label,
                       std::initializer_list<std::span<const std::byte>> parts = {});

}  // namespace byteps_like
