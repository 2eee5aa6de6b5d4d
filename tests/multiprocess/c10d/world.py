"""c10d worlds of processes: init_process_group("byteps") around each body.

The setting `store` of a run makes the store that ranks are given from the pool's.
"""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist

from tests.multiprocess import warm
from tests.multiprocess.real_world import DEADLINE

TIMEOUT = 20.0


class GroupPool:
    """`size` processes, and a store at which they meet as ranks of one world after the other."""

    def __init__(self, size: int) -> None:
        context = warm.context()
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._worlds = 0
        self._pipes: list[Connection] = []
        self.processes = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, self._store.port), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def run(self, size: int, body: Callable[..., Any], *args: Any, **settings: Any) -> list[Any]:
        """`body(group, rank, size, *args)` on every rank: the results, or an AssertionError with all that failed."""
        answers = self.answers(size, body, *args, **settings)
        failures = [f"--- rank {rank} ---\n{text}" for rank, (ok, text) in enumerate(answers) if not ok]
        assert not failures, "\n".join(failures)
        return [result for _, result in answers]

    def answers(self, size: int, body: Callable[..., Any], *args: Any, **settings: Any) -> list[tuple[bool, Any]]:
        """The same, with whatever became of each rank: (True, result) or (False, traceback)."""
        self._worlds += 1
        for rank in range(size):
            place = (f"world {self._worlds}", rank, size, settings)
            self._pipes[rank].send((place, body.__module__, body.__qualname__, args))
        return [self._answer(rank) for rank in range(size)]

    def _answer(self, rank: int) -> tuple[bool, Any]:
        if not self._pipes[rank].poll(DEADLINE):
            return False, f"no answer within {DEADLINE:.0f} s"
        try:
            answer: tuple[bool, Any] = self._pipes[rank].recv()
        except EOFError:
            return False, "the process died"
        return answer

    def close(self) -> None:
        """Ends the processes."""
        for process in self.processes:
            process.kill()
            process.join()


def _serve(pipe: Connection, port: int) -> None:
    import torch

    import byteps_like.torch

    assert byteps_like.torch
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    while True:
        try:
            place, module, name, args = pipe.recv()
        except EOFError:
            return
        try:
            body = getattr(importlib.import_module(module), name)
            pipe.send((True, _in_world(store, place, body, args)))
        except BaseException:  # noqa: BLE001 - whatever it is, the test shows it
            pipe.send((False, traceback.format_exc()))


def _same(store: Any) -> Any:
    return store


def _in_world(store: Any, place: tuple[str, int, int, dict[str, Any]], body: Callable[..., Any], args: Any) -> Any:
    prefix, rank, size, settings = place
    before = dict(os.environ)
    os.environ.update(settings.get("environment", {}))
    dist.init_process_group(
        settings.get("backend", "byteps"),
        store=settings.get("store", _same)(dist.PrefixStore(prefix, store)),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=settings.get("timeout", TIMEOUT)),
        pg_options=settings.get("options"),
    )
    try:
        return body(dist.distributed_c10d._get_default_group(), rank, size, *args)
    finally:
        dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(before)
