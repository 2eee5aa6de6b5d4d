"""Processes that run bodies as ranks of one process group after the other."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.multiprocess import warm

BACKEND = os.environ.get("C10D_TEST_BACKEND", "byteps")
"""Another backend's name shows whether a failure is ours."""

DEADLINE = 45.0
IMPORTS = 90.0  # seconds for all processes to import torch on a busy machine
TIMEOUT = timedelta(seconds=15)
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "parallel"


class RanksFailed(AssertionError):
    """What every rank said."""


class C10dPool:
    """`size` processes; a body that fails or hangs takes its processes with it, and the next body gets new ones."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        self._runs = 0
        self._start()

    def run(self, ranks: int, module: str, name: str, *args: Any) -> list[Any]:
        """`name(*args)` of a module beside this one, in a group of `ranks` ranks: results by rank, or RanksFailed."""
        self._runs += 1
        store = str(Path(self._folder.name) / f"store{self._runs}")
        for rank in range(ranks):
            self._pipes[rank].send((rank, ranks, store, module, name, args))
        end = time.monotonic() + DEADLINE
        answers = [self._answer(pipe, end) for pipe in self._pipes[:ranks]]
        failures = [f"--- rank {rank} ---\n{text}" for rank, (ok, text) in enumerate(answers) if not ok]
        if failures:
            self._kill()
            self._start()
            raise RanksFailed("\n".join(failures))
        return [result for _, result in answers]

    def close(self) -> None:
        """Ends the processes."""
        self._kill()
        self._folder.cleanup()

    def _start(self) -> None:
        context = warm.context()
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        end = time.monotonic() + IMPORTS
        for pipe in self._pipes:
            assert pipe.poll(max(end - time.monotonic(), 0)), f"no torch within {IMPORTS:.0f} s"
            pipe.recv()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    @staticmethod
    def _answer(pipe: Connection, end: float) -> tuple[bool, Any]:
        if not pipe.poll(max(end - time.monotonic(), 0)):
            return False, f"no answer within {DEADLINE:.0f} s"
        try:
            answer: tuple[bool, Any] = pipe.recv()
        except EOFError:
            return False, "the process died"
        return answer


def _serve(pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    import byteps_like.torch  # noqa: F401

    sys.path.insert(0, str(EXAMPLES))
    torch.set_num_threads(1)
    pipe.send("ready")
    while True:
        try:
            rank, ranks, store, module, name, args = pipe.recv()
        except EOFError:
            return
        try:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
            dist.init_process_group(
                BACKEND, init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=TIMEOUT
            )
            result = getattr(importlib.import_module(f"{__package__}.{module}"), name)(*args)
            dist.destroy_process_group()
            pipe.send((True, result))
        except BaseException:  # noqa: BLE001 - whatever it is, the test shows it
            pipe.send((False, traceback.format_exc()))
