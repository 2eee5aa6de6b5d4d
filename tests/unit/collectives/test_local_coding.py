"""Codecs in a world of one, against the NumPy references, and what may not be asked for."""

from __future__ import annotations

import numpy as np
import pytest

from byteps_like.compression.quantised.onebit import Onebit
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.worker.api import Feedback, TensorSpec, Worker
from byteps_like.worker.local import LocalWorker
from tests.fakes.codec_rounds import by_reference

NUMEL, PART = 3000, 4096
CODEC = Onebit()
SPEC = CODEC.spec()


def declared_in(worker, name="g", codec=SPEC):
    return worker.declare([TensorSpec(name, DType.FLOAT32, (NUMEL,), codec=codec)])[0]


def parts(x):
    return [x[start : start + PART // 4] for start in range(0, NUMEL, PART // 4)]


def gradient(number):
    return np.random.default_rng(number).normal(size=NUMEL).astype(np.float32)


@pytest.mark.parametrize("codec", [CODEC.spec(), f"twoway {CODEC.spec()}"])
def test_what_comes_back_is_the_codecs_round_per_partition(codec):
    worker = LocalWorker(PART)
    declared = declared_in(worker, codec=codec)
    x = gradient(0)
    expected = [
        by_reference(CODEC, [part.copy()], part_of.key, 0).out
        for part, part_of in zip(parts(x), declared.partitions, strict=True)
    ]
    worker.push_pull(declared, x.ctypes.data, Op.AVERAGE).wait()
    np.testing.assert_array_equal(x, np.concatenate(expected))


def test_error_feedback_telescopes():
    worker = LocalWorker(PART)
    declared = declared_in(worker)
    residual, sent, given = np.zeros(NUMEL, np.float32), np.zeros(NUMEL), np.zeros(NUMEL)
    worker.compensate(declared, Feedback(residual.ctypes.data))
    for number in range(10):
        x = gradient(number)
        given += x
        worker.push_pull(declared, x.ctypes.data, Op.SUM).wait()
        sent += x
    np.testing.assert_allclose(sent + residual, given, rtol=1e-5, atol=1e-4)


def test_a_residual_is_rescaled_once():
    worker = LocalWorker(PART)
    declared = declared_in(worker)
    residual = np.ones(NUMEL, np.float32)
    worker.compensate(declared, Feedback(residual.ctypes.data))
    worker.rescale(declared, 0.5)
    x = gradient(1)
    compensated = x + np.float32(0.5)
    worker.push_pull(declared, x.ctypes.data, Op.SUM).wait()
    np.testing.assert_array_equal(residual, compensated - x)
    before, again = residual.copy(), gradient(2)
    compensated = again + before
    worker.push_pull(declared, again.ctypes.data, Op.SUM).wait()
    np.testing.assert_array_equal(residual, compensated - again)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_corrected_before_the_residual(nesterov):
    worker = LocalWorker(PART)
    declared = declared_in(worker)
    residual, momentum = np.zeros(NUMEL, np.float32), np.full(NUMEL, 2, np.float32)
    worker.compensate(declared, Feedback(residual.ctypes.data, momentum.ctypes.data, 0.5, nesterov))
    x = gradient(3)
    kept = np.float32(0.5) * np.float32(2) + x
    compensated = x + np.float32(0.5) * kept if nesterov else kept
    worker.push_pull(declared, x.ctypes.data, Op.SUM).wait()
    np.testing.assert_array_equal(momentum, kept)
    np.testing.assert_array_equal(residual, compensated - x)


def test_momentum_ends_where_it_was_sent():
    worker = LocalWorker(PART)
    declared = declared_in(worker)
    residual, momentum = np.zeros(NUMEL, np.float32), np.ones(NUMEL, np.float32)
    worker.compensate(declared, Feedback(residual.ctypes.data, momentum.ctypes.data, masked=True))
    x = gradient(4)
    worker.push_pull(declared, x.ctypes.data, Op.SUM).wait()
    assert not momentum.any()  # one bit says something of each element


def test_what_is_not_finite_is_seen_once():
    worker = LocalWorker(PART)
    declared = declared_in(worker)
    residual = np.zeros(NUMEL, np.float32)
    worker.compensate(declared, Feedback(residual.ctypes.data))
    x = gradient(5)
    x[7] = np.inf
    worker.push_pull(declared, x.ctypes.data, Op.SUM).wait()
    assert not np.isfinite(x).all()
    assert np.isfinite(residual).all()


def test_a_broadcast_goes_raw():
    worker = LocalWorker(PART)
    x = gradient(6)
    before = x.copy()
    worker.push_pull(declared_in(worker), x.ctypes.data, Op.BROADCAST).wait()
    np.testing.assert_array_equal(x, before)


def test_refusals():
    worker = LocalWorker(PART)
    assert isinstance(worker, Worker)
    declared, raw = declared_in(worker), declared_in(worker, "raw", "")
    with pytest.raises(InvalidArgumentError, match="no MAX"):
        worker.push_pull(declared, 64, Op.MAX)
    with pytest.raises(InvalidArgumentError, match="float32 only"):
        worker.declare([TensorSpec("i", DType.INT32, (8,), codec=CODEC.spec())])
    with pytest.raises(MismatchError, match="codec onebit"):
        declared_in(worker, "g", "")
    with pytest.raises(InvalidArgumentError, match="no codec"):
        worker.compensate(raw, Feedback(64))
    with pytest.raises(InvalidArgumentError, match="masking"):
        worker.compensate(declared, Feedback(64, masked=True))
