"""Cuts tensors into partitions and gives each to a slot (a shard of a server), in proportion to its weight. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf, lcm, log2
from typing import TYPE_CHECKING, NamedTuple

from byteps_like.control.placing.staying import Former, PlacedRange, dealt, merged, ranges, stay
from byteps_like.control.types import View
from byteps_like.errors import InvalidArgumentError
from byteps_like.worker.api import Declared, Partition, TensorSpec

if TYPE_CHECKING:
    from byteps_like.compression.codec import Codec

ALIGNMENT = 64
"""Partition boundaries are multiples of this: whole cache lines, whole elements."""

SMALLEST_PIECE = 64 << 10
"""A tensor is not cut finer than this only to reach more slots, where all is on one host or cards are fast,"""

WORTH_A_MESSAGE = 120e-6
"""nor so fine that a piece takes less than so many seconds on the slowest card: four times what a message costs both
ends in processor time, some 30 microseconds,"""

FINEST_PIECE = 1 << 10
"""nor finer than this."""

SHORT_SEGMENT = 16 << 10
"""A small partition goes in segments of so many bytes where cards are fast."""

ENCODED_BYTES = 1 << 20
"""Most fp32 bytes of a partition whose encoded sum a server makes when all contributions are whole, unless its tensor
says otherwise: lines down are idle while the first ones come up, and lines up while the last results go down."""

PARTITION_BYTES = 4 << 20
"""Of a job that doesn't say otherwise,"""

ON_ONE_HOST = 1 << 20
"""and of one whose members all share a host: then a few partitions in flight fit into the processor's cache, between
copying and summing."""

PARTS_PER_TENSOR = 1 << 16
"""Keys are `tensor_id << 16 | part`."""


def usual_partition(view: View) -> int:
    """How large partitions may be in `view`, in bytes."""
    told = int(view.settings.get("partition_bytes", PARTITION_BYTES))
    hosts = {one.host_id for one in (*view.workers, *view.servers)}
    return ON_ONE_HOST if told == PARTITION_BYTES and len(hosts) == 1 else told


