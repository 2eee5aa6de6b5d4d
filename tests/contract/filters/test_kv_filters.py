"""KV with filters over portable and native workers, and native servers: what arrives, in how many bytes, over links
that are cut, too; and ranks that differ, or send what is no payload."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from byteps_like.errors import CorruptError, MismatchError
from byteps_like.portable.join import join
from byteps_like.store import PayloadFilter, table_filter
from byteps_like.store.filters.payloads import Payloads
from byteps_like.store.kv import KV
from tests.contract.cutting_proxy import CuttingProxy
from tests.contract.mixed_job import DEADLINE, WORLDS, MixedJob, native_worker, portable_through

RANKS = 3
KEYS = KV.spread(np.arange(500), 500)


@pytest.fixture(scope="module", params=WORLDS)
def job(request: pytest.FixtureRequest) -> Iterator[MixedJob]:
    made = MixedJob(makers=WORLDS[request.param])
    yield made
    made.close()


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
@pytest.mark.parametrize("policy", ["asp", "bsp"])
def test_zlib_changes_nothing(job, dtype, policy):
    turn = threading.Barrier(RANKS)

    def train(worker: Any) -> Any:
        kv = KV(f"zlib {dtype} {policy}", 3, dtype, consistency=policy, filters=["zlib"], worker=worker)
        for step in range(4):
            kv.push(KEYS[step::2], np.full((len(KEYS[step::2]), 3), 10**step * (1 + worker.rank), dtype))
            kv.pull(KEYS[:0]).wait(DEADLINE)
        kv.push([], np.zeros((0, 3), dtype)).wait(DEADLINE)
        kv.tick().wait(DEADLINE)
        turn.wait(DEADLINE)
        ranged = kv.pull_range(int(KEYS[100]), int(KEYS[400]))
        assert np.array_equal(ranged.keys, KEYS[100:400]) and np.array_equal(kv.pull(ranged.keys).value, ranged.value)
        return kv.pull(KEYS).value

    even = np.arange(500) % 2 == 0
    expected = np.zeros(500, np.int64)
    for step in range(4):
        expected[step::2] += 6 * 10**step
    assert even.any()
    for found in job.everybody(train):
        assert np.array_equal(found, np.repeat(expected[:, None], 3, 1).astype(dtype))


@pytest.mark.parametrize("filters", [["float:3"], ["float:2", "zlib"]])
def test_floats_are_off_by_a_step_and_right_in_the_mean(job, filters):
    """Ranks read what the server has, each with an error of its own that is without bias."""
    size, rounds, turn = int(filters[0][-1]), 30, threading.Barrier(RANKS)
    rows = np.random.default_rng(3).normal(size=(500, 2))

    def train(worker: Any) -> np.ndarray:
        kv = KV(f"floats {filters}", 2, "float64", consistency="bsp", combine="mean", filters=filters, worker=worker)
        future = kv.push(KEYS, rows)
        assert future.counted
        turn.wait(DEADLINE)
        return np.stack([kv.pull(KEYS).value for _ in range(rounds)])

    found = job.everybody(train)
    step = (rows.max() - rows.min()) / (2 ** (8 * size) - 2) * 1.1
    for values in found:
        assert np.abs(values - rows).max() < 2 * step
        assert np.abs(values.std(0)).max() > 0, "each answer is rounded by itself"
    errors = np.stack(found).mean((0, 1)) - rows
    assert abs(errors.mean()) < 3 * step / np.sqrt(errors.size), "pushes were rounded without bias, too"


@pytest.mark.parametrize(("codec", "error"), [("int8", 0.02), ("fp16", 1e-3), ("int:scale=shared", 0.02), ("coo", 0)])
@pytest.mark.parametrize("as_filter", [False, True])
def test_rows_are_pushed_through_a_codec_and_read_as_they_are(job, codec, error, as_filter):
    rows, turn = np.random.default_rng(4).normal(size=(500, 3)).astype(np.float32), threading.Barrier(RANKS)
    through = {"filters": [codec, "zlib"]} if as_filter else {"codec": codec, "filters": ["zlib"]}

    def train(worker: Any) -> Any:
        kv = KV(f"codec {codec} {as_filter}", 3, consistency="bsp", combine="mean", worker=worker, **through)
        assert kv.push(KEYS, rows).counted
        turn.wait(DEADLINE)
        return kv.pull(KEYS).value, kv.pull_range(0, (1 << 64) - 1).value

    pulled, ranged = zip(*job.everybody(train), strict=True)
    assert np.abs(pulled[0] - rows).max() <= 3 * error + 1e-6
    assert all(np.array_equal(one, pulled[0]) for one in (*pulled, *ranged))


@pytest.mark.parametrize(
    ("filters", "pushed_most", "pulled_most"),
    [
        ((), 4.0, 4.0),
        (("int8",), 1.0, 4.0),
        (("float:3",), 3.0, 3.0),
        (("float:2",), 2.0, 2.0),
        (("float:1",), 1.0, 1.0),
        (("zlib",), 0.03, 0.03),
        (("float", "zlib"), 0.03, 0.03),
    ],
)
def test_bytes_of_a_push_and_a_pull(job, filters, pushed_most, pulled_most):
    """Per number, beside headers: 4 without filters, and as many as `float` has; of equal ones zlib makes next to
    nothing. Pulls likewise, but not through codecs."""
    count, rank = 200_000, 1
    keys, worker = KV.spread(np.arange(count), count), job.workers[rank]
    kv = job.everybody(lambda own: KV(f"bytes {filters}", 1, filters=filters, worker=own))[rank]
    rows = np.ones(count, np.float32) if "zlib" in filters else np.arange(count, dtype=np.float32)
    kv.push(keys, rows).wait(DEADLINE)
    before = worker.stats()
    kv.push(keys, rows).wait(DEADLINE)
    pushed = worker.stats()
    kv.pull(keys).wait(DEADLINE)
    pulled = worker.stats()
    sent = pushed["bytes_sent"] - before["bytes_sent"]
    received = pulled["bytes_received"] - pushed["bytes_received"]
    print(f"{filters}: {sent / count:.4f} bytes sent per number, {received / count:.4f} received")
    for moved, most in ((sent, pushed_most), (received, pulled_most)):
        assert moved <= 1.015 * most * count + 4000
        if "zlib" not in filters:
            assert moved >= most * count


@table_filter
@dataclass(frozen=True)
class Xor(PayloadFilter):
    """One of a user's, of any bytes."""

    name = "test.xor"
    about = "all bits but those of the mask change"

    mask: int = 0

    def most(self, dtype: Any, nbytes: int) -> int:
        return nbytes

    def encode(self, dtype: Any, draw: Any, payload: Any) -> bytes:
        return (~np.frombuffer(payload, np.uint8) ^ np.uint8(self.mask)).tobytes()

    def decode(self, dtype: Any, payload: bytes, most: int) -> bytes:
        return self.encode(dtype, None, payload)


