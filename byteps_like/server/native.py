"""The native summation server, with its events on a Python thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import byteps_like._core as _core
from byteps_like.control.types import View
from byteps_like.errors import BytePSLikeError, from_code
from byteps_like.server.figures import KeptFigures, figures_of

ServerEvent = Callable[[BytePSLikeError, bool], None]
"""Called with what a shard noticed (a stall, ranks that disagree, a budget used up) and whether it ends the job."""

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
        on_event: ServerEvent,
    ) -> None:
        self._core = _core.Server(job, secret, list(urls), shards, memory_limit, segment_bytes, kernel_queue_bytes)
        self._on_event = on_event
        self._stopped = threading.Event()
        self.shards = shards
        self._thread = threading.Thread(target=self._pump, name="byteps_like-server-events", daemon=True)
        self._thread.start()

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses as bound, in the order given."""
        return tuple(self._core.urls)

    def set_view(self, view: View, rank: int, stall_warning: float, stall_timeout: float) -> None:
        """Forgets all keys and links and serves this view as server `rank`. Times in seconds."""
        workers, own = [member.number for member in view.workers], view.servers[rank].number
        self._core.set_world(view.incarnation, view.number, workers, own, stall_warning, stall_timeout, rank)

    def fail(self, error: BytePSLikeError) -> None:
        """Tells all workers of this epoch that the job has failed, and why."""
        self._core.fail(int(error.code), str(error))

    def shard_stats(self) -> list[dict[str, int]]:
        """Counters of each shard.

        Bytes of `memory`; `keys`, `rounds`, `open_rounds`, `links`; frames and payload each way; bytes `referenced`
        in shared memory, `repeated` after broken links, and of `encoded` contributions that were summed.
        """
        return [dict(shard) for shard in self._core.stats()]

    def stats(self) -> dict[str, int]:
        """The same, summed over shards."""
        shards = self.shard_stats()
        return {name: sum(shard[name] for shard in shards) for name in shards[0]}

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
                code, text, fatal = event
                self._on_event(from_code(code, text), fatal)
