"""Jobs of any racks, workers and servers, native and portable: sums, averages and broadcasts are NumPy's."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_like.dtypes import Op
from byteps_like.portable.join import join
from byteps_like.worker.api import Worker
from tests.contract.mixed_job import MixedJob, native_worker, reduce

RACK = st.sampled_from(["", "a", "b"])
PORTABLE = "portable"


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.one_of(RACK, st.just(PORTABLE)), min_size=1, max_size=5),
    st.permutations(["", "a", "b", "a"]),
    st.integers(1, 4),
    st.lists(st.integers(1, 60_000), min_size=1, max_size=3),
)
@pytest.mark.timeout(300)
def test_sums_are_those_of_numpy(workers: list[str], order: list[str], servers: int, sizes: list[int]) -> None:
    racks = order[:servers] if "" in order[:servers] else ["", *order[: servers - 1]]
    makers = [join if rack == PORTABLE else partial(native_worker, rack=rack) for rack in workers]
    job = MixedJob(makers, hosts=[""] * len(racks), racks=racks, partition_bytes=16384, force_distributed=True)
    try:
        ranks = np.arange(len(workers))

        def compare(worker: Worker) -> None:
            for number, size in enumerate(sizes):
                base = np.arange(size) % 997
                for round in range(3):
                    total = base * len(workers) + ((ranks + 1) * (round + 1)).sum()
                    own = base + (worker.rank + 1) * (round + 1)
                    whole = reduce(worker, f"whole.{number}", own.astype(np.int64), Op.SUM)
                    np.testing.assert_array_equal(whole, total)
                    mean = reduce(worker, f"mean.{number}", own.astype(np.float64), Op.AVERAGE)
                    np.testing.assert_allclose(mean, total / len(workers), rtol=1e-15)
                    short = reduce(worker, f"short.{number}", own.astype(np.int8), Op.SUM)
                    np.testing.assert_array_equal(short, total.astype(np.int8))
                    root = round % len(workers)
                    sent = reduce(worker, f"sent.{number}", own.astype(np.float32), Op.BROADCAST, root=root)
                    np.testing.assert_array_equal(sent, base + (root + 1) * (round + 1))

        job.everybody(compare)
    finally:
        job.close()
