"""Chooses the algorithm of a call: what caller or settings force, else what was measured, else the default table.

All ranks choose alike, since they see the same call, layout and table; a mismatch is found by the call's description.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from byteps_like.collectives import library
from byteps_like.collectives.schedules.schedule import Kind, Layout
from byteps_like.collectives.selection.default_table import RULES, SHARED, shape_of
from byteps_like.collectives.selection.forced import parse_forced
from byteps_like.collectives.selection.measured_table import MeasuredTable
from byteps_like.errors import InvalidArgumentError

SEGMENT_BYTES = 128 << 10


@dataclass(frozen=True)
class Choice:
    """An algorithm by name ("shared": the host's own collectives, not a schedule), and why it was chosen."""

    algorithm: str
    segment_bytes: int
    why: str


@dataclass(frozen=True)
class Limits:
    """What this call can't have. All ranks must come to the same limits."""

    apart: str = ""
    """Why ranks of one host have no shared memory with one another; "" if they have."""
    known_sizes: bool = True
    """Every rank knows the sizes of all sections; not so in an all-to-all with a list of counts."""
    one_run: bool = True
    """Sections lie one behind the other; not so where a list of addresses is given."""


ANYTHING = Limits()


@dataclass(frozen=True)
class Selector:
    """`forced`: "ring", for all kinds that have it, or "all_reduce=ring,all_to_all=2dh". Thread-safe.

    Raises ConfigError if `forced` names what there isn't.
    """

    forced: str = ""
    measured: MeasuredTable = field(default_factory=MeasuredTable)

    def __post_init__(self) -> None:
        parse_forced(self.forced)

    @classmethod
    def from_settings(cls, collective_algorithm: str = "", collective_table: str = "") -> Selector:
        """What a process uses: both as in Config. Raises ConfigError for a table that can't be read."""
        table = MeasuredTable.load(Path(collective_table)) if collective_table else MeasuredTable()
        return cls(collective_algorithm, table)

    def choose(
        self,
        kind: Kind,
        nbytes: int,
        layout: Layout,
        *,
        reduction: str = "fast",
        algorithm: str = "",
        limits: Limits = ANYTHING,
    ) -> Choice:
        """The algorithm of one call; `nbytes` is the longer of its buffers, `algorithm` what the call itself asks for.

        "ordered" reductions take no measured table, so that tuning does not change their bits. Raises
        InvalidArgumentError, with the reason, if the call or the settings force what can't be had.
        """
        forced = algorithm or parse_forced(self.forced).get(kind, "")
        if forced:
            reason = _refused(kind, forced, layout, limits)
            if not reason:
                return Choice(forced, SEGMENT_BYTES, "the call asks for it" if algorithm else "the settings force it")
            if algorithm or f"{kind}=" in self.forced:
                raise InvalidArgumentError(f"{kind} by {forced} on {layout.size} ranks: {reason}")
        if reduction != "ordered":
            choice = self._from_measured(kind, nbytes, layout, limits)
            if choice is not None:
                return choice
        return _from_rules(kind, nbytes, layout, limits)

    def explain(
        self,
        kind: Kind,
        nbytes: int,
        layout: Layout,
        *,
        reduction: str = "fast",
        algorithm: str = "",
        limits: Limits = ANYTHING,
    ) -> str:
        """Why `choose` chooses as it does, and what the others cost, as text of several lines."""
        choice = self.choose(kind, nbytes, layout, reduction=reduction, algorithm=algorithm, limits=limits)
        hosts = len(layout.members)
        head = f"{kind} of {nbytes} bytes on {layout.size} ranks, {hosts} host{'s' if hosts > 1 else ''}"
        point = self.measured.nearest(kind, nbytes, layout)
        lines = [f"{head}: {choice.algorithm}, segments of {choice.segment_bytes} bytes", f"because {choice.why}"]
        for name in (SHARED, *library.TABLE[kind]):
            told = _refused(kind, name, layout, limits) or _cost(kind, name, nbytes, layout)
            seconds = point.seconds.get(name) if point else None
            took = f"; measured {seconds * 1e6:.0f} µs at {point.nbytes} bytes" if seconds is not None and point else ""
            lines.append(f"  {name}: {told}{took}")
        return "\n".join(lines)

    def _from_measured(self, kind: Kind, nbytes: int, layout: Layout, limits: Limits) -> Choice | None:
        point = self.measured.nearest(kind, nbytes, layout)
        for name in point.ranked() if point else []:
            if point and not _refused(kind, name, layout, limits):
                why = f"it was the fastest when measured at {point.nbytes} bytes: {point.seconds[name] * 1e6:.0f} µs"
                return Choice(name, point.segment_bytes, why)
        return None


DEFAULT = Selector()


def choose(kind: Kind, nbytes: int, layout: Layout, *, reduction: str = "fast", forced: str = "") -> Choice:
    """`Selector.choose` without a measured table."""
    return Selector(forced).choose(kind, nbytes, layout, reduction=reduction)


def _from_rules(kind: Kind, nbytes: int, layout: Layout, limits: Limits) -> Choice:
    if not _refused(kind, SHARED, layout, limits):
        return Choice(SHARED, SEGMENT_BYTES, "all ranks share one host's memory")
    shape = shape_of(layout)
    for rule in RULES[kind]:
        if rule.fits(nbytes, layout.size, shape) and not _refused(kind, rule.algorithm, layout, limits):
            sizes = "any size" if rule.up_to is None else f"up to {rule.up_to} bytes"
            why = f"the default table has it for {sizes}, {shape}; nothing was measured for this layout"
            return Choice(rule.algorithm, rule.segment_bytes, why)
    raise InvalidArgumentError(f"{kind}: the default table has no rule for {layout.size} ranks")


def _refused(kind: Kind, name: str, layout: Layout, limits: Limits) -> str:
    """Why a call can't be made that way; "" if it can."""
    if name == SHARED:
        if len(layout.members) > 1 or layout.size == 1:
            return "its ranks are on several hosts" if layout.size > 1 else "there is only one rank"
        return limits.apart
    if not limits.known_sizes and library.find(kind, name).relays:
        return "it relays blocks whose sizes only two ranks know"
    reason = _why_unavailable(kind, name, layout)
    if not reason and not limits.one_run and library.find(kind, name).runs:
        return "it sends several sections as one message, but they are not contiguous"
    return reason


@lru_cache(maxsize=1024)
def _why_unavailable(kind: Kind, name: str, layout: Layout) -> str:
    return library.why_unavailable(kind, name, layout)


def _cost(kind: Kind, name: str, nbytes: int, layout: Layout) -> str:
    if name == SHARED:
        return "no messages"
    found = library.cost(kind, name, layout)
    whole = {Kind.REDUCE_SCATTER, Kind.ALL_GATHER, Kind.SCATTER, Kind.GATHER, Kind.ALL_TO_ALL}
    sent = found.sections * nbytes / (layout.size if kind in whole else 1)
    return f"{found.rounds} rounds, {found.messages} messages and {float(sent):.0f} bytes from the busiest rank"
