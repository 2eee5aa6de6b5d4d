"""Gradients by the engine's stager; ranks are threads on one device, each on a stream of its own, with a real server.

The twin of tests/unit/torch/devices/test_torch_native_staging.py.
"""

from __future__ import annotations

import pytest
import torch

from byteps_like import cuda
from tests.fakes.native_job import run_native_job
from tests.scenarios.devices import native_staging as scenarios

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
PARTITION = 4096


def on_stream(body, *more):
    def within(bps, rank, size):
        with torch.cuda.stream(torch.cuda.Stream(CUDA)):
            return body(bps, rank, size, CUDA, *more)

    return within


@pytest.mark.parametrize("compression", [None, "bf16", "int8", "fp8", "onebit:block=64"], ids=str)
def test_averages_have_the_bits_of_the_cpu(compression):
    if compression and cuda.why_not():
        pytest.skip(cuda.why_not())
    expected = run_native_job(2, scenarios.reduced, CPU, compression, partition_bytes=PARTITION)
    found = run_native_job(2, on_stream(scenarios.reduced, compression), partition_bytes=PARTITION)
    for (one, counters), (other, _) in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert counters["staged_down"] == counters["staged_up"] > 0
        assert counters["encoded_in"] == 0, "a codec thread has encoded what the device should"


@pytest.mark.usefixtures("stream_waits")
def test_no_host_waits_for_gradients():
    expected = run_native_job(2, scenarios.reduced, CPU, None, partition_bytes=PARTITION)
    found = run_native_job(2, on_stream(scenarios.busy), partition_bytes=PARTITION)
    for (late, one), (other, _) in zip(found, expected, strict=True):
        assert late
        assert torch.equal(one, other.chunk(scenarios.ROUNDS)[1])
