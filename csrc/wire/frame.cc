#include "csrc/wire/frame.h"

#include <algorithm>

#include "csrc/kernels/kernels.h"
#include "csrc/wire/bytes.h"
#include "csrc/wire/note.h"

namespace byteps_like {
namespace {

// Places of the fields; docs/reference/protocol.md has the same table.
enum Place : size_t {
  kMagicAt = 0,
  kTypeAt = 4,
  kDTypeAt = 5,
  kOpAt = 6,
  kFlagsAt = 7,
  kViewAt = 8,
  kMemberAt = 12,
  kKeyAt = 16,
  kRoundAt = 24,
  kPriorityAt = 28,
  kOffsetAt = 32,
  kLengthAt = 40,
  kTotalAt = 44,
  kPayloadCrcAt = 48,
  kAuxAt = 52,
  kRootAt = 56,
  kHeaderCrcAt = 60,
};

Status Corrupt(const char* field, uint64_t value, const char* why) {
  return Status(Code::kCorrupt, std::string("frame header: ") + field + " " + std::to_string(value) + " " + why);
}

Status CheckCodes(const std::byte* in) {
  const auto type = std::to_integer<uint8_t>(in[kTypeAt]);
  const bool unassigned = std::ranges::find(kUnassigned, type) != std::end(kUnassigned);
  if (type == 0 || type >= kFrameTypeCount || unassigned) return Corrupt("type", type, "is unknown");
  const auto dtype = std::to_integer<uint8_t>(in[kDTypeAt]);
  if (dtype >= kDTypeCount) return Corrupt("dtype", dtype, "is unknown");
  const auto op = std::to_integer<uint8_t>(in[kOpAt]);
  if (op >= kOpCount) return Corrupt("op", op, "is unknown");
  const auto flags = std::to_integer<uint8_t>(in[kFlagsAt]);
  if ((flags & ~(kByReference | kMovable | kEncoded | kAbsent | kNoted | kSilent)) != 0)
    return Corrupt("flags", flags, "has unknown bits");
  return {};
}

Header Unpack(const std::byte* in) {
  Header header;
  header.type = static_cast<FrameType>(in[kTypeAt]);
  header.dtype = static_cast<DType>(in[kDTypeAt]);
  header.op = static_cast<Op>(in[kOpAt]);
  header.flags = std::to_integer<uint8_t>(in[kFlagsAt]);
  header.view = GetLittle<uint32_t>(in + kViewAt);
  header.member = GetLittle<uint32_t>(in + kMemberAt);
  header.key = GetLittle<uint64_t>(in + kKeyAt);
  header.round = GetLittle<uint32_t>(in + kRoundAt);
  header.priority = GetLittle<int32_t>(in + kPriorityAt);
  header.offset = GetLittle<uint64_t>(in + kOffsetAt);
  header.length = GetLittle<uint32_t>(in + kLengthAt);
  header.total = GetLittle<uint32_t>(in + kTotalAt);
  header.payload_crc = GetLittle<uint32_t>(in + kPayloadCrcAt);
  header.aux = GetLittle<uint32_t>(in + kAuxAt);
  header.root = GetLittle<uint32_t>(in + kRootAt);
  return header;
}

bool CarriesPartition(FrameType type) {
  return type == FrameType::kPush || type == FrameType::kResult || type == FrameType::kResume ||
         type == FrameType::kResumed || type == FrameType::kPull || type == FrameType::kValue ||
         type == FrameType::kKeys || type == FrameType::kRows || type == FrameType::kClock ||
         type == FrameType::kContributors || type == FrameType::kGive;
}

bool CarriesText(FrameType type) {
  return type == FrameType::kError || type == FrameType::kWarning || type == FrameType::kLaunch ||
         type == FrameType::kAbort || type == FrameType::kCodec || type == FrameType::kSpec || type == FrameType::kCall;
}

// A contribution to a store key has neither of the other forms of a push, so far.
Status CheckNoted(const Header& header) {
  const bool clock = header.type == FrameType::kClock;
  if (header.type != FrameType::kPush && header.type != FrameType::kRows && !clock)
    return Corrupt("flags", header.flags, "does not go with this type");
  if ((header.flags & ~(kNoted | kSilent)) != 0) return Corrupt("flags", header.flags, "do not go with one another");
  if ((header.flags & kNoted) == 0) return clock ? Corrupt("flags", header.flags, "lack the note") : Status();
  if (header.offset != 0) return Corrupt("offset", header.offset, "is not that of a first segment, which is noted");
  if (header.length < kNoteBytes) return Corrupt("length", header.length, "is less than a note");
  if (clock && header.total != 0) return Corrupt("total", header.total, "is not zero in a frame that brings nothing");
  return {};
}

// Lists of ids by number, and payloads of whole numbers of 8 bytes.
Status CheckLists(const Header& header) {
  const bool keys = header.type == FrameType::kKeys, fetch = header.type == FrameType::kFetch;
  if (!keys && !fetch && header.type != FrameType::kRows) return {};
  const bool range = fetch && header.aux == kRange;
  if (header.aux >= kMostLists && !range) return Corrupt("aux", header.aux, "is beyond the last list");
  if (range && header.length != 2 * sizeof(uint64_t)) return Corrupt("length", header.length, "is not that of a range");
  if ((keys || fetch) && header.length % sizeof(uint64_t) != 0)
    return Corrupt("length", header.length, "is not a multiple of 8");
  if (keys && header.total % sizeof(uint64_t) != 0) return Corrupt("total", header.total, "is not a multiple of 8");
  if (keys && header.offset % sizeof(uint64_t) != 0) return Corrupt("offset", header.offset, "is not a multiple of 8");
  return {};
}

// Which lengths go with which type: only segments and texts have a payload, and a reference replaces it.
Status CheckShape(const Header& header) {
  const bool partition = header.type == FrameType::kPush || header.type == FrameType::kResult;
  const bool rows = header.type == FrameType::kRows, clock = header.type == FrameType::kClock;
  const bool given = header.type == FrameType::kGive && (header.flags & ~(kMovable | kEncoded)) == 0;
  const bool segment = partition || rows || clock || given || header.type == FrameType::kData ||
                       header.type == FrameType::kValue || header.type == FrameType::kKeys ||
                       header.type == FrameType::kFetch || header.type == FrameType::kCopy;
  const bool reference = (header.flags & kByReference) != 0;
  const bool flagged =
      partition || rows || clock || given || (header.type == FrameType::kResume && header.flags == kEncoded);
  if (header.flags != 0 && !flagged) return Corrupt("flags", header.flags, "does not go with this type");
  if ((header.flags & (kNoted | kSilent)) != 0 || (rows && header.flags != 0) || clock)
    if (Status noted = CheckNoted(header); !noted.ok()) return noted;
  if (reference && (header.flags & kEncoded) != 0) return Corrupt("flags", header.flags, "is encoded and by reference");
  if ((header.flags & kAbsent) != 0) {
    if ((header.flags & (kByReference | kEncoded)) != 0)
      return Corrupt("flags", header.flags, "is absent, and by reference or encoded");
    if (header.offset != 0 || header.length != 0)
      return Corrupt("length", header.length, "or offset is not zero in a frame of an absent rank");
  }
  if (header.length == 0) return {};
  if (reference) return Corrupt("length", header.length, "is not zero in a frame by reference");
  if (header.type == FrameType::kApplied) {
    if (header.length > kMaxRanks) return Corrupt("length", header.length, "exceeds a set of ranks");
    return {};
  }
  if (header.type == FrameType::kCut || header.type == FrameType::kState) {
    if (header.length > kMaxState) return Corrupt("length", header.length, "exceeds what a request may carry");
    return {};
  }
  if (!segment && !CarriesText(header.type)) return Corrupt("length", header.length, "is not zero for this type");
  if (CarriesText(header.type) && header.length > kMaxText) return Corrupt("length", header.length, "exceeds a text");
  return {};
}

Status CheckBounds(const Header& header) {
  if (header.length > kMaxPayload) return Corrupt("length", header.length, "exceeds what a frame may carry");
  if (header.total > kMaxPartition) return Corrupt("total", header.total, "exceeds what a partition may hold");
  if (header.offset > kMaxOffset) return Corrupt("offset", header.offset, "is out of range");
  const bool reference = (header.flags & kByReference) != 0;
  if (header.type == FrameType::kResume && (header.flags & kEncoded) != 0) {
    if (header.offset > kMaxPartition) return Corrupt("offset", header.offset, "exceeds what a result may hold");
    return {};
  }
  const uint64_t note = (header.flags & kNoted) != 0 ? std::min<uint64_t>(header.length, kNoteBytes) : 0;
  if (CarriesPartition(header.type) && !reference && header.offset + header.length - note > header.total) {
    return Corrupt("offset", header.offset, "and length reach beyond total");
  }
  return {};
}

}  // namespace

void EncodeHeader(const Header& header, std::span<std::byte, kHeaderBytes> out) {
  std::byte* to = out.data();
  PutLittle(to + kMagicAt, kFrameMagic);
  to[kTypeAt] = static_cast<std::byte>(header.type);
  to[kDTypeAt] = static_cast<std::byte>(header.dtype);
  to[kOpAt] = static_cast<std::byte>(header.op);
  to[kFlagsAt] = static_cast<std::byte>(header.flags);
  PutLittle(to + kViewAt, header.view);
  PutLittle(to + kMemberAt, header.member);
  PutLittle(to + kKeyAt, header.key);
  PutLittle(to + kRoundAt, header.round);
  PutLittle(to + kPriorityAt, header.priority);
  PutLittle(to + kOffsetAt, header.offset);
  PutLittle(to + kLengthAt, header.length);
  PutLittle(to + kTotalAt, header.total);
  PutLittle(to + kPayloadCrcAt, header.payload_crc);
  PutLittle(to + kAuxAt, header.aux);
  PutLittle(to + kRootAt, header.root);
  PutLittle(to + kHeaderCrcAt, kernels::Crc32c(0, to, kHeaderCrcAt));
}

Result<Header> DecodeHeader(std::span<const std::byte, kHeaderBytes> in) {
  const auto magic = GetLittle<uint32_t>(in.data() + kMagicAt);
  if (magic != kFrameMagic) return Corrupt("magic", magic, "is not that of a frame");
  const auto crc = GetLittle<uint32_t>(in.data() + kHeaderCrcAt);
  if (crc != kernels::Crc32c(0, in.data(), kHeaderCrcAt)) return Corrupt("checksum", crc, "is wrong");
  if (Status codes = CheckCodes(in.data()); !codes.ok()) return codes;
  const Header header = Unpack(in.data());
  if (Status bounds = CheckBounds(header); !bounds.ok()) return bounds;
  if (Status shape = CheckShape(header); !shape.ok()) return shape;
  if (Status lists = CheckLists(header); !lists.ok()) return lists;
  return header;
}

}  // namespace byteps_like
