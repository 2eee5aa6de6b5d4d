#include "server/rounds/seats.h"

#include <algorithm>

namespace byteps_like {

std::string JoinRanks(std::span<const uint32_t> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

Seats::Seats(uint32_t ranks) : ranks_(ranks), counting_(ranks), seats_(ranks), of_(ranks) {
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    seats_[rank].ranks = {rank};
    of_[rank] = {rank};
  }
}

Seats::Seats(uint32_t ranks, const std::vector<uint32_t>& those_of_rack) : Seats(ranks) {
  counting_ = static_cast<uint32_t>(those_of_rack.size());
  for (uint32_t rank = 0; rank < ranks; ++rank)
    if (std::ranges::find(those_of_rack, rank) == those_of_rack.end()) seats_[rank].ranks.clear();
}

void Seats::AddAggregator(const std::string& rack, const std::vector<uint32_t>& ranks) {
  const uint32_t seat = size();
  Seat& added = seats_.emplace_back();
  added.rack = rack;
  added.ranks = ranks;
  for (uint32_t other = 0; other < seat; ++other) {
    const auto shared = [&](uint32_t rank) { return SpeaksFor(other, rank); };
    if (std::ranges::none_of(ranks, shared)) continue;
    added.beside.push_back(other);
    seats_[other].beside.push_back(seat);
  }
  for (const uint32_t rank : ranks) of_[rank].push_back(seat);
}

bool Seats::SpeaksFor(uint32_t seat, uint32_t rank) const {
  return seat < ranks_ ? seat == rank : std::ranges::find(seats_[seat].ranks, rank) != seats_[seat].ranks.end();
}

std::string Seats::Name(uint32_t seat) const {
  if (!is_aggregator(seat)) return "rank " + std::to_string(seat);
  return "rack " + seats_[seat].rack + " (" + JoinRanks(seats_[seat].ranks) + ")";
}

std::string Seats::Names(const std::vector<uint32_t>& seats) const {
  std::vector<uint32_t> ranks;
  std::string racks;
  for (const uint32_t seat : seats) {
    if (is_aggregator(seat)) {
      racks += (racks.empty() ? "" : ", ") + Name(seat);
    } else {
      ranks.push_back(seat);
    }
  }
  if (racks.empty()) return JoinRanks(ranks);
  return ranks.empty() ? racks : JoinRanks(ranks) + " and " + racks;
}

}  // namespace byteps_like
