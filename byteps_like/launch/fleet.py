"""`--servers auto`: on which hosts servers are worth starting, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from byteps_like.control.placing.optimum import Machine, card_time, shares


@dataclass(frozen=True)
class Fleet:
    """The servers of a job: on which hosts (by number), and a line that says why there."""

    hosts: tuple[int, ...]
    why: str


def choose(rates: Sequence[float], worker_hosts: int, per_host: int = 1) -> Fleet:
    """Servers for `per_host` workers on each of the first `worker_hosts` of the hosts with these card rates.

    The rest are spare. A host gets a server if its share in the optimum is more than nothing.
    """
    if worker_hosts == 1:
        return _on_one_host(per_host)
    everybody = [Machine(per_host if place < worker_hosts else 0, True, rate) for place, rate in enumerate(rates)]
    split = shares(everybody)
    chosen = tuple(place for place, share in enumerate(split) if share > 0)
    beside = [split[place] for place in chosen if place < worker_hosts]
    spare = [split[place] for place in chosen if place >= worker_hosts]
    where = [
        *([f"beside the workers on {_hosts(beside)}"] if beside else []),
        *([f"on {'spare ' if beside else ''}{_hosts(spare)}"] if spare else []),
    ]
    ring = card_time(
        [Machine(per_host, True, host.rate) for host in everybody[:worker_hosts]], [1 / worker_hosts] * worker_hosts
    )
    gain = ring / card_time(everybody, split)
    return Fleet(
        chosen,
        f"servers {' and '.join(where)}: "
        f"the busiest network card finishes {gain:.2f} times as fast as in an all-reduce",
    )


def _on_one_host(workers: int) -> Fleet:
    if workers == 1:
        return Fleet((), "no server: one worker has nothing to sum")
    return Fleet(
        (0,),
        "one server: all workers are on this host, where it sums in place in their shared memory",
    )


def _hosts(split: Sequence[float]) -> str:
    least, most = min(split), max(split)
    each = f"{most:.1%}" if most - least < 5e-4 else f"{least:.1%} to {most:.1%}"
    return f"{len(split)} host{'s' if len(split) > 1 else ''} ({each} of the sum{' each' if len(split) > 1 else ''})"
