"""What became of a job that was disturbed, in figures and in words, and which bounds they break."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from byteps_like.launch.chaos.disturber import Blow, Disturber
from byteps_like.launch.chaos.growth import ProcessGrowth

_MIB = 1 << 20
_CALM_STEPS = 10
"""Fewer don't tell how long a step takes."""


@dataclass(frozen=True)
class Bounds:
    """What a job must keep to; None: anything goes."""

    max_gap: float | None = None
    """Seconds."""
    min_goodput: float | None = None
    max_growth: float | None = None
    """MiB."""
    max_descriptors: int | None = None


@dataclass(frozen=True)
class ChaosReport:
    """Times in seconds."""

    seed: int
    seconds: float
    """From the first step to the end."""
    exit_code: int
    steps: int
    made_again: int
    gap: float
    gap_at: float
    """Seconds after the first step, when the longest gap ended."""
    step: float | None
    """What one takes while nothing happens; None: it isn't known."""
    goodput: float | None
    """Share of the disturbed time in which as many steps would have been made undisturbed."""
    blows: Sequence[Blow]
    growth: Sequence[ProcessGrowth]
    deaths: Sequence[str]
    stuck: str

    @classmethod
    def of(cls, disturber: Disturber, exit_code: int, now: float) -> ChaosReport:
        """As it is when the job has ended."""
        ledger, plan = disturber.ledger, disturber.plan
        end = now if disturber.ended_at is None else disturber.ended_at
        ledger.close(end)
        began = end if ledger.began is None else ledger.began
        calm, half = began + plan.calm, began + plan.calm / 2  # the first half is for what is made once
        usual = ledger.rate(half, calm) if ledger.steps(half, calm) >= _CALM_STEPS and end > calm else 0.0
        return cls(
            plan.violence.seed,
            end - began,
            exit_code,
            ledger.highest,
            ledger.made_again,
            ledger.longest.seconds,
            ledger.longest.end - began,
            1 / usual if usual else None,
            ledger.rate(calm, end) / usual if usual else None,
            disturber.blows,
            disturber.growth.found(),
            disturber.deaths,
            disturber.stuck,
        )

    def broken(self, bounds: Bounds) -> list[str]:
        """Why the job has not stood the test; nothing if it has."""
        return [*self._failures(), *self._beyond(bounds)]

    def _failures(self) -> Iterator[str]:
        if not self.steps:
            yield "no worker has printed that it made a step (--steps says what to look for)"
        if self.stuck:
            yield f"the job stood still: {self.stuck}"
        elif self.exit_code:
            yield f"the job failed with exit code {self.exit_code}"
        for death in self.deaths:
            yield f"nobody has killed {death}"

    def _beyond(self, bounds: Bounds) -> Iterator[str]:
        if bounds.max_gap is not None and self.gap > bounds.max_gap:
            yield f"the longest gap of {self.gap:.2f} s is more than --max-gap {bounds.max_gap:g}"
        if bounds.min_goodput is not None:
            if self.goodput is None:
                yield "the goodput isn't known: fewer than 10 steps were made in the second half of --calm"
            elif self.goodput < bounds.min_goodput:
                yield f"the goodput of {self.goodput:.1%} is less than --min-goodput {bounds.min_goodput:g}"
        for one in self.growth:
            if bounds.max_growth is not None and one.memory > bounds.max_growth * _MIB:
                yield f"{_grown(one)} is more than --max-growth {bounds.max_growth:g} MiB"
            if bounds.max_descriptors is not None and one.descriptors > bounds.max_descriptors:
                yield f"{_grown(one)} is more than --max-descriptors {bounds.max_descriptors}"

    def lines(self) -> list[str]:
        """For people."""
        killed = [blow for blow in self.blows if not blow.paused]
        counts = Counter(blow.part.role for blow in killed)
        kinds = ", ".join(f"{counts[role]} {role}s" for role in ("worker", "server", "scheduler") if counts[role])
        at_once = sum(blow.spawned for blow in killed)
        lines = [
            f"seed {self.seed}: {self.seconds:.0f} s, killed {kinds or 'nobody'} ({at_once} replaced at once),"
            f" stopped {len(self.blows) - len(killed)} for a while",
            f"{self.steps} steps, {self.made_again} of them made again; the longest gap was {self.gap:.2f} s,"
            f" at {self.gap_at:.1f} s",
        ]
        lines += [f"gaps after {name}: {gaps}" for name, gaps in self._gaps()]
        if self.step is not None and self.goodput is not None:
            lines.append(f"goodput {self.goodput:.1%}: undisturbed, a step takes {self.step * 1e3:.1f} ms")
        lines += [f"after its first 2 minutes {_grown(one)}" for one in self.growth]
        return lines

    def _gaps(self) -> Iterator[tuple[str, str]]:
        kinds = Counter((blow.part.role, bool(blow.paused)) for blow in self.blows)
        for role, paused in sorted(kinds):
            gaps = [blow.gap for blow in self.blows if (blow.part.role, bool(blow.paused)) == (role, paused)]
            text = f"median {statistics.median(gaps):.2f} s, longest {max(gaps):.2f} s"
            yield f"{'stopping' if paused else 'killing'} a {role}", text

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def _grown(one: ProcessGrowth) -> str:
    return f"{one.name} grew by {one.memory / _MIB:.1f} MiB and {one.descriptors} descriptors in {one.seconds:.0f} s"
