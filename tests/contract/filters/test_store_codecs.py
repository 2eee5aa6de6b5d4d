"""Stores whose contributions travel encoded, over portable and native workers: every codec, policy and way of combining
against what the codec's reference says; error feedback against sums; bytes; and ranks that differ."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from byteps_like.compression.codec import Codec, Draw
from byteps_like.compression.registry import CODECS, codec_of
from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.portable.join import join
from byteps_like.store.filters.codec_filter import CodecFilter
from byteps_like.store.filters.payloads import Payloads
from byteps_like.store.gradient_coding import GradientCoding
from byteps_like.store.store import Store
from tests.contract.mixed_job import DEADLINE, WORLDS, MixedJob, native_worker

RANKS = 3
SIZE = 5_003
"""Elements: partitions of 1,024, the last one uneven."""
PART = 1024
FORMS = [kind.name for kind in CODECS] + ["int4", "int:scale=shared", "fixed16", "sketch:density=1"]
EXACT = ("fixed", "bitmap", "blocksparse", "coo")
"""With few, small whole numbers among zeros."""
POLICIES = ["bsp", "k_of_n:k=2,late=next", "backup:b=1", "ssp:s=1", "dssp:lo=1,hi=3", "asp"]


@pytest.fixture(scope="module", params=WORLDS)
def job(request: pytest.FixtureRequest) -> Iterator[MixedJob]:
    made = MixedJob(makers=WORLDS[request.param], partition_bytes=4 * PART)
    yield made
    made.close()


def drawn(seed: int, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def sparse(seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return np.where(draw.random(SIZE) < 0.01, draw.integers(-9, 9, SIZE), 0).astype(np.float32)


def said(text: str, store: Store, name: str, value: np.ndarray, rank: int, number: int) -> np.ndarray:
    """What servers make of a rank's contribution, its `number`-th to this tensor, by the codec's reference."""
    codec: Codec = codec_of(text)
    payloads = Payloads([CodecFilter(codec)], DType[value.dtype.name.upper()])
    partitions, found = store._open[name].kept.declared.partitions, np.empty_like(value)
    for partition, part in zip(partitions, store.slices(name), strict=True):
        payload = payloads.encode(value[part], Draw(partition.key, number, rank))
        found[part] = payloads.decode(payload.tobytes(), found[part].size)
    return found


@pytest.mark.parametrize("text", FORMS)
def test_a_value_is_the_mean_of_what_payloads_say(job, text):
    """In the order of ranks or another, so up to rounding."""

    def train(worker: Any) -> Any:
        store = Store(f"mean {text}", {"w": np.zeros(SIZE, np.float32), "one": np.zeros(1, np.float32)}, codec=text,
                      feedback=0.0, worker=worker)  # fmt: skip
        out, errors = {"w": np.empty(SIZE, np.float32), "one": np.empty(1, np.float32)}, []
        for name, value in out.items():
            store.push_pull(name, drawn(worker.rank, len(value)), value).wait(DEADLINE)
            all_say = [said(text, store, name, drawn(rank, len(value)), rank, 0) for rank in range(RANKS)]
            errors.append(np.abs(value - np.mean(all_say, 0, np.float64)).max())
        return errors

    for errors in job.everybody(train):
        assert max(errors) < 1e-5


@pytest.mark.parametrize("text", EXACT)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_counts_each_contribution_once(job, policy, text):
    """Of whole numbers, which these codecs don't round; late ones of `backup` don't count."""
    turn = threading.Barrier(RANKS)

    def train(worker: Any) -> Any:
        store = Store(f"once {policy} {text}", {"w": np.zeros(SIZE, np.float32)}, consistency=policy, combine="sum",
                      codec=text, worker=worker)  # fmt: skip
        pushed = [store.push("w", sparse(10 * step + worker.rank)) for step in range(4)]
        turn.wait(DEADLINE)
        store.change("asp")  # so that all counts at the end
        own = np.zeros(SIZE, np.float32)
        for step, future in enumerate(pushed):
            future.wait(DEADLINE)
            own += future.counted * sparse(10 * step + worker.rank)
        turn.wait(DEADLINE)
        out = np.empty(SIZE, np.float32)
        store.pull("w", out).wait(DEADLINE)
        return own, out, all(future.counted for future in pushed)

    found = job.everybody(train)
    total = sum(own for own, _, _ in found)
    for _, out, all_count in found:
        if policy != "backup:b=1":
            assert all_count
            assert np.array_equal(out, total)
        else:
            assert np.abs(out).max() <= 4 * RANKS * 9, "partitions count by themselves"


@pytest.mark.parametrize("text", ["onebit", "topk:ratio=0.05", "sparseloco", "int4", "randomk:ratio=0.1"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_a_codec_leaves_out_comes_later(job, text, dtype):
    """What servers have and what ranks still owe is the sum of all gradients."""
    steps = 12

    def train(worker: Any) -> Any:
        store = Store(f"owed {text} {dtype}", {"w": np.zeros(SIZE, dtype)}, consistency="asp", combine="sum",
                      codec=text, feedback=1.0, worker=worker)  # fmt: skip
        for step in range(steps):
            store.push("w", drawn(10 * step + worker.rank).astype(dtype)).wait(DEADLINE)
        worker.barrier(DEADLINE)
        out = np.empty(SIZE, dtype)
        store.pull("w", out).wait(DEADLINE)
        rests = store._open["w"].encoder.rests
        return out, np.concatenate([rests[part] for part in sorted(rests)])

    found = job.everybody(train)
    total = sum(drawn(10 * step + rank).astype(np.float64) for step in range(steps) for rank in range(RANKS))
    owed = sum(rest.astype(np.float64) for _, rest in found)
    assert np.abs(owed).max() > 0.01, "something is owed"
    for out, _ in found:
        assert np.abs(out + owed - total).max() < 1e-3


def test_feedback_is_on_where_it_helps():
    made = MixedJob(makers=[join])
    try:

        def look(worker: Any) -> None:
            for codec, update, share, wanted in (
                ("onebit", "sgd", None, 1.0), ("onebit", "adam", None, 0.0), ("bf16", "add", None, 1.0),
                ("qsgd", "sgd", None, 0.0), ("qsgd", "sgd", 0.5, 0.5), ("onebit", "sgd", 0.0, 0.0),
            ):  # fmt: skip
                store = Store(f"{codec} {update} {share}", {"w": np.zeros(3)}, codec=codec, feedback=share,
                              update=update, worker=worker)  # fmt: skip
                assert store._feedback == (wanted if codec_of(codec).biased or share else 0.0)

        made.everybody(look)
    finally:
        made.close()


def test_another_rate_rescales_what_is_owed(job):
    """So that updates add up: with a rate halved, twice of what was left out is added."""

    def train(worker: Any) -> Any:
        store = Store("rates", {"w": np.zeros(SIZE)}, consistency="asp", update="sgd:lr=1", codec="topk:ratio=0.1",
                      worker=worker)  # fmt: skip
        total = np.zeros(SIZE)
        for step in range(6 if worker.rank == 1 else 0):
            total += 0.5**step * drawn(step).astype(np.float64)
            store.push("w", drawn(step), lr=0.5**step).wait(DEADLINE)
        worker.barrier(DEADLINE)
        out = np.empty(SIZE)
        store.pull("w", out).wait(DEADLINE)
        rests = store._open["w"].encoder.rests
        return out, total, 0.5**5 * np.concatenate([rests[part] for part in sorted(rests)]) if rests else None

    found = job.everybody(train)
    _, total, owed = found[1]
    for out, _, _ in found:
        assert np.abs(out - owed + total).max() < 1e-4 < np.abs(owed).max()


def test_weights_and_ages_multiply_what_is_decoded(job):
    def train(worker: Any) -> Any:
        store = Store("weights", {"w": np.zeros(SIZE, np.float32)}, age="inverse", codec="bitmap", worker=worker)
        out = np.empty(SIZE, np.float32)
        store.push("w", sparse(worker.rank), weight=1 + worker.rank)
        store.pull("w", out).wait(DEADLINE)
        return out

    wanted = sum((1 + rank) / 6 * sparse(rank).astype(np.float64) for rank in range(RANKS))
    for out in job.everybody(train):
        assert np.abs(out - wanted).max() < 1e-5


def test_coded_gradients_may_be_encoded(job):
    coding = GradientCoding(RANKS, s=1)

    def train(worker: Any) -> Any:
        store = Store("twice", {"w": np.zeros(SIZE)}, codec="fixed32", worker=worker, **coding.options)
        out, own = np.empty(SIZE), np.zeros(SIZE)
        for part, factor in coding.factors(worker.rank).items():
            own += factor * sparse(part)
        store.push("w", own)
        store.pull("w", out, version=1).wait(DEADLINE)
        store.finish()
        return out

    wanted = sum(sparse(part).astype(np.float64) for part in range(RANKS)) / RANKS
    for out in job.everybody(train):
        assert np.abs(out - wanted).max() < 1e-4


def test_what_is_not_finite_is_not_applied_nor_owed(job):
    def train(worker: Any) -> Any:
        store = Store("nan", {"w": np.zeros(10, np.float32)}, consistency="asp", combine="sum", codec="onebit",
                      worker=worker)  # fmt: skip
        if worker.rank == 0:
            assert not store.push("w", np.full(10, np.nan, np.float32)).counted
            assert store.push("w", np.ones(10, np.float32)).counted
        worker.barrier(DEADLINE)
        out = np.empty(10, np.float32)
        store.pull("w", out).wait(DEADLINE)
        return out

    for out in job.everybody(train):
        assert (out == 1).all()


@pytest.mark.parametrize(
    ("codec", "filters", "least", "most"),
    [("", (), 4.0, 4.2), ("int8", (), 1.0, 1.2), ("onebit", (), 0.12, 0.25), ("onebit", ("zlib",), 0.0, 0.2)],
)
def test_bytes_of_a_push(job, codec, filters, least, most):
    rank = 1
    stores = job.everybody(
        lambda own: Store(f"bytes {codec} {filters}", {"w": np.zeros(50 * PART, np.float32)}, consistency="asp",
                          codec=codec, filters=filters, worker=own)
    )  # fmt: skip
    worker, store = job.workers[rank], stores[rank]
    before = worker.stats()["bytes_sent"]
    store.push("w", np.ones(50 * PART, np.float32)).wait(DEADLINE)
    sent = worker.stats()["bytes_sent"] - before
    headers = 50 * 200
    assert least * 50 * PART <= sent <= most * 50 * PART + headers


def test_parts_empty_tensors_and_ticks(job):
    def train(worker: Any) -> Any:
        store = Store("parts", {"w": np.zeros(SIZE), "none": np.zeros((0, 3))}, consistency="asp", combine="sum",
                      codec="coo", worker=worker)  # fmt: skip
        out = np.empty(SIZE)
        if worker.rank == 2:
            store.push("none", np.zeros((0, 3))).wait(DEADLINE)
            store.tick("w").wait(DEADLINE)
            store.push("w", np.full(SIZE, 2.0), part=1).wait(DEADLINE)
        worker.barrier(DEADLINE)
        store.pull("w", out).wait(DEADLINE)
        return out, store.slices("w")[1]

    for out, part in job.everybody(train):
        assert (out[part] == 2).all() and np.count_nonzero(out) == part.stop - part.start < SIZE


def test_a_restored_store_owes_nothing(job, tmp_path):
    path = tmp_path / "saved"

    def train(worker: Any) -> Any:
        store = Store("restored", {"w": np.zeros(SIZE)}, codec="onebit", worker=worker)
        store.checkpoint(path)
        store.push("w", drawn(worker.rank)).wait(DEADLINE)
        assert store._open["w"].encoder.rests
        store.restore(path)
        assert not store._open["w"].encoder.rests
        out = np.empty(SIZE)
        store.pull("w", out).wait(DEADLINE)
        return out

    for out in job.everybody(train):
        assert not out.any()


@pytest.mark.parametrize("makers", [[join, join], [native_worker, join]])
def test_ranks_that_differ_hear_of_it(makers):
    made = MixedJob(makers=makers)
    try:

        def differ(worker: Any) -> str:
            with pytest.raises(MismatchError) as caught:
                store = Store("differs", {"w": np.zeros(3)}, consistency="asp", init="zeros",
                              codec="int8" if worker.rank else "int4", worker=worker)  # fmt: skip
                while True:
                    store.push("w", np.zeros(3)).wait(DEADLINE)
            return str(caught.value)

        for text in made.everybody(differ):
            assert "filters int:bits=8" in text and "filters int:bits=4" in text
    finally:
        made.close()


def test_what_cannot_be_is_refused():
    made = MixedJob(makers=[join])
    try:

        def refused(worker: Any) -> None:
            for more, words in (
                ({"codec": "onebitt"}, "there is no codec 'onebitt'"),
                ({"codec": "float"}, "there is no codec 'float'"),
                ({"codec": "int8", "filters": ["float"]}, r"float:bytes=3 takes rows, not what int:\S* makes"),
                ({"codec": "int8", "consistency": "hogwild"}, "with hogwild nothing is sent"),
                ({"codec": "int8", "feedback": 2.0}, "must be from 0 to 1"),
                ({"feedback": 0.5}, "without a codec nothing is left out"),
            ):
                with pytest.raises(InvalidArgumentError, match=words):
                    Store("refused", {"x": np.zeros(3)}, worker=worker, **more)
            with pytest.raises(InvalidArgumentError, match=r"codec onebit.* takes float32 and float64, not"):
                Store("integers", {"x": np.zeros(3, np.int64)}, combine="sum", codec="onebit", worker=worker)

        made.everybody(refused)
    finally:
        made.close()
