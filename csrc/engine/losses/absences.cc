#include "csrc/engine/losses/absences.h"

#include <algorithm>
#include <utility>

namespace byteps_like {

uint32_t ContributorsAt(std::span<const Absence> absences, uint32_t world, uint32_t at) {
  const auto lack = std::ranges::count_if(absences, [at](const Absence& one) { return one.bytes <= at; });
  return world - static_cast<uint32_t>(lack);
}

std::vector<uint32_t> CutsOf(std::span<const Absence> absences) {
  std::set<uint32_t> cuts;
  for (const Absence& one : absences)
    if (one.bytes > 0) cuts.insert(one.bytes);
  return {cuts.begin(), cuts.end()};
}

namespace {

Absence AbsenceOf(const Header& contributors) {
  return {contributors.root, contributors.key, static_cast<uint32_t>(contributors.offset), contributors.total};
}

}  // namespace

void Absences::Hear(const Header& contributors) {
  if (contributors.total == 0) {
    gone_.insert(contributors.root);
    return;
  }
  std::vector<Brought>& known = brought_[contributors.key];
  const Brought news{contributors.round, AbsenceOf(contributors)};
  const auto same = [&](const Brought& one) { return one.round == news.round && one.what.rank == news.what.rank; };
  const auto found = std::ranges::find_if(known, same);  // said again over a new link
  if (found == known.end()) {
    known.push_back(news);
  } else {
    *found = news;
  }
}

// Said again when another rank gives the rest.
void Absences::HearOfGiven(const Header& contributors) {
  std::vector<Absence>& known = given_[contributors.key];
  const Absence news = AbsenceOf(contributors);
  if (std::ranges::find(known, news) == known.end()) known.push_back(news);
}

std::vector<Absence> Absences::TakeOfGiven(uint64_t key) {
  auto given = given_.extract(key);
  return given.empty() ? std::vector<Absence>() : std::move(given.mapped());
}

void Absences::Forget(uint64_t key) {
  brought_.erase(key);
  given_.erase(key);
}

std::vector<Absence> Absences::Take(uint64_t key, uint32_t round) {
  std::vector<Absence> absences;
  const auto known = brought_.find(key);
  for (const uint32_t rank : gone_) {
    Absence absence{rank, key};
    if (known != brought_.end())
      for (const Brought& one : known->second)
        if (one.round == round && one.what.rank == rank) absence = one.what;
    if (absence.total == 0 || absence.bytes < absence.total) absences.push_back(absence);
  }
  if (known == brought_.end()) return absences;
  std::erase_if(known->second, [round](const Brought& one) { return static_cast<int32_t>(one.round - round) <= 0; });
  if (known->second.empty()) brought_.erase(known);
  return absences;
}

}  // namespace byteps_like
