#include "collectives/host/host_copy.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace byteps_like {

#if defined(__SSE2__)

namespace {

constexpr size_t kLine = 64, kPage = 4096;
constexpr size_t kFetched = 4096;  // up to here it is quicker to fetch the lines, all at once, than to go around

// Uses the instruction itself, because a compiler that may not assume it turns the builtin into an ordinary fetch. CPUs
// without it ignore it.
void FetchForWriting(std::byte* to, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kLine) asm volatile("prefetchw %0" : : "m"(to[i]));
}

template <bool kAround>
void CopyLines(std::byte* to, const std::byte* from, size_t lines) {
  for (size_t i = 0; i < lines; ++i, to += kLine, from += kLine) {
    // The processor's own prefetching ends with the page, and tensors lie in small ones as a rule.
    _mm_prefetch(reinterpret_cast<const char*>(from) + kPage, _MM_HINT_T0);
    __m128i part[4];
    for (int j = 0; j < 4; ++j) part[j] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + j);
    for (int j = 0; j < 4; ++j) {
      auto* place = reinterpret_cast<__m128i*>(to) + j;
      if constexpr (kAround) {
        _mm_stream_si128(place, part[j]);
      } else {
        _mm_store_si128(place, part[j]);
      }
    }
  }
}

// Copies the lines in the middle around the caches, and the bytes before and after them, less than a line each, by
// memcpy.
template <bool kAround>
void Copy(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t to_line = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  const size_t head = std::min(bytes, to_line);
  const size_t lines = (bytes - head) / kLine;
  const size_t tail = head + lines * kLine;
  std::memcpy(to, from, head);
  CopyLines<kAround>(to + head, from + head, lines);
  std::memcpy(to + tail, from + tail, bytes - tail);
}

}  // namespace

void CopyBytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes < 1024) {
    std::memcpy(to, from, bytes);
  } else {
    Copy<false>(to, from, bytes);
  }
}

void CopyAround(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes <= kFetched) {
    FetchForWriting(to, bytes);
    CopyBytes(to, from, bytes);
    return;
  }
  Copy<true>(to, from, bytes);
  _mm_sfence();  // streamed stores are not ordered with the flag that announces them
}

#else

void CopyBytes(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }
void CopyAround(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace byteps_like
