"""The native summation server, with its events on a Python thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import byteps_like._core as _core
from byteps_like.control.calls.entrance import Entrance, strangers
from byteps_like.control.placing.placement import least_segment, slowest_card
from byteps_like.control.placing.racks import owners_of, racks_of
from byteps_like.control.types import Member, View
from byteps_like.errors import BytePSLikeError, from_code
from byteps_like.server.figures import KeptFigures, figures_of

ServerEvent = Callable[[int, BytePSLikeError, bool], None]
"""Called with the epoch in which a shard noticed something, what (a stall, ranks that disagree, a budget used up), and
whether that ends the epoch."""

Reach = Callable[[Member], Sequence[str]]
"""The addresses by which a server can be reached from here, best first."""

log = logging.getLogger(__name__)

_POLL = 0.5  # seconds until the event thread looks whether to end


class NativeServer:
    """Listens on `urls` and sums for the view it is given. Thread-safe.

    Between `set_view` calls links of any other epoch are refused. Raises the typed error when an address can't be
    bound.
    """

    def __init__(
        self,
        job: str,
        secret: bytes,
        urls: Sequence[str],
        *,
        shards: int = 1,
        memory_limit: int = 0,
        segment_bytes: int = 128 << 10,
        kernel_queue_bytes: int = 64 << 10,
        credit_bytes: int = 1 << 20,
        reach: Reach = lambda server: server.urls,
        on_event: ServerEvent,
    ) -> None:
        """`reach`: an aggregator's way to another server; `credit_bytes`: how far its sums may be ahead of results."""
        self._core = _core.Server(
            job, secret, list(urls), shards, memory_limit, segment_bytes, kernel_queue_bytes, credit_bytes
        )
        self._reach = reach
        self._on_event = on_event
        self._stopped = threading.Event()
        self._epoch = 0
        self.shards = shards
        self._thread = threading.Thread(target=self._pump, name="byteps_like-server-events", daemon=True)
        self._thread.start()

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses as bound, in the order given."""
        return tuple(self._core.urls)

    @property
    def entrance(self) -> Entrance:
        """The port of its links over TCP, for who shares it."""
        entrance: Entrance = self._core
        return entrance

    def set_view(self, view: View, rank: int, stall_warning: float, stall_timeout: float) -> None:
        """Forgets all keys and links and serves this view as server `rank`. Times in seconds. An aggregator
        blocks while it connects to the servers that its sums go on to."""
        self._epoch = view.number
        workers, own = [member.number for member in view.workers], view.servers[rank].number
        self._core.set_world(
            view.incarnation,
            view.number,
            workers,
            own,
            stall_warning,
            stall_timeout,
            rank,
            elastic=view.finishes_sums,
            chain=self._shards(view.servers) if view.finishes_sums else [],
            **self._racks(view, rank),
        )

    def _racks(self, view: View, rank: int) -> dict[str, Any]:
        """Which ranks come through which aggregators, or that this server is one."""
        racks, own = racks_of(view), view.servers[rank].rack
        if own and own not in racks:
            log.warning("server %d is an aggregator of rack %r, which has no workers", rank, own)
        if not own:
            each = ((rack, one) for rack in racks.values() for one in rack.aggregators)
            return {"aggregators": [(rack.name, list(rack.ranks), one.number, one.shards) for rack, one in each]}
        if own not in racks:
            return {}
        least = least_segment(slowest_card(view))
        return {"own": (own, list(racks[own].ranks)), "owners": self._shards(owners_of(view)), "least_segment": least}

    def _shards(self, servers: Iterable[Member]) -> list[tuple[int, int, list[str], int]]:
        """All of theirs, in order: server, shard, addresses, member number."""
        return [
            (server.rank, shard, list(self._reach(server)), server.number)
            for server in servers
            for shard in range(server.shards)
        ]

    def fail(self, error: BytePSLikeError) -> None:
        """Tells all workers of this epoch that the job has failed, and why."""
        self._core.fail(self._epoch, int(error.code), str(error))

    def leave_out(self, ranks: Sequence[int]) -> None:
        """These workers of the view have died. Their links are closed; what only they were to bring isn't waited for,
        or fails the job where it can't do without."""
        for rank in ranks:
            self._core.leave_out(self._epoch, rank)

    def go_on_without(self, servers: Sequence[int]) -> None:
        """These servers of the view are gone. Copies of store keys that were there are made elsewhere."""
        for server in servers:
            self._core.go_on_without(self._epoch, server)

    def hand_over(self, *, sealed: bool) -> None:
        """Other servers of the view get copies of all values that this one keeps, and have the same ever after.
        `sealed`: links to workers are closed until it is called without that, so that nothing changes any more."""
        self._core.hand_over(self._epoch, sealed)

    @property
    def to_hand_over(self) -> int | None:
        """How many keys nobody else has yet, as of the last `hand_over`; None: that isn't known yet."""
        left: int | None = self._core.to_hand_over
        return left

    def shard_stats(self) -> list[dict[str, int]]:
        """Counters of each shard.

        Bytes of `memory`; `keys`, `rounds`, `open_rounds`, `links`; frames and payload each way; bytes `referenced`
        in shared memory, `repeated` after broken links, and of `encoded` contributions that were summed; of an
        aggregator those of sums that have gone on (`relayed_up`), and of their results (`relayed_down`); how many
        of its store keys another server has (`replicated`), how many `copies` of keys of other servers are here, and
        bytes that went to copies elsewhere (`copied`); bytes of values that other shards kept in the world before
        (`moved`).
        """
        return [dict(shard) for shard in self._core.stats()]

    def stats(self) -> dict[str, int]:
        """The same, summed over shards; and who was kept out, having proven nothing."""
        shards = self.shard_stats()
        return {name: sum(shard[name] for shard in shards) for name in shards[0]} | strangers(self._core.entrance())

    def kept(self) -> dict[int, KeptFigures]:
        """What it has counted of the tensors that it keeps, by tensor id."""
        return figures_of(self._core.kept())

    def stop(self) -> None:
        """Closes all links and joins all threads. Idempotent."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._core.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _pump(self) -> None:
        while not self._stopped.is_set():
            event = self._core.next_event(_POLL)
            if event is not None:
                epoch, code, text, fatal = event
                self._on_event(epoch, from_code(code, text), fatal)
