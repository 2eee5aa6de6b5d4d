"""Native and portable workers in one job, against native servers: same sums, same bytes, same errors."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from cutting_proxy import CuttingProxy
from mixed_job import DEADLINE, MixedJob, native_worker, portable_through, reduce

from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError, MismatchError, PeerLostError
from byteps_like.portable.join import join
from byteps_like.portable.worker import PortableWorker
from byteps_like.worker.api import Places


@pytest.fixture(scope="module")
def job() -> Iterator[MixedJob]:
    made = MixedJob()
    yield made
    made.close()


def contribution(rank: int, count: int, dtype: str) -> np.ndarray:
    low, high = (0, 30) if dtype == "uint8" else (-30, 30)
    return np.random.default_rng([rank, count]).integers(low, high, count).astype(dtype)


def test_two_kinds_of_workers_are_in(job):
    assert [isinstance(worker, PortableWorker) for worker in job.workers] == [False, False, True, True]
    assert [worker.rank for worker in job.workers] == [0, 1, 2, 3]
    assert [worker.local_size for worker in job.workers] == [4] * 4
    native = [worker for worker in job.workers if not isinstance(worker, PortableWorker)]
    assert [worker.places() for worker in native] == [Places(hosts=1, servers=2, encode=False)] * 2


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("count", [1, 5, 100_003])
def test_sums_of_integers_are_exact(job, dtype, count):
    """Values small enough that every order of summation is exact in every type."""
    expected = sum(contribution(rank, count, dtype).astype(np.int64) for rank in range(4))
    for turn in range(2):
        results = job.everybody(lambda w: reduce(w, f"sum {dtype} {count}", contribution(w.rank, count, dtype), Op.SUM))
        for rank, result in enumerate(results):
            assert result.dtype == dtype
            assert (result.astype(np.int64) == expected).all(), f"rank {rank}, round {turn}"


@pytest.mark.parametrize(("op", "reference"), [(Op.MIN, np.min), (Op.MAX, np.max), (Op.PRODUCT, np.prod)])
def test_other_operations(job, op, reference):
    arrays = [contribution(rank, 1000, "int64") for rank in range(4)]
    results = job.everybody(lambda w: reduce(w, f"op {op.name}", arrays[w.rank], op))
    for result in results:
        assert (result == reference(arrays, axis=0)).all()


def test_averages_and_bits_are_the_same_on_all_ranks(job):
    arrays = [np.random.default_rng(rank).normal(size=3_000_000).astype(np.float32) for rank in range(4)]
    results = job.everybody(lambda w: reduce(w, "average", arrays[w.rank], Op.AVERAGE))
    np.testing.assert_allclose(results[0], np.mean(arrays, axis=0, dtype=np.float64), rtol=0, atol=1e-6)
    for result in results[1:]:
        assert result.tobytes() == results[0].tobytes()


def test_bfloat16_is_summed_in_float32_and_rounded_once(job):
    """1 + 3 * 2^-8: each addend alone would be rounded away in bfloat16; their sum is not."""
    values = np.array([1.0, 2**-8, 2**-8, 2**-8], np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    results = job.everybody(
        lambda w: reduce(w, "bf16", np.full(777, bits[w.rank], np.uint16), Op.SUM, dtype=DType.BFLOAT16)
    )
    expected = np.float32(1 + 2**-7 + 2**-8)  # rounds to even: 1 + 2^-6
    for result in results:
        widened = (result.astype(np.uint32) << 16).view(np.float32)
        assert (abs(widened - expected) <= 2**-8).all()
        assert (widened == np.float32(1 + 2**-6)).all()


@pytest.mark.parametrize("root", [0, 3])
def test_broadcast_from_either_kind(job, root):
    results = job.everybody(
        lambda w: reduce(w, f"from {root}", np.full(300_000, w.rank, np.int32), Op.BROADCAST, root=root)
    )
    for result in results:
        assert (result == root).all()


def test_many_small_tensors(job):
    def call(worker):
        return [reduce(worker, f"small {n}", np.full(n % 7, worker.rank + n), Op.SUM) for n in range(60)]

    for results in job.everybody(call):
        for n, result in enumerate(results):
            assert result.tolist() == [6 + 4 * n] * (n % 7)


def test_barrier_holds_all_kinds(job):
    job.everybody(lambda worker: worker.barrier(DEADLINE))


def fails(call) -> BytePSLikeError:
    try:
        call()
    except BytePSLikeError as error:
        return error
    raise AssertionError("did not fail")


def test_after_an_error_all_can_begin_again():
    job = MixedJob()
    try:
        job.everybody(lambda w: fails(lambda: reduce(w, "x", np.zeros(10 + w.rank), Op.SUM)))
        job.everybody(lambda w: w.close())
        job.start()
        for result in job.everybody(lambda w: reduce(w, "x", np.full(10, w.rank), Op.SUM)):
            assert (result == 6).all()
    finally:
        job.close()


@pytest.mark.parametrize("odd", [0, 3])
@pytest.mark.parametrize("what", ["shape", "operation"])
def test_a_mismatch_reaches_all_by_name(odd, what):
    """The odd one out is a native worker (0) or a portable one (3)."""
    job = MixedJob()
    try:
        count, op = (11, Op.SUM) if what == "shape" else (10, Op.MAX)

        def call(worker):
            odd_one = worker.rank == odd
            return fails(lambda: reduce(worker, "x", np.zeros(count if odd_one else 10), op if odd_one else Op.SUM))

        errors = job.everybody(call)
    finally:
        job.close()
    for rank, error in enumerate(errors):
        assert isinstance(error, MismatchError), (rank, error)
        assert "'x'" in str(error), (rank, error)
        assert f"{odd}" in str(error), (rank, error)


@pytest.mark.parametrize("seed", range(3))
def test_cut_connections_cost_nothing(seed):
    """The portable worker's TCP connections are cut at any byte, handshakes included; the sums stay exact."""
    proxies: list[CuttingProxy] = []

    def through(url: str) -> str:
        proxies.append(CuttingProxy(url, seed, cuts=8, most_bytes=2_000_000))
        return proxies[-1].url

    job = MixedJob(makers=[native_worker, lambda config: portable_through(config, through)])
    try:
        for turn in range(4):
            arrays = [np.random.default_rng([seed, turn, rank]).integers(-1000, 1000, 600_000) for rank in range(2)]
            for result in job.everybody(lambda w, own=arrays: reduce(w, "x", own[w.rank], Op.SUM)):
                assert (result == arrays[0] + arrays[1]).all(), f"round {turn}"
        assert sum(proxy.cuts_left for proxy in proxies) < 8
    finally:
        job.close()
        for proxy in proxies:
            proxy.close()


KILLED = """
import os, sys
import numpy as np
import byteps_like.portable as bps
bps.init()
bps.push_pull(np.zeros(10), name="before")
print("in", flush=True)
sys.stdin.read()
"""


def test_kill_9_of_a_portable_worker_is_named_on_the_others():
    job = MixedJob(makers=[native_worker, join], others=1)
    own = subprocess.Popen(
        [sys.executable, "-c", KILLED], env=job.environment(2), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        job.start()
        job.everybody(lambda w: reduce(w, "before", np.zeros(10), Op.AVERAGE))
        assert own.stdout is not None
        assert own.stdout.readline() == "in\n"
        own.kill()
        began = time.monotonic()
        errors = job.everybody(lambda w: fails(lambda: reduce(w, "after", np.zeros(10), Op.SUM)))
        elapsed = time.monotonic() - began
    finally:
        own.kill()
        own.wait(DEADLINE)
        job.close()
    for error in errors:
        assert isinstance(error, PeerLostError), error
        assert "worker 2" in str(error), error
        assert str(own.pid) in str(error), error
    assert elapsed < 2.0
