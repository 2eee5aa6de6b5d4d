"""compression="auto": what of the candidates, if anything, encodes gradients, by curves measured on this job's hosts.

HiPress's rule (Bai et al., SOSP 2021): times of encoding, adding, decoding and of the wire, by size, say whether to
encode and in how many pieces. Rank 0 measures the first three, all ranks together the wire, by their own route; what
rank 0 has found is handed to all, so that they decide alike. Within one host nothing is encoded.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from byteps_like.compression.codec import Codec
from byteps_like.compression.curves import CodecCosts, Curve, measure, measure_raw
from byteps_like.compression.decision import RAW as RAW_WAY
from byteps_like.compression.decision import Path, SendingCost, decide
from byteps_like.dtypes import DType, Op
from byteps_like.torch.compression.policy import RAW, Auto, Compress
from byteps_like.torch.job.routes import Request, Route
from byteps_like.worker.api import Placed, Places, TensorSpec, Tunable

if TYPE_CHECKING:
    from byteps_like.torch.job.runtime import Runtime

logger = logging.getLogger(__name__)

WORTH = 1.1
"""How many times the least time a way may take that comes before it: raw first, then the candidates in their order."""
SIZES = (1 << 12, 1 << 15, 1 << 18)
"""Elements at which codecs are measured: some tens of milliseconds each."""
_PIECE = 64 << 10  # bytes, of what the wire is measured by
_WIRE = (1 << 15, 1 << 17, 1 << 19, 1 << 21)  # elements, until one takes
_ENOUGH = 0.04  # seconds
_REPEATS = 3
_SMALL, _MANY = 1 << 6, 16  # elements of a piece; pieces
_CURVES = len(astuple(CodecCosts())) * len(astuple(Curve()))


@dataclass(frozen=True)
class Selection:
    """What is known of one route. Empty `ways`: nothing is encoded, and `why` says why."""

    codecs: Mapping[str, Codec]
    ways: Mapping[str, SendingCost]
    path: Path
    why: str = ""

    def choose(self, way: Compress, dtype: torch.dtype, numel: int) -> tuple[Compress, int]:
        """How `numel` elements of `dtype` travel that should go by `way`: RAW or one of its codecs, and partition bytes
        (0: as usual). The same on all ranks."""
        if not self.ways:
            return RAW, 0
        raw = replace(self.ways[RAW_WAY], up=dtype.itemsize, down=dtype.itemsize)
        ways = {name: one for name, one in self.ways.items() if one.up < dtype.itemsize}
        found = decide(numel, {RAW_WAY: raw, **ways}, self.path, WORTH)
        told = ", ".join(f"{name} {seconds * 1e3:.3g} ms" for name, seconds in found.seconds.items())
        logger.info("compression=auto: %d elements: %s in %d pieces (%s)", numel, found.name, found.pieces, told)
        if found.name == RAW_WAY:
            return RAW, 0
        chosen = replace(way, codec=self.codecs[found.name]).resolved(True)
        return chosen, _rounded(-(-4 * numel // found.pieces))


@dataclass
class Selections:
    """Those of a runtime, by route and candidates."""

    known: dict[tuple[Route, Auto], Selection] = field(default_factory=dict)


def selected(
    runtime: Runtime, route: Route, label: str, way: Compress, parameters: Sequence[torch.Tensor]
) -> tuple[Compress, int]:
    """How the gradients of `parameters`, which go one `way`, travel: see Selection.choose. What was measured once for a
    route and its ranks counts for all; `label`: of who asks first."""
    assert way.auto is not None
    known, key = runtime.of(Selections).known, (route, way.auto)
    if key not in known:
        known[key] = select(route, way.auto, f"{label}.auto{len(known)}", runtime.clock)
    return known[key].choose(way, parameters[0].dtype, sum(parameter.numel() for parameter in parameters))


def select(route: Route, auto: Auto, name: str, clock: Callable[[], float]) -> Selection:
    """Measures, if there is anything to choose. Collective: all ranks of `route`, under the same `name`. Less than a
    second, unless ranks come late."""
    worker = route.worker
    places = worker.places() if isinstance(worker, Placed) else None
    why = _why(worker.size, places)
    if why or places is None:
        if worker.rank == 0:
            logger.info("compression=auto: gradients go raw, because %s", why)
        return Selection({}, {}, Path(1, 1, 1.0), why)
    codecs = {codec.spec(): codec for codec in auto.candidates}
    wire = Wire(route, name, clock)
    numbers = wire.measure(places)
    costs = _costs(list(codecs.values()), worker.size) if worker.rank == 0 else []
    costs = wire.agree("costs", costs, _CURVES * (1 + len(codecs)))
    path = Path(worker.size, places.servers or worker.size, *numbers)
    if worker.rank == 0:
        logger.info(
            "compression=auto: %d hosts, %.3g MB/s per line, a round trip %.3g ms, a piece %.3g ms",
            places.hosts, path.rate / 1e6, 2e3 * path.latency, 1e3 * path.overhead,
        )  # fmt: skip
    return Selection(codecs, _ways(codecs, costs, worker.size), path)


def _why(size: int, places: Places | None) -> str:
    if size == 1:
        return "a world of one sends nothing"
    if places is None:
        return "this kind of worker can't tell where the others are"
    if not places.encode:
        return "some workers are portable ones, which can't encode"
    return "" if places.hosts > 1 else "all are on one host"


def _costs(codecs: Sequence[Codec], world: int) -> list[float]:
    found = [measure_raw(sizes=SIZES), *(measure(codec, world, SIZES) for codec in codecs)]
    return [number for costs in found for curve in astuple(costs) for number in curve]


def _ways(codecs: Mapping[str, Codec], numbers: Sequence[float], world: int) -> dict[str, SendingCost]:
    it = struct.iter_unpack("3d", struct.pack(f"{len(numbers)}d", *numbers))
    curves = [Curve(*three) for three in it]
    per = len(astuple(CodecCosts()))
    costs = [CodecCosts(*curves[at : at + per]) for at in range(0, len(curves), per)]
    ways = {RAW_WAY: SendingCost(4, 4, False, costs[0])}
    for (name, codec), own in zip(codecs.items(), costs[1:], strict=True):
        ways[name] = SendingCost.of(codec, world, own)
    return ways


def _rounded(nbytes: int) -> int:
    return -(-nbytes // 4096) * 4096


class Wire:
    """Reductions of zeros by `route`, timed. Names begin with `name`, and are given back."""

    def __init__(self, route: Route, name: str, clock: Callable[[], float]) -> None:
        self._route, self._name, self._clock = route, name, clock

    def measure(self, places: Places) -> tuple[float, float, float]:
        """Bytes per second of a line, seconds from one end to the other, seconds per piece: as rank 0 has them."""
        one = self._seconds(_SMALL, 4 * _SMALL)
        many = self._seconds(_MANY * _SMALL, 4 * _SMALL)
        seconds, numel = 0.0, 0
        for numel in _WIRE:
            (seconds,) = self.agree("seconds", [self._seconds(numel, _PIECE)], 1)
            if seconds > _ENOUGH:
                break
        size = self._route.worker.size
        crowd = max(1.0, size / (places.servers or size))
        rate = crowd * 4 * numel / max(seconds - one, 1e-9)
        found = [rate, one / 2, max(many - one, 0.0) / (_MANY - 1)]
        rate, latency, overhead = self.agree("wire", found, 3)
        return rate, latency, overhead

    def _seconds(self, numel: int, piece: int) -> float:
        worker: Any = self._route.worker
        (declared,) = self._route.declare(
            [TensorSpec(f"{self._name}.{numel}", DType.FLOAT32, (numel,), partition_bytes=piece)]
        )
        memory, times = worker.allocate(4 * numel), []
        for _ in range(_REPEATS + 1):
            begin = self._clock()
            self._route.push_pull(declared, memory.address, Op.SUM).wait()
            times.append(self._clock() - begin)
        if isinstance(worker, Tunable):
            worker.retire(declared)
        return min(times[1:])

    def agree(self, what: str, numbers: Sequence[float], count: int) -> list[float]:
        """`count` numbers of rank 0, on all ranks."""
        message = torch.zeros(count, dtype=torch.float64, device="cpu")
        if self._route.worker.rank == 0:
            message.copy_(torch.tensor(numbers, dtype=torch.float64, device="cpu"))
        (declared,) = self._route.declare([TensorSpec(f"{self._name}.{what}", DType.FLOAT64, (count,))])
        self._route.push_pull(declared, message.data_ptr(), Op.BROADCAST, Request(priority=1 << 30)).wait()
        return [float(number) for number in message]
