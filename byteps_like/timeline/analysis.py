"""Where the steps of a trace went: compute, exposed communication, for whom ranks waited, who holds the others up.

Times in seconds. A rank's step is from the end of its last update to the end of this; where nobody counted steps, all
that was recorded is one. Compute is what is left of it when no thread waited: forward, backward, update and all else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, median
from typing import Any

from byteps_like.timeline.records import SERVERS

Event = dict[str, Any]
Key = tuple[str, int, int]
"""A partition's round: tensor, part, round."""

_IN_A_STEP = ("forward", "backward", "update", "wait")
_NOTEWORTHY = 0.05  # of a step: by less nobody is a straggler


@dataclass(frozen=True)
class MeasuredStep:
    """One step of one rank. `waits` by (cause, whom); `exposed`: what was waited for at the same time counts once."""

    rank: int
    number: int
    begin: float
    end: float
    forward: float
    backward: float
    update: float
    exposed: float
    waits: dict[tuple[str, str], float]

    @property
    def seconds(self) -> float:
        """From end to end."""
        return self.end - self.begin

    @property
    def compute(self) -> float:
        """What was not waiting."""
        return self.seconds - self.exposed


@dataclass(frozen=True)
class Lateness:
    """How late one rank is beside the others, in the mean of all rounds. `ready`: with its gradients; `link`: how much
    longer they take to arrive than the others' do. `last`: share of rounds in which its gradients were ready last."""

    rank: int
    ready: float
    link: float
    last: float


@dataclass(frozen=True)
class Service:
    """One server: `seconds` from the last contribution to the last rank's result, in the mean of `rounds`."""

    server: int
    rounds: int
    seconds: float


@dataclass(frozen=True)
class Slow:
    """One partition, in the mean of its rounds and ranks: `total` from ready to received, and its parts."""

    tensor: str
    part: int
    nbytes: int
    total: float
    queued: float
    sent: float
    others: float
    back: float


