"""Encoded reduce-scatters: what the ranks of a world of threads get, against the codec's reference for each part."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from byteps_like.collectives.api import CallOptions
from byteps_like.collectives.schedules.chunks import keyed
from byteps_like.compression.codec import Codec, Floats, ReencodeCodec, Trait
from byteps_like.compression.registry import CODECS, codec_of
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.worker.api import Feedback
from byteps_like.worker.collective import CollectiveWorker
from byteps_like.worker.local import LocalWorker
from tests.fakes.codec_rounds import by_reference
from tests.fakes.thread_world import ThreadWorker, ThreadWorld

DEADLINE = 20.0
NAME = "gradients/3"
UNEVEN = {1: (1000,), 2: (1088, 1024), 3: (1024, 0, 1088)}
ROUNDS = 3

ALL = [kind() for kind in CODECS if kind.trait is not Trait.OPAQUE]
each_codec = pytest.mark.parametrize("codec", ALL, ids=lambda codec: codec.name)


def run(size: int, body: Callable[[Any], Any]) -> list[Any]:
    """`body` on every rank, each a thread."""
    if size == 1:
        return [body(LocalWorker())]
    world = ThreadWorld(size)
    workers = [CollectiveWorker(ThreadWorker(world, rank), 1 << 15) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        try:
            return [future.result(DEADLINE) for future in [pool.submit(body, worker) for worker in workers]]
        finally:
            for worker in workers:
                worker.close()


def gradient(rank: int, number: int, count: int) -> Floats:
    return np.random.default_rng(100 * number + rank).standard_normal(count).astype(np.float32)


def scattered(worker: Any, spec: str, op: Op, rounds: int) -> tuple[list[Floats], Floats]:
    """This rank's part in each round, with error feedback, and the residual in the end."""
    counts = UNEVEN[worker.size]
    scatter = worker.coded_scatter(worker.group(NAME), spec)
    residual = np.zeros(sum(counts), np.float32)
    scatter.compensate(Feedback(residual.ctypes.data), residual.size)
    found = []
    for number in range(rounds):
        x, out = gradient(worker.rank, number, sum(counts)), np.zeros(counts[worker.rank], np.float32)
        options = CallOptions(priority=number)
        flight = scatter.reduce_scatter(x.ctypes.data, out.ctypes.data, counts, DType.FLOAT32, op, options)
        came: list[bool] = []
        flight.on_done(lambda came=came: came.append(True))
        flight.wait(DEADLINE)
        found.append(out)
    return found, residual


def expected(codec: Codec, size: int, factor: float) -> tuple[list[list[Floats]], Floats]:
    """By rank, what it gets in each round; the residuals of all ranks."""
    counts, draw = UNEVEN[size], hashlib.blake2b(NAME.encode(), digest_size=8).digest()
    residuals = np.zeros((size, sum(counts)), np.float32)
    results: list[list[Floats]] = [[np.zeros(0, np.float32)] * ROUNDS for _ in range(size)]
    for number in range(ROUNDS):
        for rank, count in enumerate(counts):
            begin = sum(counts[:rank])
            part = slice(begin, begin + count)
            if not count:
                continue
            key = keyed(rank, part.start, part.stop, int.from_bytes(draw, "little") >> 2).key
            xs = [gradient(other, number, sum(counts))[part] + residuals[other][part] for other in range(size)]
            done = by_reference(codec, xs, key, number, factor)
            residuals[:, part] = done.residuals
            results[rank][number] = done.out
            if isinstance(codec, ReencodeCodec):  # whose sums are not encoded again
                sums = sum((codec.decode_one(payload, count, 1.0) for payload in done.payloads), np.float32(0))
                results[rank][number] = np.float32(factor) * sums
    return results, residuals


@each_codec
@pytest.mark.parametrize("size", UNEVEN)
def test_each_rank_gets_the_sum_of_its_part_as_the_reference_has_it(codec: Codec, size: int) -> None:
    wanted, residuals = expected(codec, size, 1.0)
    found = run(size, lambda worker: scattered(worker, codec.spec(), Op.SUM, ROUNDS))
    for rank, (parts, residual) in enumerate(found):
        for ours, theirs in zip(parts, wanted[rank], strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(residual, residuals[rank])


@each_codec
def test_an_average_is_the_sum_over_the_ranks(codec: Codec) -> None:
    wanted, _ = expected(codec, 3, 1 / 3)
    # Floats that travel as such are averaged on the way and rounded then, instead of after the sum.
    precision = {"fp16": 2.0**-10, "bf16": 2.0**-7}.get(codec.name, 1e-6)
    for rank, (parts, _) in enumerate(run(3, lambda worker: scattered(worker, codec.spec(), Op.AVERAGE, ROUNDS))):
        for ours, theirs in zip(parts, wanted[rank], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=precision, atol=1e-6)


def test_the_residual_is_scaled_once() -> None:
    worker = LocalWorker()
    scatter = worker.coded_scatter(worker.group(NAME), codec_of("onebit").spec())
    residual, kept = np.ones(64, np.float32), []
    scatter.compensate(Feedback(residual.ctypes.data), 64)
    scatter.rescale(0.5)
    for _ in range(2):
        x = np.zeros(64, np.float32)
        scatter.reduce_scatter(x.ctypes.data, x.ctypes.data, (64,), DType.FLOAT32, Op.SUM).wait()
        kept.append(residual + x)
    np.testing.assert_allclose(kept, [np.full(64, 0.5), np.zeros(64)], atol=1e-6)


def test_ranks_with_payloads_of_other_sizes_are_told() -> None:
    def body(worker: Any) -> None:
        with pytest.raises(MismatchError):
            scattered(worker, codec_of("int8" if worker.rank else "onebit").spec(), Op.SUM, 1)

    run(2, body)


def test_a_codec_that_there_isn_t_is_refused() -> None:
    worker = LocalWorker()
    with pytest.raises(InvalidArgumentError, match="there is no codec 'thunder'"):
        worker.coded_scatter(worker.group(NAME), "thunder")
