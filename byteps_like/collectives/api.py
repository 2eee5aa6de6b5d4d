"""What a process group can do, whatever carries it: the seam between `byteps_like.torch` and the collectives.

Plain addresses, element counts and dtype codes: no torch here. Calls return at once with an Operation; buffers belong
to it until it is done. The n-th call of a group on one rank meets the n-th on the others, point to point aside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError

Addresses = int | Sequence[int]
"""One address of parts that lie one behind the other, or an address for each part."""


Terms = tuple[float, int, int]
"""Of a call, as the core takes them: timeout in seconds, traffic class, priority."""


class Traffic(IntEnum):
    """What goes first on a link when several wait; mirrors collectives/exchange/exchange.h."""

    CONTROL = 0
    ALL_TO_ALL = 1
    POINT_TO_POINT = 2
    GRADIENT = 3
    BULK = 4

    __hash__ = int.__hash__  # Enum's is written in Python, and calls are looked up by their options


class CallOptions(NamedTuple):
    """How one call is made. None and "" mean: the group's own default. Calls are looked up by it, hence a tuple."""

    timeout: float | None = None
    """Seconds until the call fails on all ranks with DeadlineError, which names who was missing."""
    algorithm: str = ""
    """Name of a schedule; "" lets the selector choose."""
    reduction: str = "fast"
    """"ordered": bit-identical from run to run and on all ranks."""
    traffic: Traffic | None = None
    priority: int = 0
    segment_bytes: int = 0
    """Of one write to a link; 0 lets the selector choose. Ranks may differ in it."""
    waits: bool = False
    """The caller waits at once: the call may block until it has ended, which saves some tens of microseconds."""


DEFAULT = CallOptions()


class CollectiveOperation(Protocol):
    """One call in flight. Thread-safe."""

    def done(self) -> bool:
        """Whether it has ended, well or not; never blocks."""

    def wait(self, timeout: float | None = None) -> None:
        """Blocks (without the GIL) until it has ended. Raises its typed error; DeadlineError after `timeout`, and then
        the call itself goes on."""

    def error(self) -> BytePSLikeError | None:
        """Why it failed, or None; only once it is done."""

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back once when it has ended, on a thread on which blocking harms nobody; at once if it has ended."""

    def give_up(self, error: BytePSLikeError) -> None:
        """Fails it with `error` on all ranks, soon; nothing if it is done. Not of a `send` or `receive`."""

    @property
    def source(self) -> int:
        """Group rank whose message a `receive` got; only once it is done."""


class Keeper:
    """A callback that keeps objects alive until it is called: memory of an operation that nobody may wait for."""

    def __init__(self, *held: object) -> None:
        self._held: tuple[object, ...] = held

    def __call__(self) -> None:
        """Lets go."""
        self._held = ()


class Group(Protocol):
    """Some ranks of a world, in an order of their own, with a lane of their own. Thread-safe.

    `source` and `target` may be equal (in place), or disjoint. Counts are elements; a count may be 0.
    Raises InvalidArgumentError for what this rank can see is wrong; operations raise MismatchError where ranks
    disagree on operation, dtype, counts or order, PeerLostError, DeadlineError, ShutdownError.
    """

    name: str
    rank: int
    size: int
    ranks: tuple[int, ...]
    hosts: tuple[int, ...]
    """By group rank, a number for the host it is on."""

    def all_reduce(
        self, source: int, target: int, count: int, dtype: DType, op: Op, options: CallOptions = DEFAULT
    ) -> CollectiveOperation:
        """Every rank gets the reduction of all sources."""

    def reduce_scatter(
        self, source: Addresses, target: int, counts: Sequence[int], dtype: DType, op: Op,
        options: CallOptions = DEFAULT,
    ) -> CollectiveOperation:  # fmt: skip
        """Rank r gets part r, of counts[r] elements, of the reduction. In place: target is source's part `rank`."""

    def all_gather(
        self, source: int, target: Addresses, counts: Sequence[int], dtype: DType, options: CallOptions = DEFAULT
    ) -> CollectiveOperation:
        """Every rank gets the sources of all, counts[r] elements from rank r."""

    def broadcast(
        self, address: int, count: int, dtype: DType, root: int, options: CallOptions = DEFAULT
    ) -> CollectiveOperation:
        """Every rank gets the bytes of group rank `root`."""

    def reduce(
        self, source: int, target: int, count: int, dtype: DType, op: Op, root: int, options: CallOptions = DEFAULT
    ) -> CollectiveOperation:
        """`root` gets the reduction; the target of the others is left alone and may be 0."""

    def scatter(
        self, source: Addresses, target: int, counts: Sequence[int], dtype: DType, root: int,
        options: CallOptions = DEFAULT,
    ) -> CollectiveOperation:  # fmt: skip
        """Rank r gets part r of the source of `root`."""

    def gather(
        self, source: int, target: Addresses, counts: Sequence[int], dtype: DType, root: int,
        options: CallOptions = DEFAULT,
    ) -> CollectiveOperation:  # fmt: skip
        """`root` gets the sources of all."""

    def all_to_all(
        self, source: Addresses, target: Addresses, send_counts: int | Sequence[int],
        receive_counts: int | Sequence[int], dtype: DType, options: CallOptions = DEFAULT,
    ) -> CollectiveOperation:  # fmt: skip
        """Part d of the source goes to rank d; part s of the target comes from rank s.

        A single number says that all parts of all ranks are of that size; a list promises nothing about the others'.
        """

    def release(self) -> None:
        """Gives back what is held for it: no rank will use it any more."""

    def end(self) -> None:
        """As `release`, and its name will never come again: nothing is left of it."""

    def barrier(self, options: CallOptions = DEFAULT) -> CollectiveOperation:
        """Done when every rank has called it."""

    def send(
        self, address: int, nbytes: int, peer: int, tag: int = 0, options: CallOptions = DEFAULT
    ) -> CollectiveOperation:
        """To group rank `peer`; matched by tag and order, never queued behind collectives."""

    def receive(
        self, address: int, nbytes: int, peer: int | None, tag: int = 0, options: CallOptions = DEFAULT
    ) -> CollectiveOperation:
        """From group rank `peer`, or from anybody (None)."""
