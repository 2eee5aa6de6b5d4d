#include "csrc/codec/codec.h"

#include <cstring>

namespace byteps_like {

void Codec::Prepare(std::span<const float>, const Draw&, std::byte*, std::byte*) const {}
void Codec::Reset(uint32_t, std::byte*) const {}
uint32_t Codec::Clamped(std::span<const float>, const Draw&, const std::byte*, std::byte*) const { return 0; }

Status Codec::Accumulate(uint32_t, Bytes, std::byte*, std::byte*) const {
  return Status(Code::kInvalid, spec_ + " is not summed by servers");
}

uint32_t Codec::Emit(uint32_t, uint32_t, const Draw&, std::byte*, std::byte*, std::byte*) const { return 0; }

namespace {

std::span<float> Sum(uint32_t numel, std::byte* accumulator) { return {reinterpret_cast<float*>(accumulator), numel}; }

}  // namespace

void ReencodeCodec::Reset(uint32_t numel, std::byte* accumulator) const {
  std::memset(accumulator, 0, numel * sizeof(float));
}

Status ReencodeCodec::Accumulate(uint32_t numel, Bytes payload, std::byte*, std::byte* accumulator) const {
  return DecodeInto(payload, 1.0f, true, Sum(numel, accumulator));
}

uint32_t ReencodeCodec::Emit(uint32_t numel, uint32_t, const Draw& draw, std::byte* workspace, std::byte* accumulator,
                             std::byte* result) const {
  return Encode(Sum(numel, accumulator), draw, nullptr, workspace, result);
}

void ReencodeCodec::Residual(std::span<const float> x, const Draw&, const std::byte*, std::byte*, Bytes payload,
                             float* residual) const {
  if (residual != x.data()) std::memcpy(residual, x.data(), x.size_bytes());
  // Its own payload: it can't be corrupt.
  if (!DecodeInto(payload, -1.0f, true, {residual, x.size()}).ok()) std::memset(residual, 0, x.size_bytes());
}

Status ReencodeCodec::Decode(Bytes result, uint32_t, const Draw&, const std::byte*, std::byte*, float factor,
                             std::span<float> out) const {
  return DecodeInto(result, factor, false, out);
}

}  // namespace byteps_like
