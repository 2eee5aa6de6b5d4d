"""Predictions: how long a step takes on a cluster, and what it waits for."""

from __future__ import annotations

from dataclasses import dataclass

from byteps_like.planner.clock import SimulatedClock
from byteps_like.planner.cluster import Cluster, Settings
from byteps_like.planner.collective_route import CollectiveRoute
from byteps_like.planner.route import SimulatedRoute
from byteps_like.planner.server_route import ServerRoute
from byteps_like.planner.step import Gradients, Trainer
from byteps_like.planner.workload import Workload

STEPS = 4
"""The first ones fill what the last ones find filled."""
EXACT = 8
"""Workers, up to which each is simulated."""


@dataclass(frozen=True)
class Prediction:
    """Of one step in the steady state. `busy`: the share of the time that the busiest of each kind is; `sent` and
    `received`: payload bytes on the card of the first worker's host. `events`: how many were simulated."""

    step: float
    compute: float
    busy: dict[str, float]
    sent: float
    received: float
    events: int

    @property
    def efficiency(self) -> float:
        """Against as many workers that need not communicate."""
        return self.compute / self.step

    @property
    def bottleneck(self) -> str:
        """What to add more of, and how busy it is."""
        name = max(self.busy, key=lambda kind: self.busy[kind])
        return f"{name}, {self.busy[name] * 100:.0f} % busy"


def predict(
    cluster: Cluster, workload: Workload, settings: Settings | None = None, *, exact: bool | None = None
) -> Prediction:
    """Simulates some steps of `workload`, whose times must be seconds.

    `exact`: every worker by itself, or one for all, which they must be alike for; None: as their number suggests.
    """
    settings = settings or Settings()
    clock = SimulatedClock()
    if exact is None:
        exact = cluster.workers <= EXACT or bool(cluster.rates)
    specs = Gradients.of(workload).specs(settings.whole, fine=not settings.barrier)
    served = cluster.servers > 0 or cluster.colocated
    route: SimulatedRoute = (ServerRoute if served else CollectiveRoute)(clock, cluster, settings, specs, exact)
    trainers = [
        Trainer(clock, worker, workload, settings, route, cluster.costs.launch) for worker in range(route.workers)
    ]
    busy: list[dict[str, float]] = []
    trainers[0].on_end = lambda: busy.append(_busy(route))
    for trainer in trainers:
        clock.start(trainer.train(STEPS))
    clock.run()
    step = max(trainer.ends[-1] - trainer.ends[-2] for trainer in trainers)
    shares = {name: (busy[-1][name] - busy[-2][name]) / step for name in busy[-1]}
    shares["compute"] = workload.compute / step
    sent, received = (card.nbytes / STEPS for card in route.cards[:2])
    return Prediction(step, workload.compute, shares, sent, received, clock.events)


def _busy(route: SimulatedRoute) -> dict[str, float]:
    """Seconds so far, of the busiest of each kind."""
    found: dict[str, float] = {}
    for card in route.cards:
        kind = "server links" if card.name.startswith("server") else "worker links"
        found[kind] = max(found.get(kind, 0.0), card.busy)
    for shard in route.shards:
        found["server CPU"] = max(found.get("server CPU", 0.0), shard.busy)
    return found