@pytest.mark.parametrize("filters", [["test.xor"], ["float:3", "test.xor:mask=7", "zlib"]])
def test_a_filter_of_a_user_goes_both_ways(job, filters):
    turn = threading.Barrier(RANKS)

    def train(worker: Any) -> np.ndarray:
        kv = KV(f"own {filters}", 2, "float32", combine="sum", filters=filters, worker=worker)
        kv.push(KEYS, np.full((500, 2), 1 + worker.rank, np.float32)).wait(DEADLINE)
        turn.wait(DEADLINE)
        return kv.pull(KEYS).value

    for found in job.everybody(train):
        assert (found == RANKS * (RANKS + 1) / 2).all()


def test_what_is_not_finite_is_left_out_and_said(job):
    kv = job.everybody(lambda worker: KV("finite", 1, filters=["float", "zlib"], worker=worker))[0]
    assert not kv.push([1, 2, 3], np.array([1, np.nan, 1], np.float32)).counted
    assert (kv.pull([1, 2, 3]).value == 0).all()


def test_rows_that_stay_and_bytes_that_go(job):
    """Filters of rows come first; what they have kept back goes by `flush`, through the others."""
    ended = threading.Barrier(RANKS)

    def train(worker: Any) -> Any:
        kv = KV("both", 1, "float64", filters=["significant:delta=1", "zlib"], worker=worker)
        for _ in range(3):
            kv.push(KEYS[:3], [[0.25], [2.0], [0.5]]).wait(DEADLINE)
        ended.wait(DEADLINE)
        before = kv.pull(KEYS[:3]).value.ravel().tolist()
        ended.wait(DEADLINE)
        kv.flush().wait(DEADLINE)
        ended.wait(DEADLINE)
        return before, kv.pull(KEYS[:3]).value.ravel().tolist()

    for before, after in job.everybody(train):
        assert before == [0, 6 * RANKS, RANKS] and after == [0.75 * RANKS, 6 * RANKS, 1.5 * RANKS]


