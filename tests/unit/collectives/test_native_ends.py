"""Operations of the native core that are ended before they are over keep nothing of Python's: the thread that lets go
of them would wait for the interpreter's lock, and for ever once the interpreter is ending."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from byteps_like import _core
from byteps_like.collectives.communicator import Communicator
from byteps_like.config import Config
from byteps_like.dtypes import DType, Op
from byteps_like.errors import Code, ShutdownError

SECRET, INCARNATION = bytes(range(32)), bytes(16)
DEADLINE = 20.0


@pytest.fixture
def engine() -> Iterator[_core.Engine]:
    """Rank 0 of two, of which the other doesn't come."""
    server = _core.Server("ends", SECRET, ["tcp://127.0.0.1:0"])
    server.set_world(INCARNATION, 1, [1, 3], 2, 5.0, DEADLINE)
    shards = [(0, 0, server.urls, 2)]
    one = _core.Engine("ends", SECRET, INCARNATION, 1, 0, 1, 2, shards, 1 << 16, 1 << 20, 5.0, 5.0, DEADLINE)
    yield one
    one.close()
    server.stop()


def test_round_that_is_given_up(engine: _core.Engine) -> None:
    values = np.ones(4, np.float32)
    tensor = engine.declare(int(DType.FLOAT32), [(1, 0, values.nbytes, 0)])
    operation = engine.submit(tensor, values.ctypes.data, 0, 1, int(Op.SUM), 0, 0)
    before = sys.getrefcount(operation)
    engine.give_up(operation, int(Code.CLOSED), "nobody else comes")
    assert sys.getrefcount(operation) == before
    with pytest.raises(ShutdownError, match="nobody else comes"):
        engine.wait(operation, DEADLINE)


@pytest.fixture
def communicator() -> Iterator[Communicator]:
    """Likewise, over links."""
    config = Config.from_env({}, transport="tcp", host="127.0.0.1")
    ranks = [Communicator(config, "ends", SECRET) for _ in range(2)]
    for number, one in enumerate(ranks):
        one.own = replace(one.own, host_id=f"host {number}")
    for number, one in enumerate(ranks):
        one.join(1, number, [each.own for each in ranks])
    yield ranks[0]
    for one in ranks:
        one.close()


def test_collective_that_is_cancelled(communicator: Communicator) -> None:
    call = communicator.group("all").barrier()
    completion = call._completion  # type: ignore[attr-defined]
    before = sys.getrefcount(completion)
    call.give_up(ShutdownError("nobody else comes"))
    assert sys.getrefcount(completion) == before
    with pytest.raises(ShutdownError, match="nobody else comes"):
        call.wait(DEADLINE)
