"""The one background thread of a process's control plane: an asyncio loop for client, scheduler and admin service."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import grpc.aio

from byteps_like.errors import InvalidArgumentError, NotInitializedError

T = TypeVar("T")
_STOP_SECONDS = 2.0


class ControlLoop:
    """An event loop on a daemon thread. Its methods are thread-safe."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="byteps-like-control", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts `work` on the loop. Raises NotInitializedError in a forked child, which has no such thread."""
        self._check_process(work)
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; blocks without the GIL. `work` must bound itself. Not from the loop's own thread."""
        if self.is_current():
            work.close()
            raise InvalidArgumentError("a blocking call of the control plane was made from its own event callback")
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while waiting: the work is not wanted any more
            raise

    def is_current(self) -> bool:
        """True on the loop's own thread, where callbacks run."""
        return threading.current_thread() is self._thread

    def _check_process(self, work: Coroutine[Any, Any, Any]) -> None:
        if os.getpid() != self._pid:
            work.close()
            raise NotInitializedError(
                f"process {os.getpid()} was forked from {self._pid} and has no control plane: call init() in it,"
                " or start it by spawn"
            )

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        aio: Any = grpc.aio  # grpc-stubs lack it
        aio.init_grpc_aio()  # keeps gRPC's poller from going, and being missed, with every last channel
        self.loop.run_forever()

    def _stop(self) -> None:
        if os.getpid() != self._pid or not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._drain(), self.loop)
        self._thread.join(_STOP_SECONDS)

    async def _drain(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_STOP_SECONDS / 2) if tasks else None
        self.loop.stop()


_shared: ControlLoop | None = None
_lock = threading.Lock()


def control_loop() -> ControlLoop:
    """This process's loop, started on first use; a forked child gets its own."""
    global _shared
    with _lock:
        if _shared is None or _shared._pid != os.getpid():
            _shared = ControlLoop()
        return _shared
