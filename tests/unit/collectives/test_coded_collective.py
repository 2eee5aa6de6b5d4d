"""Codecs over collectives: what a world of threads gets, against the reference's round of each chunk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from byteps_like.collectives.schedules.chunks import cut
from byteps_like.compression.codec import Codec, Floats, Trait
from byteps_like.compression.registry import CODECS, codec_of
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.worker.api import Declared, Feedback, TensorSpec
from byteps_like.worker.collective import CollectiveWorker
from tests.fakes.codec_rounds import by_reference
from tests.fakes.thread_world import ThreadWorker, ThreadWorld

DEADLINE = 20.0
PARTITION = 1 << 15  # bytes
NUMEL = 20001  # two partitions of 8192 elements, and what is left

ALL = [kind() for kind in CODECS if kind.trait is not Trait.OPAQUE]
each_codec = pytest.mark.parametrize("codec", ALL, ids=lambda codec: codec.name)


def run(size: int, body: Callable[[CollectiveWorker], Any], per_host: int = 1) -> list[Any]:
    """`body` on every rank, each a thread."""
    world = ThreadWorld(size)
    world.groups.per_host = per_host
    workers = [CollectiveWorker(ThreadWorker(world, rank), PARTITION) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        try:
            return [future.result(DEADLINE) for future in [pool.submit(body, worker) for worker in workers]]
        finally:
            for worker in workers:
                worker.close()


def declared(worker: CollectiveWorker, codec: str, numel: int = NUMEL) -> Declared:
    return worker.declare([TensorSpec("gradient", DType.FLOAT32, (numel,), codec=codec)])[0]


def gradients(size: int, number: int = 0) -> list[Floats]:
    random = np.random.default_rng(number)
    return [random.standard_normal(NUMEL).astype(np.float32) for _ in range(size)]


def key_of(offset: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"gradient/{offset}".encode(), digest_size=8).digest(), "little") >> 2


def expected(codec: Codec, xs: list[Floats], number: int, op: Op) -> Floats:
    """Chunk by chunk."""
    out = np.empty(NUMEL, np.float32)
    for offset in range(0, 4 * NUMEL, PARTITION):
        part = slice(offset // 4, min(NUMEL, (offset + PARTITION) // 4))
        dense = codec.trait is Trait.DENSE
        for chunk in cut(part.stop - part.start, 1 if dense else len(xs), key_of(offset)):
            where = slice(part.start + chunk.begin, part.start + chunk.end)
            factor = 1 / len(xs) if op is Op.AVERAGE else 1.0
            out[where] = by_reference(codec, [x[where].copy() for x in xs], chunk.key, number, factor).out
    return out


@each_codec
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_sum_is_the_reference_s_chunk_by_chunk(codec: Codec, size: int) -> None:
    def body(worker: CollectiveWorker) -> list[Floats]:
        tensor = declared(worker, codec.spec())
        found = []
        for number in range(2):
            x = gradients(size, number)[worker.rank]
            worker.push_pull(tensor, x.ctypes.data, Op.SUM).wait(DEADLINE)
            found.append(x)
        return found

    results = run(size, body)
    for number in range(2):
        wanted = expected(codec, gradients(size, number), number, Op.SUM)
        for found in results:
            np.testing.assert_array_equal(found[number], wanted)


@each_codec
def test_an_average_is_the_sum_over_the_ranks(codec: Codec) -> None:
    def body(worker: CollectiveWorker) -> Floats:
        x = gradients(3)[worker.rank]
        worker.push_pull(declared(worker, codec.spec()), x.ctypes.data, Op.AVERAGE).wait(DEADLINE)
        return x

    results = run(3, body)
    wanted = expected(codec, gradients(3), 0, Op.AVERAGE)
    for found in results:
        # Floats that travel as such are averaged on the way and rounded then, instead of after the sum.
        precision = {"fp16": 2.0**-10, "bf16": 2.0**-7}.get(codec.name, 1e-6)
        np.testing.assert_allclose(found, wanted, rtol=precision, atol=1e-6)
        np.testing.assert_array_equal(found, results[0])


def test_feedback_on_both_sides_telescopes() -> None:
    """What came out over all rounds, and what both sides keep of it, is what went in."""
    rounds = 20

    def body(worker: CollectiveWorker) -> tuple[Floats, Floats, float]:
        tensor = declared(worker, "twoway " + codec_of("onebit").spec())
        residual, total = np.zeros(NUMEL, np.float32), np.zeros(NUMEL)
        worker.compensate(tensor, Feedback(residual=residual.ctypes.data))
        for number in range(rounds):
            x = gradients(2, number)[worker.rank]
            worker.push_pull(tensor, x.ctypes.data, Op.SUM).wait(DEADLINE)
            total += x
        kept = [partition._kept for partition in worker._coded._partitions.values()]
        return total, residual, float(sum(part.sum(dtype=np.float64) for part in kept))

    results = run(2, body)
    went_in = sum(np.sum(gradients(2, number), axis=0, dtype=np.float64) for number in range(rounds))
    left = went_in - results[0][0] - sum(residual.astype(np.float64) for _, residual, _ in results)
    assert np.linalg.norm(left) > 0.1 * np.linalg.norm(
        went_in
    )  # the second encoding has lost something, but not for ever
    np.testing.assert_allclose(left.sum(), sum(kept for _, _, kept in results), rtol=1e-4)


def test_the_residual_is_scaled_once() -> None:
    def body(worker: CollectiveWorker) -> list[Floats]:
        tensor = declared(worker, codec_of("onebit").spec())
        residual = np.ones(NUMEL, np.float32)
        worker.compensate(tensor, Feedback(residual=residual.ctypes.data))
        worker.rescale(tensor, 0.5)
        kept = []
        for _ in range(2):
            x = np.zeros(NUMEL, np.float32)
            worker.push_pull(tensor, x.ctypes.data, Op.SUM).wait(DEADLINE)
            kept.append(residual + x)
        return kept

    ((first, second),) = run(1, body)
    np.testing.assert_allclose(first, np.full(NUMEL, 0.5), rtol=1e-6)
    np.testing.assert_allclose(second, np.zeros(NUMEL), atol=1e-6)


def test_ranks_with_different_codecs_are_told() -> None:
    def body(worker: CollectiveWorker) -> None:
        tensor = declared(worker, codec_of("onebit").spec() if worker.rank else codec_of("onebit:block=64").spec())
        x = np.zeros(NUMEL, np.float32)
        with pytest.raises(MismatchError, match="onebit:block=64"):
            worker.push_pull(tensor, x.ctypes.data, Op.SUM).wait(DEADLINE)

    run(2, body)


def test_what_can_t_be_summed_encoded_is_refused() -> None:
    def body(worker: CollectiveWorker) -> None:
        with pytest.raises(InvalidArgumentError, match="there is no codec 'thunder'"):
            declared(worker, "thunder")
        x = np.zeros(NUMEL, np.float32)
        with pytest.raises(InvalidArgumentError, match="can be summed, averaged and broadcast"):
            worker.push_pull(declared(worker, codec_of("onebit").spec()), x.ctypes.data, Op.MAX)

    run(1, body)


@pytest.mark.parametrize(
    "codec", [codec for codec in ALL if codec.trait is not Trait.DENSE], ids=lambda codec: codec.name
)
def test_between_hosts_only_the_sums_of_hosts_are_encoded(codec: Codec) -> None:
    """Two hosts with two ranks each: each rank has one of two slices, exchanged with its like on the other host."""

    def body(worker: CollectiveWorker) -> Floats:
        x = gradients(4)[worker.rank]
        worker.push_pull(declared(worker, codec.spec()), x.ctypes.data, Op.AVERAGE).wait(DEADLINE)
        return x

    xs = gradients(4)
    hosts = [xs[0] + xs[1], xs[2] + xs[3]]
    wanted = np.empty(NUMEL, np.float32)
    for offset in range(0, 4 * NUMEL, PARTITION):
        part = slice(offset // 4, min(NUMEL, (offset + PARTITION) // 4))
        for own in cut(part.stop - part.start, 2, key_of(offset)):
            for chunk in cut(own.numel, 2, own.key):
                begin = part.start + own.begin + chunk.begin
                where = slice(begin, begin + chunk.numel)
                wanted[where] = by_reference(codec, [x[where].copy() for x in hosts], chunk.key, 0).out / np.float32(4)
    for found in run(4, body, per_host=2):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
