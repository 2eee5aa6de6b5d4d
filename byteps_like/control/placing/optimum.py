"""Who should sum how much, so that the busiest network card is done first: the optimum of BytePS (OSDI'20, §4). Pure.

N workers reduce M bytes each. The server on a host with w workers sums a share s of them. Its workers push what is
summed elsewhere, its server hears of its share from the workers elsewhere, and results come back the same ways, so
each direction of its network card carries, in units of M,

    w·(1 - s) + (N - w)·s  =  w + (N - 2w)·s

(what a worker gives a server on its own host crosses no card). To find shares that sum to 1 with the least T such that
w + (N - 2w)·s <= T·rate on every host, fix T: each host may then take up to (T·rate - w) / (N - 2w), between 0 and 1.
The sum of these grows with T, linearly between the points where a host begins or stops to take more; T is where it
reaches 1. A host on which half of the workers or more are carries no more for a larger share, and takes what is left.

With one worker on each of n hosts, k spare ones and equal rates B this is OSDI'20's closed form: with
D = n² + kn - 2k a spare server takes 2(n-1)/D, one beside a worker (n-k)/D, and T = 2n(n-1)M/(D·B). k = 0 is the
traffic of an all-reduce; from k = n on it is a pure parameter server, T = M/B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from byteps_like.errors import InvalidArgumentError


@dataclass(frozen=True)
class Machine:
    """One machine: how many workers are on it, whether it has a server, and the rate of its card, each way.

    `rate` is the lesser of the two directions, since both carry the same. In any unit: shares depend on ratios only.
    """

    workers: int
    serves: bool
    rate: float = 1.0


def shares(hosts: Sequence[Machine]) -> list[float]:
    """Each host's share of the sum; 0 without a server, 1 in all. The cards below the busiest are levelled, too.

    Raises InvalidArgumentError without servers or workers, or for a rate that is not positive.
    """
    _check(hosts)
    everybody = sum(host.workers for host in hosts)
    free = [place for place, host in enumerate(hosts) if host.serves and 2 * host.workers >= everybody]
    paying = [host for host in hosts if host.serves and 2 * host.workers < everybody]
    if any(2 * hosts[place].workers > everybody for place in free):
        found, left = dict.fromkeys(paying, 0.0), 1.0  # everything beside the majority: its own card carries less
    else:
        unavoidable = max(host.workers / host.rate for host in hosts)
        time = min([_level(paying, everybody), unavoidable]) if free else _level(paying, everybody)
        found = {host: _most(host, everybody, time) for host in paying}
        left = max(0.0, 1.0 - sum(found[host] for host in paying))
    return [
        left / len(free) if place in free else found[host] if host.serves else 0.0 for place, host in enumerate(hosts)
    ]


def card_time(hosts: Sequence[Machine], split: Sequence[float]) -> float:
    """How long the busiest card takes per byte of M (seconds, if rates are bytes per second) with any shares."""
    everybody = sum(host.workers for host in hosts)
    return max(
        (host.workers + (everybody - 2 * host.workers) * share) / host.rate
        for host, share in zip(hosts, split, strict=True)
    )


def _most(host: Machine, everybody: int, time: float) -> float:
    """The largest share with which the card of `host` is done in `time`."""
    return min(1.0, max(0.0, (time * host.rate - host.workers) / (everybody - 2 * host.workers)))


def _level(hosts: Sequence[Machine], everybody: int) -> float:
    """The time in which all `hosts` together can take just everything; endless if there are none."""
    if not hosts:
        return float("inf")
    bends = sorted({load / host.rate for host in hosts for load in (host.workers, everybody - host.workers)})
    before, taken_before = bends[0], 0.0
    for time in bends:
        taken = sum(_most(host, everybody, time) for host in hosts)
        if taken >= 1.0:
            return before + (1.0 - taken_before) / (taken - taken_before) * (time - before)
        before, taken_before = time, taken
    return before


def _check(hosts: Sequence[Machine]) -> None:
    if not any(host.serves for host in hosts):
        raise InvalidArgumentError("no host has a server, so there are no shares to compute")
    if not any(host.workers for host in hosts):
        raise InvalidArgumentError("no host has a worker: there is nothing to sum")
    slow = next((host for host in hosts if not host.rate > 0), None)
    if slow is not None:
        raise InvalidArgumentError(f"a network card needs a rate above 0, not {slow.rate}")
