"""Portable workers that push to and read values that native servers keep: each policy, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from mixed_job import DEADLINE, MixedJob

from byteps_like.dtypes import DType
from byteps_like.portable.join import join
from byteps_like.wire.note import Applied, Note
from byteps_like.worker.api import TensorSpec
from byteps_like.worker.keeping import Keeps, KeepSpec, KeptTensor, Outcome

RANKS = 3
PIECE = 20_000
"""Bytes of a partition: several of each tensor, on four shards of two servers."""


@pytest.fixture(scope="module")
def job() -> Iterator[MixedJob]:
    made = MixedJob(makers=[join] * RANKS)
    yield made
    made.close()


class Kept:
    """A tensor that servers keep, with the arrays of one rank."""

    def __init__(self, worker: Any, name: str, first: np.ndarray, spec: KeepSpec) -> None:
        assert isinstance(worker, Keeps)
        self.rank = worker.rank
        given = TensorSpec(name, DType[first.dtype.name.upper()], first.shape, partition_bytes=PIECE)
        (declared,) = worker.declare([given])
        initial = first.ctypes.data if spec.root == worker.rank else 0
        self.tensor: KeptTensor = worker.keep(declared, spec, initial)
        self.like = first

    def push(self, array: np.ndarray, **note: Any) -> list[Outcome]:
        handle = self.tensor.push(array.ctypes.data, Note(**note))
        handle.wait(DEADLINE)
        return list(handle.outcomes())

    def pull(self, least: int = 0) -> tuple[np.ndarray, list[int]]:
        value = np.empty_like(self.like)
        handle = self.tensor.pull(value.ctypes.data, least=least)
        handle.wait(DEADLINE)
        return value, [outcome.version for outcome in handle.outcomes()]


def drawn(seed: int, count: int, dtype: str) -> np.ndarray:
    draw = np.random.default_rng([seed, count])
    return draw.integers(-1000, 1000, count) if dtype == "int64" else draw.standard_normal(count).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("count", [1, 7, 20_001])
def test_bsp_makes_a_version_of_all_ranks(job, dtype, count):
    spec = KeepSpec("bsp", "sum:age=none,damp=none", "add", root=1)
    name = f"bsp {dtype} {count}"
    first = drawn(99, count, dtype)

    def train(worker):
        kept = Kept(worker, name, first, spec)
        seen = [kept.pull()]
        for step in range(3):
            assert {each.applied for each in kept.push(drawn(10 * step + worker.rank, count, dtype), base=step)} == {
                Applied.COUNTED
            }
            seen.append(kept.pull())
        return seen

    expected, versions = [first], 4
    for step in range(3):
        expected.append(expected[-1] + sum(drawn(10 * step + rank, count, dtype) for rank in range(RANKS)))
    for seen in job.everybody(train):
        for version in range(versions):
            value, told = seen[version]
            assert set(told) == {version}
            np.testing.assert_allclose(value, expected[version], rtol=1e-4, atol=1e-4)
