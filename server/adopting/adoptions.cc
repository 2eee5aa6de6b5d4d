#include "server/adopting/adoptions.h"

#include <algorithm>

namespace byteps_like {

void Adoptions::Reset(uint32_t ranks) {
  ranks_ = ranks;
  adoptions_.clear();
  takings_.clear();
}

void Adoptions::OnAdopt(uint32_t rank, const Header& header) {
  Adoption& adoption = adoptions_[header.key];
  adoption.words.resize(ranks_);
  Word& word = adoption.words[rank];
  const bool waits = (header.aux & kWaits) != 0;
  if (waits && std::ranges::none_of(adoption.words, &Word::waits)) adoption.since = Clock::now();
  word.waits |= waits;
  if (!word.said) {
    word.said = true;
    word.next = header.round;
    word.holds = (header.aux & kHoldsResult) != 0;
    word.absent = (header.aux & kBroughtNothing) != 0;
    if (!adoption.settled) return SettleIfHeard(header.key, adoption);
  }
  if (adoption.settled) Tell(header.key, adoption, rank);
}

void Adoptions::SettleIfHeard(uint64_t key, Adoption& adoption) {
  bool any = false;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!host_.IsHere(rank)) continue;
    if (!adoption.words[rank].said) return;
    any = true;
  }
  if (any) Settle(key, adoption);
}

void Adoptions::Settle(uint64_t key, Adoption& adoption) {
  std::vector<uint32_t> here;
  for (uint32_t rank = 0; rank < ranks_; ++rank)
    if (host_.IsHere(rank)) here.push_back(rank);
  if (here.empty()) return;
  const auto next = [&](uint32_t rank) { return adoption.words[rank].next; };
  // Rounds wrap, and are close to one another.
  const auto less = [&](uint32_t one, uint32_t other) { return static_cast<int32_t>(next(one) - next(other)) < 0; };
  const auto [first, last] = std::ranges::minmax_element(here, less);
  const uint32_t oldest = next(*first);
  adoption.newest = next(*last);
  if (adoption.newest - oldest > 1)
    return host_.FailAdoption(
        key,
        Status(Code::kMismatch, "rank " + std::to_string(*first) + " is at round " + std::to_string(oldest) +
                                    ", rank " + std::to_string(*last) + " at round " + std::to_string(adoption.newest) +
                                    ": the ranks have used this name in different numbers "
                                    "of rounds"));
  adoption.settled = true;
  adoption.sums_anew = adoption.answers_late = adoption.newest != oldest && !Holder(adoption);
  const auto has_lost = [&](uint32_t rank) { return next(rank) == adoption.newest && !adoption.words[rank].absent; };
  if (adoption.sums_anew && std::ranges::any_of(here, has_lost)) return FailAsLost(key, oldest);
  adoption.from = adoption.answers_late ? oldest : adoption.newest;
  for (const uint32_t rank : here) Tell(key, adoption, rank);
}

// A rank that lacks the newest result takes it, unless that is to be summed anew: then those beyond wait until it is.
void Adoptions::Tell(uint64_t key, const Adoption& adoption, uint32_t rank) {
  const uint32_t next = adoption.words[rank].next;
  if (adoption.answers_late && next == adoption.newest) return;
  Header header;
  header.type = FrameType::kAdopted;
  header.key = key;
  header.round = next;
  header.aux = next == adoption.newest || adoption.sums_anew ? kIsSummed : kIsTaken;
  host_.Answer(rank, header);
}

std::optional<uint32_t> Adoptions::FirstRound(uint64_t key) const {
  const auto found = adoptions_.find(key);
  if (found == adoptions_.end()) return 0;
  return found->second.settled ? std::optional(found->second.from) : std::nullopt;
}

std::vector<uint32_t> Adoptions::Begun(uint64_t key, uint32_t round) {
  const auto found = adoptions_.find(key);
  if (found == adoptions_.end() || !found->second.answers_late || round != found->second.from) return {};
  Adoption& adoption = found->second;
  adoption.answers_late = false;
  adoption.from = adoption.newest;
  std::vector<uint32_t> beyond;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    if (!host_.IsHere(rank) || adoption.words[rank].next != adoption.newest) continue;
    beyond.push_back(rank);
    Tell(key, adoption, rank);
  }
  return beyond;
}

