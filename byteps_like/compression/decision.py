"""Whether encoding pays: how long a tensor takes raw, cast and with each codec, in how many pieces.

As HiPress's SeCoPa (Bai et al., SOSP 2021) decides, but for pieces that overlap: while one is on the wire the next is
encoded, so that all but one cost what the slowest stage takes of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from byteps_like.compression.codec import Codec
from byteps_like.compression.curves import CodecCosts

PIECES = (1, 2, 4, 8, 16, 32, 64)
FINEST = 1 << 14  # elements
RAW, BF16 = "raw", "bf16"


@dataclass(frozen=True)
class Path:
    """What a round goes through: `rate` of each host's card in bytes of payload per second, each way."""

    workers: int
    servers: int
    rate: float
    latency: float = 100e-6
    """Seconds from a send to its receipt."""
    overhead: float = 0.0
    """Seconds that each piece takes beside its bytes."""


@dataclass(frozen=True)
class SendingCost:
    """One way to send a tensor: bytes per element up and down, whether ranks agree on something first, costs."""

    up: float
    down: float
    prelude: bool
    costs: CodecCosts

    @classmethod
    def of(cls, codec: Codec, world: int, costs: CodecCosts, numel: int = 1 << 20) -> SendingCost:
        """By the codec's plan for partitions of `numel` elements."""
        plan = codec.plan(numel, world)
        return cls(plan.payload / numel, plan.result / numel, plan.prelude > 0, costs)

    def seconds(self, numel: int, pieces: int, path: Path) -> float:
        """From the first encoding to the last decoding, `pieces` of `numel` elements in all."""
        stages = self.stages(numel / pieces, path)
        trips = 4 if self.prelude else 2
        return trips * path.latency + sum(stages.values()) + (pieces - 1) * max(stages.values())

    def stages(self, numel: float, path: Path) -> dict[str, float]:
        """Seconds that one piece of `numel` elements keeps each resource busy."""
        crowd = max(
            1.0, path.workers / path.servers
        )  # contributions per piece that a server's line carries beside others
        costs = self.costs
        return {
            "encode and decode": costs.encode(numel) + costs.decode(numel),
            "line up": crowd * numel * self.up / path.rate,
            "server": (path.workers * costs.add(numel) + costs.emit(numel)) / path.servers,
            "line down": crowd * numel * self.down / path.rate,
            "handling": path.overhead * (2 if self.prelude else 1),
        }


@dataclass(frozen=True)
class Decision:
    """How one tensor is sent fastest: `name` of the way, in how many `pieces`; and what all ways would take."""

    numel: int
    name: str
    pieces: int
    seconds: Mapping[str, float]

    @property
    def gain(self) -> float:
        """Time raw by time decided."""
        return self.seconds[RAW] / self.seconds[self.name]


def decide(numel: int, ways: Mapping[str, SendingCost], path: Path, worth: float = 1.0) -> Decision:
    """The fastest way; of those that take at most `worth` times as long the first. `ways` has RAW."""
    found: dict[str, tuple[float, int]] = {}
    for name, way in ways.items():
        possible = [pieces for pieces in PIECES if pieces == 1 or numel // pieces >= FINEST]
        found[name] = min((way.seconds(numel, pieces, path), pieces) for pieces in possible)
    fastest = min(seconds for seconds, _ in found.values())
    name = next(one for one, (seconds, _) in found.items() if seconds <= worth * fastest)
    return Decision(numel, name, found[name][1], {other: seconds for other, (seconds, _) in found.items()})


def break_even(way: SendingCost, other: SendingCost, numel: int, path: Path, rates: Sequence[float]) -> float:
    """The highest of `rates` at which `way` is faster than `other`; 0 if it is at none."""
    faster = [
        rate
        for rate in rates
        if decide(numel, {RAW: other, "way": way}, Path(path.workers, path.servers, rate, path.latency)).name == "way"
    ]
    return max(faster, default=0.0)
