"""torchft over byteps_like: the process group that a torchft Manager makes anew whenever replica groups come or go.

    from byteps_like.torchft import ProcessGroupByteps

    manager = torchft.Manager(pg=ProcessGroupByteps(timeout=timedelta(seconds=10)), ...)

Needs torchft: `pip install byteps_like[torchft]`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from byteps_like.errors import ShutdownError
from byteps_like.torch.c10d.backend import create_process_group
from byteps_like.torch.c10d.options import GroupOptions

_TIMEOUT = timedelta(seconds=60)


class PlainWork(dist.Work):
    """A call in flight whose future runs callbacks as torch's do: at once, where it has ended.

    Those of the backend run in order on a thread of their own, while torchft's Manager adds the next one to the chain.
    """

    def __init__(self, work: Any) -> None:
        super().__init__()
        self._work = work
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Blocks until it has ended. Raises what it failed with."""
        return bool(self._work.wait(timeout))

    def synchronize(self) -> None:
        """As `wait`; on a GPU streams wait."""
        self._work.synchronize()

    def block_current_stream(self) -> None:
        """What is queued after this call comes after it."""
        self._work.block_current_stream()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return bool(self._work.is_success())

    def exception(self) -> Any:
        """What it failed with, once it has ended."""
        return self._work.exception()

    def result(self) -> Any:
        """The tensors that hold the result."""
        return self._work.result()

    def source_rank(self) -> int:
        """Whose message a receive from anybody got."""
        return int(self._work.source_rank())

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """Of the result, or of the error; the same one each time."""
        if self._future is None:
            self._future = torch.futures.Future()
            if self._work.is_completed():
                self._complete(self._future)
            else:
                self._work.get_future().add_done_callback(lambda _: self._complete(self._future))
        return self._future

    def _complete(self, future: Any) -> None:
        error = self._work.exception()
        if error is None:
            self._work.synchronize()
            future.set_result(self._work.result())
        else:
            future.set_exception(error)


class ProcessGroupByteps(ProcessGroupWrapper):  # type: ignore[misc]
    """A torchft ProcessGroup. Each `configure` begins a world, with links of its own, and aborts the one before.

    All calls are those of the backend "byteps" (docs/how-to/c10d.md): when a member dies, whoever waits for it gets a
    PeerLostError within two seconds, by the future, too. Tensors on a GPU go through host memory, or by
    `options.inner`.
    """

    _pg: Any
    """The world's; None between two."""

    def __init__(self, timeout: timedelta = _TIMEOUT, options: GroupOptions | None = None) -> None:
        """`timeout`: for members to come when a world begins, and of each call. `options`: as for `pg_options`."""
        super().__init__(timeout)
        self._options = options
        self._error: Exception | None = None

    def getBackendName(self) -> str:
        """ "torchft-byteps"."""
        return "torchft-byteps"

    def configure(self, store_addr: str, replica_id: str, rank: int, world_size: int, *more: Any, **named: Any) -> None:
        """Begins the world of `world_size` ranks that meet at `store_addr`, host:port/prefix, as `rank`. Blocks.

        Calls in flight in the world before raise ShutdownError. Raises DeadlineError, which names the missing ranks;
        then, and until the next `configure`, there is no world.
        """
        super().configure(store_addr, replica_id, rank, world_size, *more, **named)
        self._error = None

    def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
        name = f"torchft/{self._quorum_id}"
        return create_process_group(
            store, rank, world_size, timeout=self._timeout, options=self._options, name=name
        )  # fmt: skip

    def _wrap_work(self, work: Any, opts: object) -> PlainWork:  # noqa: ARG002 - torchft's
        return PlainWork(work)

    def abort(self, errored: bool = True) -> None:
        """Ends the world: calls in flight raise ShutdownError at once, on any thread. Until the next `configure`,
        `errored()` says so, if this is for an error."""
        if errored:
            self._error = ShutdownError("the process group was aborted", operation="abort")
        super().abort(errored)

    def shutdown(self) -> None:
        """Leaves the world in order. Idempotent."""
        group, self._pg = self._pg, None
        if group is not None:
            group.shutdown()

    def errored(self) -> Exception | None:
        """Why it must be configured anew: it was aborted. Else None: calls say themselves what they failed with."""
        return self._error

    def set_timeout(self, timeout: timedelta) -> None:
        """Of the next world, and of calls from here on."""
        super().set_timeout(timeout)
        group = self._pg
        if group is not None:
            group.set_timeout(timeout)