@pytest.mark.parametrize("makers", WORLDS.values(), ids=WORLDS)
def test_ranks_that_differ_hear_of_it(makers):
    made = MixedJob(makers=makers)

    def differ(worker: Any) -> str:
        with pytest.raises(MismatchError) as caught:
            kv = KV("differ", 1, filters=[f"zlib:{1 + (worker.rank == 2)}"], worker=worker)
            for _ in range(100):
                kv.push([1], np.zeros((1, 1), np.float32)).wait(DEADLINE)
                time.sleep(0.01)
        return str(caught.value)

    try:
        for text in made.everybody(differ):
            assert "filters zlib:level=1" in text and "filters zlib:level=2" in text and "rank 2" in text, text
    finally:
        made.close()


@pytest.mark.parametrize("maker", [native_worker, join], ids=["native", "portable"])
def test_what_is_no_payload_ends_the_job_and_names_its_rank(maker, monkeypatch):
    made = MixedJob(makers=[maker] * 2)
    encode = Payloads.encode

    def damaged(self: Payloads, rows: Any, draw: Any) -> Any:
        payload = encode(self, rows, draw)
        return payload[:-1].copy() if draw.rank == 1 and len(payload) else payload

    monkeypatch.setattr(Payloads, "encode", damaged)

    def push(worker: Any) -> str:
        with pytest.raises(CorruptError) as caught:
            kv = KV("damaged", 1, filters=["zlib"], worker=worker)
            for _ in range(100):
                kv.push([1, 2], np.ones((2, 1), np.float32)).wait(DEADLINE)
                time.sleep(0.01)
        return str(caught.value)

    try:
        for text in made.everybody(push):
            assert "rank 1" in text and "contribution 0: a payload of filter zlib is damaged" in text, text
    finally:
        made.close()


@pytest.mark.parametrize("maker", [native_worker, join], ids=["native", "portable"])
def test_an_answer_that_is_no_payload_says_so(maker, monkeypatch):
    made = MixedJob(makers=[maker])
    decode = Payloads.decode
    monkeypatch.setattr(Payloads, "decode", lambda self, payload, count: decode(self, payload[:-2], count))
    try:
        out = np.full((3, 1), 7, np.float32)
        future = made.everybody(lambda worker: KV("cut", 1, filters=["float"], worker=worker))[0].pull([1, 2, 3], out)
        with pytest.raises(CorruptError, match=r"'kv/cut'.*payload of filter float"):
            future.wait(DEADLINE)
        assert (out == 7).all(), "nothing is written of what is not good"
    finally:
        made.close()


@pytest.mark.parametrize("policy", ["asp", "bsp"])
def test_cut_connections_cost_nothing(policy):
    """Connections are cut at any byte of payloads that don't compress: sums of integers stay exact."""
    proxies: list[CuttingProxy] = []

    def through(url: str) -> str:
        proxies.append(CuttingProxy(url, len(proxies), cuts=6, most_bytes=400_000))
        return proxies[-1].url

    made = MixedJob(makers=[lambda config: portable_through(config, through), native_worker])
    keys, pushes, ended = KV.spread(np.arange(20_000), 20_000), 8, threading.Barrier(2)
    random = [np.random.default_rng(step).integers(-(2**40), 2**40, (20_000, 1)) for step in range(pushes)]

    def train(worker: Any) -> np.ndarray:
        kv = KV("cut", 1, "int64", consistency=policy, filters=["zlib"], worker=worker)
        futures = []
        for step in range(pushes):
            futures.append(kv.push(keys, random[step] * (1 + worker.rank)))
            if step % 3 == 0:
                kv.pull(keys).wait(DEADLINE)
        assert all(future.counted for future in futures)
        ended.wait(DEADLINE)
        return kv.pull(keys).value

    try:
        for found in made.everybody(train):
            assert np.array_equal(found, 3 * np.sum(random, 0))
        assert sum(proxy.cuts_left for proxy in proxies) < 12
    finally:
        made.close()
        for proxy in proxies:
            proxy.close()


