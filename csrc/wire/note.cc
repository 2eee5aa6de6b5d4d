#include "csrc/wire/note.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "csrc/wire/bytes.h"

namespace byteps_like {
namespace {

// Places of the fields; docs/reference/protocol.md has the same table.
enum NotePlace : size_t {
  kBaseAt = 0,
  kWeightAt = 4,
  kLrAt = 8,
  kLossAt = 12,
  kTimeAt = 16,
  kFunctionAt = 20,
  kSourceAt = 24,
  kBitsAt = 28,
};

float GetFloat(const std::byte* at) { return std::bit_cast<float>(GetLittle<uint32_t>(at)); }
void PutFloat(std::byte* at, float value) { PutLittle(at, std::bit_cast<uint32_t>(value)); }

Status Check(const Note& note) {
  const auto wrong = [](const char* field, auto value, const char* why) {
    return Status(Code::kCorrupt, std::string("note: ") + field + " " + std::to_string(value) + " " + why);
  };
  if (!(note.weight > 0) || std::isinf(note.weight)) return wrong("weight", note.weight, "is not a number above 0");
  if (note.lr < 0 || std::isinf(note.lr)) return wrong("lr", note.lr, "is not a number from 0");
  if (!(note.time >= 0) || std::isinf(note.time)) return wrong("time", note.time, "is not a number from 0");
  if ((note.bits & ~uint32_t{kLastBlock | kPartial | kInitial}) != 0) return wrong("bits", note.bits, "are unknown");
  return {};
}

}  // namespace

std::string EncodeRanks(std::span<const uint32_t> ranks) {
  std::string bits;
  for (const uint32_t rank : ranks) {
    bits.resize(std::max<size_t>(bits.size(), rank / 8 + 1));
    bits[rank / 8] = static_cast<char>(bits[rank / 8] | (1 << rank % 8));
  }
  return bits;
}

std::vector<uint32_t> DecodeRanks(std::span<const std::byte> bits) {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < bits.size() * 8; ++rank)
    if (std::to_integer<uint32_t>(bits[rank / 8] >> rank % 8) & 1) ranks.push_back(rank);
  return ranks;
}

void EncodeNote(const Note& note, std::span<std::byte, kNoteBytes> out) {
  std::byte* to = out.data();
  PutLittle(to + kBaseAt, note.base);
  PutFloat(to + kWeightAt, note.weight);
  PutFloat(to + kLrAt, note.lr);
  PutFloat(to + kLossAt, note.loss);
  PutFloat(to + kTimeAt, note.time);
  PutLittle(to + kFunctionAt, note.function);
  PutLittle(to + kSourceAt, note.source);
  PutLittle(to + kBitsAt, note.bits);
}

Result<Note> DecodeNote(std::span<const std::byte, kNoteBytes> in) {
  Note note;
  note.base = GetLittle<uint32_t>(in.data() + kBaseAt);
  note.weight = GetFloat(in.data() + kWeightAt);
  note.lr = GetFloat(in.data() + kLrAt);
  note.loss = GetFloat(in.data() + kLossAt);
  note.time = GetFloat(in.data() + kTimeAt);
  note.function = GetLittle<uint32_t>(in.data() + kFunctionAt);
  note.source = GetLittle<uint32_t>(in.data() + kSourceAt);
  note.bits = GetLittle<uint32_t>(in.data() + kBitsAt);
  if (Status checked = Check(note); !checked.ok()) return checked;
  return note;
}

}  // namespace byteps_like
