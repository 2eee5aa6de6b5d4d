"""The NumPy functions of byteps_like.portable in a world of one, and what they refuse."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import byteps_like.portable as bps
from byteps_like.config import Config
from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError, NotInitializedError
from byteps_like.portable.session import dtype_of


@pytest.fixture
def alone():
    bps.init(Config())
    yield
    bps.shutdown()


def test_alone_everything_is_ones_own(alone):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2]
    result = bps.push_pull(array)
    assert (result == array).all()
    assert result.dtype == array.dtype
    assert not np.shares_memory(result, array)
    assert (bps.broadcast([1, 2]) == [1, 2]).all()
    bps.barrier()
    assert (bps.rank(), bps.size(), bps.local_rank(), bps.local_size()) == (0, 1, 0, 1)
    assert bps.stats()["payload_sent"] == 0


def test_init_and_shutdown_are_idempotent(alone):
    bps.init(Config())
    assert bps.initialized()
    bps.shutdown()
    bps.shutdown()
    assert not bps.initialized()
    with pytest.raises(NotInitializedError):
        bps.rank()


def test_dtypes():
    for name in ("float16", "float64", "int8", "uint16", "int32", "uint64", "bool", "complex64", "complex128"):
        assert dtype_of(np.zeros(1, name)) == DType[name.upper()]
    for name in ("U3", "M8[s]", ">f4", "O", "longdouble"):
        with pytest.raises(InvalidArgumentError, match="can't be sent"):
            dtype_of(np.zeros(1, name))


def test_booleans_have_no_average(alone):
    with pytest.raises(InvalidArgumentError, match="'or'"):
        bps.push_pull(np.array([True]))
    assert bps.push_pull(np.array([True, False]), average=False).tolist() == [True, False]


@pytest.mark.processes
def test_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import byteps_like.portable as bps; bps.init(); assert bps.push_pull([1.0]).tolist() == [1.0]"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS", "DMLC"))}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)
