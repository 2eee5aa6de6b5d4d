"""Finds out that ranks mean different things by one operation, from what they have waited for too long. Pure.

Operations of single tensors meet by name, those without a name by their order; both are counted per process set. What
a rank means by one is part of the name under which its data travels, so those who mean different things wait for each
other, and never get anything wrong. Ranks report what they have waited for longer than a moment.

Ranks that have begun different operations in place of one another (in another process set, or one with a name and one
without) are at different places, where nothing differs. That they wait for each other is proved in two steps, since
reports are of different moments: they are asked what they have begun, and what they answer, while all still wait, was
true of them all when the question was put.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from byteps_like.control.types import Disagreement, View
from byteps_like.worker.api import OUT_OF_STEP, Answer, Meeting, MeetingPlace, Question

Missing = Mapping[MeetingPlace, Iterable[int]]
"""Ranks that have not begun an operation, which is not over before they do."""


@dataclass
class _Inquiry:
    question: Question
    ranks: frozenset[int]
    """Who is asked."""
    answers: dict[int, Answer] = field(default_factory=dict)


class Meetings:
    """What the ranks of the view in force wait for. As large as what is in flight."""

    def __init__(self) -> None:
        self._there: tuple[int, ...] = ()
        """Of whom something may be waited for."""
        self._by_rank: dict[int, dict[str, Meeting]] = {}
        self._asked = 0
        self._inquiry: _Inquiry | None = None

    def follow(self, view: View) -> None:
        """`view` is in force from now on. What ranks of the one before waited for is forgotten: they report it anew."""
        self._there = tuple(range(view.size))
        self._by_rank.clear()
        self._inquiry = None

    def leave_out(self, gone: Set[int]) -> None:
        """These ranks have died or left, and the others go on: what they said last means nothing any more."""
        if gone.isdisjoint(self._there):
            return
        self._there = tuple(rank for rank in self._there if rank not in gone)
        self._by_rank = {rank: waiting for rank, waiting in self._by_rank.items() if rank not in gone}
        self._inquiry = None

    def report(self, rank: int, waiting: Sequence[Meeting], answer: Answer | None = None) -> list[Disagreement]:
        """`rank` waits for these, and has for a moment. Which of them can't come about, since another rank is at the
        same place and means something else, or none of the ranks can go on."""
        self._by_rank[rank] = {one.point: one for one in waiting}
        found = [self._compare(one) for one in waiting]
        failed = [one for one in found if one is not None]
        if answer is not None and self._inquiry is not None and answer.number == self._inquiry.question.number:
            self._inquiry.answers[rank] = answer
            failed += self._conclude(self._inquiry)
        for one in failed:
            self._clear(one.places)
        return failed

    def question(self) -> tuple[Question, Sequence[int]] | None:
        """What to ask now, and whom: ranks that seem to wait for each other."""
        stuck = self._stuck(self._seems_missing())
        places = sorted({one.place for rank in stuck for one in self._blocking(rank)})
        if self._inquiry is not None and self._inquiry.question.places == tuple(places):
            return None
        self._inquiry = None
        if not stuck:
            return None
        self._asked += 1
        self._inquiry = _Inquiry(Question(self._asked, tuple(places)), frozenset(stuck))
        return self._inquiry.question, sorted(stuck)

    def _compare(self, own: Meeting) -> Disagreement | None:
        who: dict[str, list[int]] = {}
        says: dict[str, str] = {}
        for rank in sorted(self._by_rank):
            other = self._by_rank[rank].get(own.point)
            if other is not None and other.use == own.use:
                who.setdefault(other.data, []).append(rank)
                says[other.data] = other.says
        if len(who) < 2:
            return None
        sides = ", ".join(f"{_ranks(ranks)} called {says[data]}" for data, ranks in who.items())
        text = f"{own.what}: the ranks disagree: {sides}; all ranks must make the same calls with the same arguments"
        return Disagreement((own.place,), text, own.ranks, tuple(who))

    def _conclude(self, inquiry: _Inquiry) -> list[Disagreement]:
        """What all answers together prove."""
        if inquiry.answers.keys() != inquiry.ranks:
            return []
        missing = {
            place: [rank for rank, answer in inquiry.answers.items() if not answer.begun[number]]
            for number, place in enumerate(inquiry.question.places)
        }
        stuck = sorted(self._stuck(missing))
        return [self._standstill(stuck)] if stuck else []

    def _standstill(self, stuck: Sequence[int]) -> Disagreement:
        who: dict[MeetingPlace, list[int]] = {}
        waits = {one.place: one for rank in stuck for one in self._blocking(rank)}
        for rank in stuck:
            for one in self._blocking(rank):
                who.setdefault(one.place, []).append(rank)
        sides = ", ".join(f"{_ranks(who[place])} called {one.says} ({one.what})" for place, one in waits.items())
        text = f"{OUT_OF_STEP}: {sides}; all ranks must make the same calls in the same order"
        concerned = {rank for one in waits.values() for rank in one.ranks or self._there}
        given_up = tuple(sorted({one.data for rank in stuck for one in self._blocking(rank)}))
        return Disagreement(tuple(who), text, tuple(sorted(concerned)), given_up)

    def _stuck(self, missing: Missing) -> set[int]:
        """The ranks of which each waits for nothing but what others of them have not begun: none of them can go on."""
        stuck = {rank for rank in self._by_rank if self._blocking(rank)}
        while True:
            free = {
                rank
                for rank in stuck
                if any(stuck.isdisjoint(missing.get(one.place, ())) for one in self._blocking(rank))
            }
            if not free:
                return stuck
            stuck -= free

    def _seems_missing(self) -> Missing:
        places = {one.place: one.ranks for rank in self._by_rank for one in self._blocking(rank)}
        return {
            place: [rank for rank in ranks or self._there if not self._waits_at(rank, place)]
            for place, ranks in places.items()
        }

    def _waits_at(self, rank: int, place: MeetingPlace) -> bool:
        found = self._by_rank.get(rank, {}).get(place[0])
        return found is not None and found.place == place

    def _blocking(self, rank: int) -> list[Meeting]:
        return [one for one in self._by_rank[rank].values() if one.blocks]

    def _clear(self, places: Iterable[MeetingPlace]) -> None:
        for place in places:
            for rank, others in self._by_rank.items():
                if self._waits_at(rank, place):
                    del others[place[0]]


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