// Results from one rank to another ------------------------------------------------------------------------------------

std::optional<uint32_t> Adoptions::Holder(const Adoption& adoption) const {
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    const Word& word = adoption.words[rank];
    if (host_.IsHere(rank) && word.said && word.holds && word.next == adoption.newest) return rank;
  }
  return std::nullopt;
}

void Adoptions::OnTake(uint32_t rank, const Header& header) {
  const auto found = adoptions_.find(header.key);
  if (found == adoptions_.end() || !found->second.settled) return;
  const Adoption& adoption = found->second;
  const uint32_t next = adoption.words[rank].next;
  if (header.round != next || next == adoption.newest || adoption.sums_anew || header.offset > kMaxPartition)
    return host_.Refuse(rank, "it wants a result that it is to sum, or has");
  Taking& taking = takings_[{header.key, rank}];
  taking = {.round = header.round, .at = header.offset};
  AskGiver(header.key, rank, taking);
}

void Adoptions::AskGiver(uint64_t key, uint32_t taker, Taking& taking) {
  const auto giver = Holder(adoptions_.at(key));
  if (!giver) return FailAsLost(key, taking.round);
  taking.giver = *giver;
  Header header;
  header.type = FrameType::kTake;
  header.key = key;
  header.round = taking.round;
  header.offset = taking.at;
  header.root = taker;
  host_.Answer(*giver, header);
}

void Adoptions::FailAsLost(uint64_t key, uint32_t round) {
  host_.FailAdoption(key, Status(Code::kPeerLost, "the result of round " + std::to_string(round) +
                                                      " is lost: its server is gone, and so is what the ranks had that "
                                                      "had got it"));
}

void Adoptions::OnGive(uint32_t rank, const Header& header, const std::byte* payload) {
  const auto found = takings_.find({header.key, header.root});
  if (found == takings_.end() || found->second.giver != rank || found->second.round != header.round) return;
  Taking& taking = found->second;
  const uint64_t end = header.offset + header.length;
  const bool is_word = header.length == 0 && header.offset == header.total && taking.at >= header.total;
  const bool is_next = header.offset <= taking.at && taking.at < end;
  if (!is_word && !is_next) return;  // asked for before
  Header rest = header;
  rest.offset = is_word ? header.offset : taking.at;
  const size_t known = rest.offset - header.offset;
  taking.at = end;
  if (end == header.total) takings_.erase(found);
  host_.Answer(header.root, rest, {reinterpret_cast<const char*>(payload) + known, header.length - known});
}

void Adoptions::OnContributors(uint32_t rank, const Header& header) {
  const auto found = takings_.find({header.key, header.aux});
  if (found == takings_.end() || found->second.giver != rank || found->second.round != header.round) return;
  Header told = header;
  told.aux = 1;
  host_.Answer(header.aux, told);
}

void Adoptions::OnGone(uint32_t rank) {
  std::erase_if(takings_, [rank](const auto& one) { return one.first.second == rank; });
  for (auto& [which, taking] : takings_)
    if (taking.giver == rank) AskGiver(which.first, which.second, taking);
  for (auto& [key, adoption] : adoptions_) {
    if (!adoption.settled) {
      SettleIfHeard(key, adoption);
    } else if (adoption.answers_late) {
      Settle(key, adoption);
    }
  }
}

// What it gave by the link before may have been lost.
void Adoptions::OnBack(uint32_t rank) {
  for (auto& [which, taking] : takings_)
    if (taking.giver == rank) AskGiver(which.first, which.second, taking);
}

// Waits ---------------------------------------------------------------------------------------------------------------

std::optional<Adoptions::Wait> Adoptions::LongestWait() const {
  std::optional<Wait> longest;
  for (const auto& [key, adoption] : adoptions_) {
    if (adoption.settled || (longest && longest->since <= adoption.since)) continue;
    Wait wait{.key = key, .since = adoption.since};
    std::string missing;
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      if (!host_.IsHere(rank)) continue;
      if (adoption.words[rank].waits) wait.waiting.push_back(rank);
      if (!adoption.words[rank].said) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
    if (wait.waiting.empty()) continue;
    wait.text = "waiting for rank " + missing + " to say how far it has come, since the server of the key has died";
    longest = std::move(wait);
  }
  return longest;
}

}  // namespace byteps_like
