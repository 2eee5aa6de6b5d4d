"""Codecs through a whole job: workers, servers, scheduler. What lands is what the NumPy references say, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from byteps_like.compression.codec import Trait
from byteps_like.compression.registry import CODECS as REGISTRY
from byteps_like.compression.registry import codec_of
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.worker.api import Feedback, TensorSpec
from tests.contract.mixed_job import DEADLINE, MixedJob, native_worker
from tests.fakes.codec_rounds import by_reference

COUNT, PART = 70_001, 64 << 10
CODECS = tuple(kind.name for kind in REGISTRY if kind.trait is not Trait.OPAQUE)


@pytest.fixture(scope="module")
def job() -> Iterator[MixedJob]:
    job = MixedJob([native_worker] * 2, partition_bytes=PART)
    yield job
    job.close()


def gradient(rank: int, number: int) -> Any:
    return np.random.default_rng(100 * number + rank).normal(size=COUNT).astype(np.float32)


def spec_of(name: str, text: str) -> TensorSpec:
    return TensorSpec(f"{name}.{text}", DType.FLOAT32, (COUNT,), codec=text and codec_of(text).spec())


def reduced(worker: Any, text: str, rounds: int) -> tuple[list[Any], Any, Any]:
    """The results of so many rounds with error feedback, the residual, and where the tensor was."""
    (declared,) = worker.declare([spec_of("w", text)])
    residual, results = np.zeros(COUNT, np.float32), []
    worker.compensate(declared, Feedback(residual.ctypes.data))
    for number in range(rounds):
        x = gradient(worker.rank, number)
        worker.push_pull(declared, x.ctypes.data, Op.AVERAGE).wait(DEADLINE)
        results.append(x)
    return results, residual, declared


@pytest.mark.parametrize("text", CODECS)
def test_rounds_are_those_of_the_reference(job: MixedJob, text: str) -> None:
    rounds = 3
    found = job.everybody(lambda worker: reduced(worker, text, rounds))
    codec, declared = codec_of(text), found[0][2]
    residuals = np.zeros((2, COUNT), np.float32)
    for number in range(rounds):
        for part in declared.partitions:
            here = slice(part.offset // 4, (part.offset + part.nbytes) // 4)
            xs = [gradient(rank, number)[here] + residuals[rank][here] for rank in range(2)]
            expected = by_reference(codec, xs, part.key, number, 0.5)
            residuals[:, here] = expected.residuals
            for results, _, _ in found:
                np.testing.assert_array_equal(results[number][here], expected.out)
    for rank, (_, residual, _) in enumerate(found):
        np.testing.assert_array_equal(residual, residuals[rank])


def test_what_was_encoded_is_counted(job: MixedJob) -> None:
    before = [worker.stats() for worker in job.workers]
    declared = job.everybody(lambda worker: reduced(worker, "onebit", 1))[0][2]
    codec = codec_of("onebit")
    payload = sum(16 + codec.plan(part.nbytes // 4, 2).payload for part in declared.partitions)
    for worker, first in zip(job.workers, before, strict=True):
        after = worker.stats()
        assert after["encoded_in"] - first["encoded_in"] == 4 * COUNT
        assert after["encoded_out"] - first["encoded_out"] == payload
        assert after["payload_received"] - first["payload_received"] == payload


def test_ranks_that_name_other_codecs_are_told(job: MixedJob) -> None:
    texts = ["onebit:block=512", "onebit:block=1024"]

    def declare(worker: Any) -> None:
        codec = codec_of(texts[worker.rank]).spec()
        worker.declare([TensorSpec("m", DType.FLOAT32, (8,), codec=codec)])
        worker.barrier()

    own = MixedJob([native_worker] * 2, partition_bytes=PART)
    try:
        with pytest.raises(MismatchError, match=r"by codec onebit:block=.*by codec onebit:block="):
            own.everybody(declare)
    finally:
        own.close()


def test_refusals(job: MixedJob) -> None:
    (worker, _) = job.workers
    with pytest.raises(InvalidArgumentError, match="no codec 'nosuch'"):
        worker.declare([TensorSpec("n", DType.FLOAT32, (8,), codec="nosuch")])
    (raw,) = worker.declare([spec_of("r", "")])
    with pytest.raises(InvalidArgumentError, match="no error for feedback to compensate"):
        worker.compensate(raw, Feedback(64))


def test_a_residual_moves_with_its_tensor() -> None:
    """Of a linear codec all that was given has come back, or is in the residuals; also across a move."""
    text, rounds = "thc", 12
    assert codec_of(text).trait is Trait.WIDENING
    job = MixedJob([native_worker] * 2, partition_bytes=PART)

    def run(worker: Any) -> tuple[Any, Any, bool]:
        (declared,) = worker.declare([spec_of("w", text)])
        residual, total = np.zeros(COUNT, np.float32), np.zeros(COUNT)
        worker.compensate(declared, Feedback(residual.ctypes.data))
        for number in range(rounds):
            x = gradient(worker.rank, number)
            worker.push_pull(declared, x.ctypes.data, Op.SUM).wait(DEADLINE)
            total += x
            if number == 3 and worker.rank == 0:
                worker.replan("test", partition_bytes=16 << 10)
            worker.barrier()
        return total, residual, worker.placed(declared).tensor_id != declared.tensor_id

    try:
        found = job.everybody(run)
    finally:
        job.close()
    given = np.sum([gradient(rank, number) for rank in range(2) for number in range(rounds)], axis=0, dtype=np.float64)
    for total, _, moved in found:
        assert moved
        np.testing.assert_allclose(total + found[0][1] + found[1][1], given, atol=1e-3)
