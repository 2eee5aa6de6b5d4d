"""A forked child inherits an engine and a server without their threads: it may drop them, and can't use them."""

from __future__ import annotations

import gc
import os
import time

import numpy as np
import pytest

from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError

core = pytest.importorskip("byteps_like._core")
pytest.importorskip("byteps_like.control")  # which looks after forks

SECRET = b"s" * 32


def start() -> tuple[object, object]:
    server = core.Server("fork", SECRET, [f"shm://fork-{os.getpid()}"])
    server.set_world(bytes(16), 1, [1], 2, 5.0, 20.0)
    engine = core.Engine(
        job="fork",
        secret=SECRET,
        incarnation=bytes(16),
        epoch=1,
        rank=0,
        member=1,
        world_size=1,
        shards=[(0, 0, list(server.urls), 2)],
        segment_bytes=1 << 18,
        credit_bytes=1 << 22,
        connect_timeout=5.0,
        stall_warning=5.0,
        stall_timeout=20.0,
    )
    engine.declare(int(DType.FLOAT32), [(7, 0, 400, 0)])
    return server, engine


def exit_code(pid: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return None


def in_the_child(server: object, engine: object) -> int:
    try:
        engine.submit(0, 0, 0, 1, int(Op.SUM), 0, 0)  # type: ignore[attr-defined]
    except InvalidArgumentError:
        engine.close()  # type: ignore[attr-defined]
        return 0
    return 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_drops_what_it_inherits_and_the_parent_goes_on() -> None:
    server, engine = start()
    pid = os.fork()
    if pid == 0:
        code = in_the_child(server, engine)
        del server, engine
        os._exit(code)
    assert exit_code(pid, 10) == 0
    values = np.arange(100, dtype=np.float32)
    operation = engine.submit(0, values.ctypes.data, 0, 1, int(Op.SUM), 0, 0)  # type: ignore[attr-defined]
    assert engine.wait(operation, 5.0)  # type: ignore[attr-defined]
    assert values[99] == 99
    engine.close()  # type: ignore[attr-defined]
    server.stop()  # type: ignore[attr-defined]


def test_a_forked_child_takes_no_inherited_garbage_apart() -> None:
    """What owns threads or connections may be garbage of the parent; the child has none of the threads."""

    class Cycle:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            if os.getpid() != parent:
                os._exit(3)

    parent = os.getpid()
    gc.disable()
    try:
        Cycle()
        child = os.fork()
        if child == 0:
            gc.collect()
            os._exit(0)
    finally:
        gc.enable()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