class SparseLogistic:
    """A loss over 100,000 features with an L1 penalty, of which 99 % and more have no part in the best weights."""

    FEATURES, SAMPLES, EACH, PENALTY = 100_000, 1500, 40, 1.5

    def __init__(self, ranks: int) -> None:
        draw = np.random.default_rng(5)
        self.columns = draw.integers(0, self.FEATURES, (self.SAMPLES, self.EACH))
        self.columns[:, :8] = draw.integers(0, 150, (self.SAMPLES, 8))  # the others are each in a sample or two
        truth = np.zeros(self.FEATURES)
        truth[:150] = draw.normal(size=150)
        chance = 1 / (1 + np.exp(-truth[self.columns].sum(1)))
        self.labels = np.where(draw.random(self.SAMPLES) < chance, 1.0, -1.0)
        self.parts = [slice(rank, None, ranks) for rank in range(ranks)]

    def margins(self, part: slice, weights: np.ndarray) -> np.ndarray:
        return self.labels[part] * weights[self.columns[part]].sum(1)

    def objective(self, weights: np.ndarray) -> float:
        loss = np.logaddexp(0, -self.margins(slice(None), weights)).sum()
        return float(loss + self.PENALTY * np.abs(weights).sum())

    def gradient(self, part: slice, weights: np.ndarray) -> np.ndarray:
        slopes = -self.labels[part] / (1 + np.exp(self.margins(part, weights)))
        return np.bincount(self.columns[part].ravel(), np.repeat(slopes, self.EACH), self.FEATURES)


def test_kkt_sends_a_tenth_of_the_bytes_to_the_same_objective():
    made = MixedJob(makers=[native_worker, join])
    problem, all_keys, steps = SparseLogistic(2), KV.spread(np.arange(SparseLogistic.FEATURES), 100_000), 100
    results: dict[tuple[str, ...], tuple[float, float, int]] = {}

    def train(worker: Any, filters: tuple[str, ...]) -> tuple[int, np.ndarray]:
        part = problem.parts[worker.rank]
        features = np.unique(problem.columns[part])
        update = f"proximal:lr=0.02,l1={problem.PENALTY}"
        kv = KV(f"l1 {filters}", 1, "float64", consistency="bsp", update=update, filters=filters, worker=worker)
        weights, before = np.zeros(problem.FEATURES), worker.stats()["bytes_sent"]
        for _ in range(steps):
            gradient = problem.gradient(part, weights)
            kv.push(all_keys[features], gradient[features])
            weights[features] = kv.pull(all_keys[features]).value.ravel()
        sent = worker.stats()["bytes_sent"] - before
        kv.finish()
        return sent, kv.pull(all_keys).value.ravel()

    try:
        for filters in ((), ("kkt",)):
            found = made.everybody(lambda worker, own=filters: train(worker, own))
            weights = found[0][1]
            results[filters] = problem.objective(weights), sum(sent for sent, _ in found), np.count_nonzero(weights)
    finally:
        made.close()
    (plain, much, count), (kept, little, _) = results[()], results[("kkt",)]
    print(
        f"kkt: {much} bytes to {little} ({much / little:.1f} times fewer), objective {plain:.6f} to {kept:.6f}, {count}"
    )
    assert plain < 0.97 * problem.objective(np.zeros(problem.FEATURES)) and 20 < count < 0.01 * problem.FEATURES
    assert much >= 10 * little, (much, little)
    assert abs(kept - plain) < 0.001 * plain