def smallest_piece(gbps: float) -> int:
    """The least bytes that a server gets of a tensor where the slowest card has that rate, in Gb/s each way."""
    worth = min(gbps * 1e9 / 8 * WORTH_A_MESSAGE, SMALLEST_PIECE)
    return max(FINEST_PIECE, int(worth) // ALIGNMENT * ALIGNMENT)


def least_segment(gbps: float) -> int:
    """The shortest segment of a partition, whose sum goes back while the rest comes in, in bytes: a power of two."""
    nearest = round(log2(smallest_piece(gbps)))
    return 1 << min(nearest, SHORT_SEGMENT.bit_length() - 1)


def slowest_card(view: View) -> float:
    """The rate of the slowest card that the members' traffic crosses, in Gb/s: infinite on one host or if unknown."""
    rates = {one.host_id: one.gbps for one in (*view.workers, *view.servers)}
    return inf if len(rates) == 1 else min((rate for rate in rates.values() if rate > 0), default=inf)


_MOST_PIECES = 2
"""Times as many as there need be, of what has stayed where it was over several worlds."""


@dataclass
class Vacancy:
    """One shard of one server: which part of all bytes it should have, and the bytes it has."""

    server: int
    shard: int
    weight: float
    load: int = 0


class _Sizes(NamedTuple):
    """Of a tensor's partitions, in bytes."""

    least: int
    """Of what one slot gets."""
    largest: int
    grain: int
    """All are multiples of it, but for the tensor's end."""


class Placer:
    """Gives slots partitions so that their bytes are in proportion to their weights.

    A tensor is shared out by what each slot lacks of its part of all bytes so far, the tensor's included; slots that
    lack less than a smallest piece get nothing of it, so a small tensor goes whole to the one that lacks most, and the
    next large one makes up for it. Hence no slot is more than about one small piece away from its part, and each
    large tensor by itself is spread as all are. Deterministic in the order of calls.
    """

    def __init__(
        self, shards: Sequence[int], partition_bytes: int, weights: Sequence[float] | None = None,
        *, slowest_gbps: float = inf, servers: Sequence[tuple[str, ...]] = (),
    ) -> None:  # fmt: skip
        """`shards[i]` is the number of shards of server i, `weights[i]` its share of all bytes (default: by shards),
        `servers[i]` its addresses.

        The slower the slowest card, the finer are small tensors cut: see `smallest_piece`. Encoded ones are not.
        """
        self.servers = servers or [(f"server {server}",) for server in range(len(shards))]
        """By what they are known in other worlds."""
        self._partition_bytes = partition_bytes
        self._smallest = smallest_piece(slowest_gbps)
        given = [float(count) for count in shards] if weights is None else list(weights)
        places = sorted((shard, server) for server, count in enumerate(shards) for shard in range(count))
        self._slots = [Vacancy(server, shard, given[server] / shards[server]) for shard, server in places]
        whole = sum(slot.weight for slot in self._slots)
        for slot in self._slots:
            slot.weight /= whole

    @classmethod
    def of(cls, view: View, partition_bytes: int, weights: Sequence[float] | None = None) -> Placer:
        """For the servers of `view`; `weights` by their ranks."""
        shards = [max(server.shards, 1) for server in view.servers]
        names = [server.urls for server in view.servers]
        return cls(shards, partition_bytes, weights, slowest_gbps=slowest_card(view), servers=names)

    def place(self, tensor_id: int, spec: TensorSpec) -> Declared:
        """The partitions of `spec` and where they live. Raises InvalidArgumentError without slots or for too many."""
        size = self._sizes(spec)
        each = self._share_out(spec.nbytes, size.least, size.grain)
        pieces = ranges(in_turn([_cut(nbytes, size.largest, size.grain) for nbytes in each], size.grain))
        self._take_all(pieces)
        return self._declared(tensor_id, spec, pieces)

    def place_again(self, tensor_id: int, spec: TensorSpec, before: Former) -> Declared:
        """The same of a tensor whose values servers have from the world before: they keep what they have, but for what
        is beyond their parts by more than about a smallest piece. After many worlds all is cut anew, where that leaves
        half of the partitions."""
        size = self._sizes(spec)
        unit = -(-size.least // size.grain) * size.grain
        total = spec.nbytes + sum(slot.load for slot in self._slots)
        room = [slot.weight * total - slot.load for slot in self._slots]
        names = {(self.servers[slot.server], slot.shard): place for place, slot in enumerate(self._slots)}
        stays, moves = stay(before.held(names), room, unit)
        loads = [slot.load for slot in self._slots]
        self._take_all(stays)
        shares = self._share_out(sum(one.nbytes for one in moves), size.least, size.grain) if moves else []
        again = merged([*stays, *dealt(moves, shares, unit)])
        for slot, load in zip(self._slots, loads, strict=True):
            slot.load = load
        pieces = ranges((one.place, nbytes) for one in again for nbytes in _cut(one.nbytes, size.largest, size.grain))
        if len(pieces) > _MOST_PIECES * (-(-spec.nbytes // size.largest) + len(self._slots)):
            return self.place(tensor_id, spec)
        self._take_all(pieces)
        return self._declared(tensor_id, spec, pieces)

    def _take_all(self, pieces: Sequence[PlacedRange]) -> None:
        for one in pieces:
            self._slots[one.place].load += one.nbytes

    def _sizes(self, spec: TensorSpec) -> _Sizes:
        if not self._slots:
            raise InvalidArgumentError(f"can't place tensor {spec.name!r}: the job has no servers")
        codec = _codec(spec)
        usual = min(self._partition_bytes, ENCODED_BYTES) if codec and codec.waits else self._partition_bytes
        partition_bytes = spec.partition_bytes or usual
        grain = lcm(_grain(codec, partition_bytes), spec.row_bytes or 1)
        largest = max(partition_bytes // grain, 1) * grain
        self._check_count(spec, -(-spec.nbytes // largest))
        return _Sizes(min(SMALLEST_PIECE if codec else self._smallest, largest), largest, grain)

    def _declared(self, tensor_id: int, spec: TensorSpec, pieces: Sequence[PlacedRange]) -> Declared:
        self._check_count(spec, len(pieces))
        slots = [self._slots[one.place] for one in pieces]
        parts = (
            Partition(tensor_id << 16 | part, one.offset, one.nbytes, slot.server, slot.shard)
            for part, (one, slot) in enumerate(zip(pieces, slots, strict=True))
        )
        return Declared(spec, tensor_id, tuple(parts))

    def place_beside(self, tensor_id: int, spec: TensorSpec, other: Declared) -> Declared:
        """The partitions of `spec`, cut as those of `other`, which this placer has placed, and where they live. Raises
        InvalidArgumentError where it can't be cut so."""
        row = spec.row_bytes or 1
        splits = [part.offset for part in other.partitions if part.offset % row]
        if spec.nbytes != other.spec.nbytes or splits:
            why = f"rows of {row} bytes" if splits else f"{spec.nbytes} bytes, not {other.spec.nbytes}"
            raise InvalidArgumentError(f"can't place tensor {spec.name!r} beside {spec.beside!r}: it has {why}")
        self.take(other)
        parts = (replace(part, key=tensor_id << 16 | number) for number, part in enumerate(other.partitions))
        return Declared(spec, tensor_id, tuple(parts))

    def take(self, placed: Declared) -> None:
        """Slots have these partitions, which another placer of the same servers gave them."""
        slots = {(slot.server, slot.shard): slot for slot in self._slots}
        for part in placed.partitions:
            slots[part.server, part.shard].load += part.nbytes

    def leave(self, placed: Declared) -> None:
        """Slots don't have these partitions any more, which this placer gave them."""
        slots = {(slot.server, slot.shard): slot for slot in self._slots}
        for part in placed.partitions:
            slots[part.server, part.shard].load -= part.nbytes

    def _check_count(self, spec: TensorSpec, count: int) -> None:
        partition_bytes = spec.partition_bytes or self._partition_bytes
        if count > PARTS_PER_TENSOR:
            raise InvalidArgumentError(
                f"tensor {spec.name!r} of {spec.nbytes} bytes has {count} partitions, more than"
                f" {PARTS_PER_TENSOR}; raise partition_bytes={partition_bytes}"
            )

    def loads(self) -> dict[tuple[int, int], int]:
        """Bytes on each (server, shard)."""
        return {(slot.server, slot.shard): slot.load for slot in self._slots}

    def _share_out(self, nbytes: int, least: int, grain: int) -> list[int]:
        """How much of a tensor each slot gets: `least` bytes or none, in multiples of `grain` but for its end."""
        total = nbytes + sum(slot.load for slot in self._slots)
        lacking = [max(0.0, slot.weight * total - slot.load) for slot in self._slots]
        order = sorted(range(len(lacking)), key=lambda place: -lacking[place])
        sums = list(accumulate(lacking[place] for place in order))
        # The fewer slots take part, the more is left for each: as many as get a piece worth having.
        worth = (lacking[place] * nbytes >= least * whole for place, whole in zip(order, sums, strict=True))
        count = max(1, sum(worth))
        wanted = [0.0] * len(lacking)
        for place in order[:count]:
            wanted[place] = lacking[place] / (sums[count - 1] or 1.0) * nbytes
        return _aligned(wanted, nbytes, grain)


def _codec(spec: TensorSpec) -> Codec | None:
    if not spec.codec:
        return None
    from byteps_like.compression.registry import codec_of  # by NumPy, which no scheduler starts with

    return codec_of(spec.codec_spec)


def _grain(codec: Codec | None, partition_bytes: int) -> int:
    """Boundaries are multiples of this many bytes: of ALIGNMENT, and of the blocks that a codec sends as they are,
    such as rows: one that is cut would be sent by both of its halves' blocks. Unless a partition has no room for it."""
    grain = lcm(ALIGNMENT, 4 * codec.whole) if codec else ALIGNMENT
    return grain if grain <= partition_bytes else ALIGNMENT


def _cut(nbytes: int, largest: int, grain: int) -> list[int]:
    """As few equal pieces as `largest` allows; the last may be shorter."""
    if nbytes == 0:
        return []
    count = -(-nbytes // largest)
    piece = -(-nbytes // (count * grain)) * grain
    return [min(piece, nbytes - offset) for offset in range(0, nbytes, piece)]


def _aligned(wanted: Sequence[float], nbytes: int, grain: int) -> list[int]:
    """`wanted` rounded to multiples of `grain` so that running sums are off by less than one, and sum to `nbytes`."""
    found, done, ideal = [], 0, 0.0
    last = max((place for place, share in enumerate(wanted) if share > 0), default=0)
    for place, share in enumerate(wanted):
        ideal += share
        end = nbytes if place == last else min(round(ideal / grain) * grain, nbytes)
        found.append(max(end, done) - done if share > 0 else 0)
        done += found[-1]
    return found


def in_turn(pieces: Sequence[Sequence[int]], grain: int = ALIGNMENT) -> list[tuple[int, int]]:
    """(slot, bytes) of all pieces, each slot's spread evenly over the whole, so that any stretch loads all alike.

    The one unaligned piece, the tensor's end, comes last.
    """
    order = [
        (nbytes % grain != 0, (turn + 0.5) / len(own), place, nbytes)
        for place, own in enumerate(pieces)
        for turn, nbytes in enumerate(own)
    ]
    return [(place, nbytes) for _, _, place, nbytes in sorted(order)]