@dataclass
class Analysis:
    """Everything that a report shows, worked out of a trace's events when it is asked for."""

    events: Sequence[Event]
    _stages: dict[str, dict[tuple[int, Key], tuple[float, float]]] = field(init=False)
    _where: dict[Key, tuple[int, int]] = field(init=False)
    _first: dict[Key, float] = field(init=False)

    def __post_init__(self) -> None:
        self._stages, self._where, self._first = defaultdict(dict), {}, {}
        for event in self.events:
            if event.get("cat") != "partition":
                continue
            args = event["args"]
            key, member = (args["tensor"], args["part"], args["round"]), args.get("rank", event["pid"])
            begin = event["ts"] / 1e6
            if event["name"] == "ready":
                self._first[key] = min(begin, self._first.get(key, begin))
            self._stages[event["name"]][member, key] = (begin, begin + event["dur"] / 1e6)
            if "server" in args or key not in self._where:
                self._where[key] = (args.get("server", -1), args["bytes"])

    @cached_property
    def ranks(self) -> list[int]:
        """Those that were recorded."""
        return sorted({event["pid"] for event in self.events if event.get("ph") == "X" and event["pid"] < SERVERS})

    @cached_property
    def steps(self) -> list[MeasuredStep]:
        """All steps of all ranks, by rank and number."""
        return [step for rank in self.ranks for step in self._steps_of(rank)]

    def _steps_of(self, rank: int) -> list[MeasuredStep]:
        own = [event for event in self.events if event.get("ph") == "X" and event["pid"] == rank]
        spans = [
            (event["ts"], event["ts"] + event["dur"], event["args"]["step"]) for event in own if event["cat"] == "step"
        ]
        if not spans:
            spans = [(min(event["ts"] for event in own), max(event["ts"] + event["dur"] for event in own), 0)]
        own = sorted((event for event in own if event["cat"] in _IN_A_STEP), key=lambda event: event["ts"])
        begins, longest = [event["ts"] for event in own], max((event["dur"] for event in own), default=0.0)
        found = []
        for begin, end, number in sorted(spans):
            within = own[bisect_left(begins, begin - longest) : bisect_left(begins, end)]
            found.append(_step(rank, number, begin, end, within))
        return found

    @cached_property
    def lateness(self) -> list[Lateness]:
        """Of each rank; empty where fewer than two ranks reduce anything."""
        ready: dict[int, list[float]] = defaultdict(list)
        ways: dict[int, list[float]] = defaultdict(list)
        last: Counter[int] = Counter()
        rounds = 0
        for key, begun in self._by_key("ready").items():
            if len(begun) < 2:
                continue
            rounds += 1
            last[max(begun, key=lambda rank: begun[rank][0])] += 1
            for rank, (begin, _) in begun.items():
                ready[rank].append(begin - median(other for one, (other, _) in begun.items() if one != rank))
                arrived = self._stages["arrived"].get((rank, key))
                if arrived is not None:
                    ways[rank].append(arrived[1] - begin)
        mean_way = {rank: fmean(times) for rank, times in ways.items()}
        return [
            Lateness(rank, fmean(ready[rank]), _above(mean_way, rank), last[rank] / rounds) for rank in sorted(ready)
        ]

    @cached_property
    def straggler(self) -> tuple[int, str, float] | None:
        """The rank that holds the others up most, why ("compute" or "link"), and by how much; None if nobody does."""
        least = _NOTEWORTHY * fmean(step.seconds for step in self.steps) if self.steps else 0.0
        late = [(one.ready, "compute", one.rank) for one in self.lateness if one.last > 0.5 and one.ready > least]
        late += [(one.link, "link", one.rank) for one in self.lateness if one.link > least]
        if not late:
            return None
        seconds, why, rank = max(late)
        return rank, why, seconds

    @cached_property
    def servers(self) -> list[Service]:
        """All that summed anything, the slowest first."""
        seconds: dict[int, list[float]] = defaultdict(list)
        received = self._by_key("received")
        for key, arrived in self._by_key("arrived").items():
            if key in received:
                done = max(end for _, end in received[key].values())
                seconds[self._where[key][0]].append(done - max(end for _, end in arrived.values()))
        found = [Service(server, len(times), fmean(times)) for server, times in seconds.items()]
        return sorted(found, key=lambda service: -service.seconds)

    def slowest(self, count: int = 10) -> list[Slow]:
        """The partitions that take longest from ready to received."""
        times: dict[tuple[str, int], list[tuple[float, ...]]] = defaultdict(list)
        nbytes: dict[tuple[str, int], int] = {}
        arrived, ready = self._by_key("arrived"), self._by_key("ready")
        for key, received in self._by_key("received").items():
            for rank, (_, end) in received.items():
                if (rank, key) in self._stages["ready"]:
                    times[key[:2]].append(self._parts(rank, key, end, arrived.get(key) or ready.get(key, {})))
                    nbytes[key[:2]] = self._where[key][1]
        found = [
            Slow(*name, nbytes[name], *(fmean(column) for column in zip(*rows, strict=True)))
            for name, rows in times.items()
        ]
        return sorted(found, key=lambda slow: -slow.total)[:count]

    def _parts(
        self, rank: int, key: Key, end: float, arrived: dict[int, tuple[float, float]]
    ) -> tuple[float, float, float, float, float]:
        """Total, queued, sent (until our contribution had arrived), waiting for the others', way back."""
        ready = self._stages["ready"][rank, key][0]
        _, queued = self._stages["queued"].get((rank, key), (ready, ready))
        _, sent = self._stages["sent"].get((rank, key), (queued, queued))
        own = max(queued, arrived[rank][1]) if rank in arrived else sent
        last = max([own, *(there for _, there in arrived.values())])
        return end - ready, queued - ready, own - queued, last - own, end - last

    def _by_key(self, stage: str) -> dict[Key, dict[int, tuple[float, float]]]:
        """Of the rounds within the recorded steps: not of what is broadcast before the first."""
        begin, end = min(step.begin for step in self.steps), max(step.end for step in self.steps)
        found: dict[Key, dict[int, tuple[float, float]]] = defaultdict(dict)
        for (member, key), times in self._stages[stage].items():
            if begin <= self._first.get(key, begin) <= end:
                found[key][member] = times
        return found


def _step(rank: int, number: int, begin: float, end: float, events: Iterable[Event]) -> MeasuredStep:
    sums: Counter[str] = Counter()
    waits: dict[tuple[str, str], float] = defaultdict(float)
    blocked = []
    for event in events:
        first, last = max(begin, event["ts"]), min(end, event["ts"] + event["dur"])
        if last <= first:
            continue
        sums[event["cat"]] += last - first
        if event["cat"] == "wait":
            blocked.append((first, last))
            waits[event["args"]["cause"], event["args"]["whom"]] += (last - first) / 1e6
    forward, backward, update = (sums[name] / 1e6 for name in ("forward", "backward", "update"))
    return MeasuredStep(
        rank, number, begin / 1e6, end / 1e6, forward, backward, update, _union(blocked) / 1e6, dict(waits)
    )


def _union(spans: list[tuple[float, float]]) -> float:
    """Length of what at least one of the spans covers."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _above(values: dict[int, float], rank: int) -> float:
    """By how much a rank's value is above the median of the others'."""
    others = [value for one, value in values.items() if one != rank]
    return values[rank] - median(others) if rank in values and others else 0.0
