"""A study: one workload on clusters with more and more servers, and what more of anything would buy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from byteps_like.planner.cluster import Cluster, Settings
from byteps_like.planner.predict import Prediction, predict
from byteps_like.planner.workload import Workload


@dataclass(frozen=True)
class StudyRow:
    """A number of servers, what it leads to, and step times with one more, with lines twice as fast, and with half the
    bytes (what a codec to 16 bits leaves). Seconds."""

    servers: int
    route: str
    prediction: Prediction
    one_more: float
    twice_the_rate: float
    half_the_bytes: float

    def gain(self, step: float) -> float:
        """How many times as fast that is: 1.25 is a quarter more steps per second."""
        return self.prediction.step / step

    def record(self) -> dict[str, Any]:
        """As JSON."""
        found = {**asdict(self), **found_of(self.prediction)}
        del found["prediction"]
        return found


def found_of(prediction: Prediction) -> dict[str, Any]:
    """A prediction as JSON."""
    return {**asdict(prediction), "efficiency": prediction.efficiency, "bottleneck": prediction.bottleneck}


def study(
    workload: Workload,
    cluster: Cluster,
    servers: Sequence[int],
    settings: Settings,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterable[StudyRow]:
    """One row for each number of servers, as soon as it is there; `cluster` says all else."""
    known: dict[Cluster, Prediction] = {}

    def step(of: Cluster) -> Prediction:
        if of not in known:
            known[of] = predict(of, workload, settings)
        return known[of]

    for count in servers:
        progress(f"{count} servers")
        here = replace(cluster, servers=count)
        faster = replace(here, rate=2 * here.rate, server_rate=2 * here.server_rate if here.server_rate else None)
        half = predict(here, workload, replace(settings, bytes_factor=settings.bytes_factor / 2))
        more = step(replace(here, servers=count + 1))
        yield StudyRow(count, route_of(here), step(here), more.step, step(faster).step, half.step)


def route_of(cluster: Cluster) -> str:
    """In words."""
    if cluster.colocated:
        return "servers, some beside workers" if cluster.servers else "servers beside workers"
    return "servers" if cluster.servers else "all-reduce"


def thinned(counts: Sequence[int], most: int) -> list[int]:
    """At most `most` of them, the first and the last among them, closer together where they are small."""
    if len(counts) <= most:
        return list(counts)
    last = len(counts) - 1
    chosen = {round(last * (place / (most - 1)) ** 1.6) for place in range(most)}
    return [counts[place] for place in sorted(chosen)]
