"""Workers that push to and read values that native servers keep: policies and updates against NumPy, exactly
once over connections that are cut anywhere, errors by name."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from cutting_proxy import CuttingProxy
from mixed_job import DEADLINE, WORLDS, MixedJob, native_worker, portable_through, reduce

from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError, DeadlineError, InvalidArgumentError, MismatchError, PeerLostError
from byteps_like.portable.join import join
from byteps_like.server import door_session
from byteps_like.store.combining.registry import combining_of
from byteps_like.store.policies.registry import policy_of, text_of
from byteps_like.store.updates.registry import update_of
from byteps_like.wire.note import Applied, Note
from byteps_like.worker.api import TensorSpec
from byteps_like.worker.keeping import KeepHandle, Keeps, KeepSpec, KeptTensor, Outcome

RANKS = 3
PIECE = 20_000
"""Bytes of a partition: several of each tensor, on the four shards of two servers."""


@pytest.fixture(scope="module", params=WORLDS)
def job(request: pytest.FixtureRequest) -> Iterator[MixedJob]:
    made = MixedJob(makers=WORLDS[request.param])
    yield made
    made.close()


def spec_of(policy: str, update: str = "add", combine: str = "sum", root: int | None = 1) -> KeepSpec:
    texts = text_of(policy_of(policy, RANKS)), combining_of(combine).text(), update_of(update).spec()
    return KeepSpec(*texts, root=root)


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

    def start(self, array: np.ndarray, **note: Any) -> KeepHandle:
        return self.tensor.push(array.ctypes.data, Note(**note))

    def push(self, array: np.ndarray, **note: Any) -> list[Outcome]:
        return outcomes(self.start(array, **note))

    def pull(self, least: int = 0) -> tuple[np.ndarray, set[int]]:
        value = np.empty_like(self.like)
        found = outcomes(self.tensor.pull(value.ctypes.data, least=least))
        return value, {one.version for one in found}

    def slices(self) -> list[slice]:
        """Of the elements, by partition."""
        size = self.like.itemsize
        parts = self.tensor.declared.partitions
        return [slice(part.offset // size, (part.offset + part.nbytes) // size) for part in parts]


def outcomes(handle: KeepHandle) -> list[Outcome]:
    handle.wait(DEADLINE)
    return list(handle.outcomes())


def drawn(seed: int, count: int, dtype: str) -> np.ndarray:
    draw = np.random.default_rng([seed, count])
    return draw.integers(-1000, 1000, count) if dtype == "int64" else draw.standard_normal(count).astype(dtype)


def gradient(step: int, rank: int, count: int, dtype: str) -> np.ndarray:
    return drawn(100 * step + rank, count, dtype)


def in_turns(job: MixedJob, name: str, first: np.ndarray, spec: KeepSpec, steps: int) -> list[list[np.ndarray]]:
    """What each rank reads at first, and after each step of pushing and reading."""

    def train(worker: Any) -> list[np.ndarray]:
        kept = Kept(worker, name, first, spec)
        seen = [kept.pull()[0]]
        for step in range(steps):
            found = kept.push(gradient(step, worker.rank, first.size, first.dtype.name), base=step)
            assert {(one.applied, one.version) for one in found} == {(Applied.COUNTED, step + 1)}
            value, versions = kept.pull()
            assert versions == {step + 1}
            seen.append(value)
        return seen

    return job.everybody(train)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("count", [1, 7, 20_001])
def test_bsp_makes_a_version_of_all_ranks(job, dtype, count):
    first, steps = drawn(99, count, dtype), 3
    expected = [first]
    for step in range(steps):
        expected.append(expected[-1] + sum(gradient(step, rank, count, dtype) for rank in range(RANKS)))
    for seen in in_turns(job, f"bsp {dtype} {count}", first, spec_of("bsp"), steps):
        for value, wanted in zip(seen, expected, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=0, atol=0 if dtype == "int64" else 1e-5)


def adam(values: np.ndarray, gradients: list[np.ndarray], lr: float = 0.001) -> list[np.ndarray]:
    """Kingma and Ba, algorithm 1."""
    found, m, v = [values], np.zeros_like(values), np.zeros_like(values)
    for step, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        found.append(found[-1] - lr * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8))
    return found


def sgd(values: np.ndarray, gradients: list[np.ndarray], lr: float = 0.25) -> list[np.ndarray]:
    found = [values]
    for g in gradients:
        found.append(found[-1] - lr * g)
    return found


@pytest.mark.parametrize(("update", "reference"), [("sgd:lr=0.25", sgd), ("adam:lr=0.001", adam)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_updates_of_means(job, update, reference, dtype):
    count, steps = 12_347, 4
    first = drawn(98, count, dtype)
    means = [
        np.mean([gradient(step, rank, count, dtype) for rank in range(RANKS)], axis=0, dtype=np.float64)
        for step in range(steps)
    ]
    expected = reference(first.astype(np.float64), means)
    for seen in in_turns(job, f"{update} {dtype}", first, spec_of("bsp", update, "mean"), steps):
        for value, wanted in zip(seen, expected, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("policy", ["asp", "ssp:s=1", "dssp:lo=1,hi=2", "k_of_n:k=1,late=next", "bsp"])
def test_each_contribution_counts_once_under_every_policy(job, policy):
    """Ranks at their own speed, several contributions in flight; from zeros, all integers, so the sum is exact."""
    count, pushes = 7001, 10
    like = np.zeros(count, np.int64)
    ended = threading.Barrier(RANKS)

    def train(worker: Any) -> tuple[np.ndarray, list[list[Outcome]]]:
        kept = Kept(worker, f"once {policy}", like, spec_of(policy, root=None))
        arrays = [gradient(step, worker.rank, count, "int64") for step in range(pushes)]
        handles = []
        for array in arrays:
            handles.append(kept.start(array))
            if worker.rank:  # rank 0 never reads, and runs ahead
                kept.pull()
        found = [outcomes(handle) for handle in handles]
        ended.wait(DEADLINE)
        return kept.pull()[0] if policy != "bsp" else kept.pull(least=pushes)[0], found

    expected = sum(gradient(step, rank, count, "int64") for step in range(pushes) for rank in range(RANKS))
    for value, found in job.everybody(train):
        assert {one.applied for outcome in found for one in outcome} == {Applied.COUNTED}
        assert (value == expected).all()


def test_what_comes_too_late_is_told_so_and_leaves_no_trace(job):
    """Of three ranks one is a spare: the version is made of the first two."""
    first, two_are_in = drawn(97, 5001, "int64"), threading.Barrier(RANKS)

    def train(worker: Any) -> tuple[list[Outcome], np.ndarray]:
        kept = Kept(worker, "late", first, spec_of("backup:b=1"))
        array = gradient(0, worker.rank, first.size, "int64")
        if worker.rank == 2:
            two_are_in.wait(DEADLINE)
        found = kept.push(array)
        if worker.rank != 2:
            two_are_in.wait(DEADLINE)
        return found, kept.pull(least=1)[0]

    expected = first + sum(gradient(0, rank, first.size, "int64") for rank in range(2))
    for rank, (found, value) in enumerate(job.everybody(train)):
        assert set(found) == {Outcome(Applied.LATE, 1) if rank == 2 else Outcome(Applied.COUNTED, 1, (0, 1))}
        assert (value == expected).all()


def test_what_is_not_finite_is_left_out(job):
    """Per partition: the others' numbers count there, and its own elsewhere."""
    first = np.zeros(12_000, np.float32)
    bad = np.ones_like(first)
    bad[7000] = np.inf

    def train(worker: Any) -> tuple[list[slice], list[Outcome], np.ndarray]:
        kept = Kept(worker, "not finite", first, spec_of("bsp"))
        array = bad if worker.rank == 0 else np.ones_like(first)
        return kept.slices(), kept.push(array), kept.pull(least=1)[0]

    for rank, (slices, found, value) in enumerate(job.everybody(train)):
        for one, outcome in zip(slices, found, strict=True):
            is_bad = one.start <= 7000 < one.stop
            how = Applied.NOT_FINITE if is_bad and rank == 0 else Applied.COUNTED
            assert outcome == (how, 1, (1, 2) if is_bad else (0, 1, 2))
            assert (value[one] == RANKS - is_bad).all()


def test_some_partitions_only_and_a_learning_rate_of_its_own(job):
    first = np.zeros(12_000, np.float32)

    def train(worker: Any) -> tuple[list[slice], np.ndarray]:
        kept = Kept(worker, "parts", first, spec_of("bsp", "sgd:lr=0.5"))
        array = np.ones_like(first)
        handle = kept.tensor.push(array.ctypes.data, Note(lr=2.0, weight=3.0), parts=range(1, 2))
        assert outcomes(handle) == [(Applied.COUNTED, 1, tuple(range(RANKS)))]
        value = np.full_like(first, 7)
        handle = kept.tensor.pull(value.ctypes.data, parts=range(1, 3))
        assert [one.version for one in outcomes(handle)] == [1, 0]
        assert not outcomes(kept.tensor.pull(value.ctypes.data, parts=range(0)))
        return kept.slices(), value

    for slices, value in job.everybody(train):
        assert len(slices) >= 3
        for number, one in enumerate(slices):
            assert (value[one] == {1: -2.0 * 3.0 * RANKS, 2: 0}.get(number, 7)).all()


def test_rounds_and_kept_values_share_links(job):
    """A barrier by push_pull keeps bsp steps apart; both are under way at once."""
    first = drawn(96, 9001, "float64")

    def train(worker: Any) -> tuple[np.ndarray, np.ndarray]:
        kept = Kept(worker, "beside rounds", first, spec_of("asp"))
        array = gradient(0, worker.rank, first.size, "float64")
        handle = kept.start(array)
        total = reduce(worker, "a round", np.full(50_000, worker.rank), Op.SUM)
        outcomes(handle)
        reduce(worker, "all have pushed", np.zeros(1), Op.SUM)
        return total, kept.pull()[0]

    expected = first + sum(gradient(0, rank, first.size, "float64") for rank in range(RANKS))
    for total, value in job.everybody(train):
        assert (total == sum(range(RANKS))).all()
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-12)


def test_a_tensor_may_be_opened_again_and_nothing_of_it_is_new(job):
    first = drawn(95, 3001, "int64")

    def train(worker: Any) -> np.ndarray:
        kept = Kept(worker, "again", first, spec_of("bsp"))
        kept.push(np.ones_like(first))
        kept = Kept(worker, "again", np.zeros_like(first), spec_of("bsp"))
        kept.push(np.ones_like(first))
        with pytest.raises(MismatchError, match=f"rank {worker.rank} keeps 'again'"):
            Kept(worker, "again", first, spec_of("asp"))
        return kept.pull()[0]

    for value in job.everybody(train):
        assert (value == first + 2 * RANKS).all()


def test_ranks_may_push_and_read_in_any_order(job, monkeypatch):
    """Far more than their credit: nothing that others have yet to push keeps back what they wait for."""
    monkeypatch.setattr(door_session, "WINDOW", 1 << 20)
    like = np.zeros(1 << 18)

    def train(worker: Any) -> list[np.ndarray]:
        kept = [Kept(worker, f"any order {number}", like, spec_of("bsp", root=None)) for number in range(16)]
        order = np.roll(np.arange(len(kept)), 5 * worker.rank)
        handles = [kept[one].start(like) for one in order]
        for handle in handles:
            outcomes(handle)
        return [kept[one].pull(least=1)[0] for one in order]

    assert all((value == 0).all() for values in job.everybody(train) for value in values)


def test_an_empty_tensor_is_kept_too(job):
    kept = [Kept(worker, "empty", np.zeros(0, np.float32), spec_of("bsp", root=None)) for worker in job.workers]
    assert kept[0].push(np.zeros(0, np.float32)) == [] == list(kept[0].pull()[1])


def refused(worker: Any, spec: KeepSpec, dtype: str = "float32", count: int = 10, **given: Any) -> None:
    declared = worker.declare([TensorSpec(f"no {dtype} {count} {given}", DType[dtype.upper()], (count,), **given)])[0]
    worker.keep(declared, spec)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda worker: refused(worker, spec_of("bsp"), "float16"), "float16: servers keep values of float32"),
        (lambda worker: refused(worker, spec_of("bsp", root=RANKS)), f"from rank {RANKS} in a world of {RANKS}"),
        (lambda worker: refused(worker, KeepSpec("bsp", "sum", "add", width=3)), "no whole rows of 3 elements"),
        (lambda worker: refused(worker, KeepSpec("bsp", "sum", "add", width=0)), "no whole rows of 0 elements"),
    ],
)
def test_what_no_server_can_keep_is_refused_here(job, call, words):
    for worker in job.workers:
        with pytest.raises(InvalidArgumentError, match=words):
            call(worker)


def test_wrong_arguments(job):
    first = np.zeros(10, np.float32)

    def check(worker: Any) -> None:
        kept = Kept(worker, "arguments", first, spec_of("bsp"))
        for note in ({"weight": 0.0}, {"lr": -1.0}, {"base": -1}, {"weight": 1e300}):
            with pytest.raises(InvalidArgumentError, match="can't be sent"):
                kept.start(first, **note)
        with pytest.raises(InvalidArgumentError, match="no version -1"):
            kept.pull(least=-1)
        with pytest.raises(InvalidArgumentError, match="no address"):
            kept.tensor.pull(0)
        with pytest.raises(InvalidArgumentError, match="partitions"):
            kept.tensor.push(first.ctypes.data, Note(), parts=range(2))

    job.everybody(check)


def test_a_read_waits_as_its_policy_says(job):
    """Two steps ahead of the slowest is one too many under ssp:s=1."""
    first, rank_0_reads = np.zeros(5001, np.float32), threading.Event()

    def train(worker: Any) -> None:
        kept = Kept(worker, "waits", first, spec_of("ssp:s=1"))
        if worker.rank == 0:
            for _ in range(2):
                kept.push(first)
            value = np.empty_like(first)
            handle = kept.tensor.pull(value.ctypes.data)
            with pytest.raises(DeadlineError):
                handle.wait(0.3)
            rank_0_reads.set()
            outcomes(handle)
        else:
            rank_0_reads.wait(DEADLINE)
            kept.push(first)

    job.everybody(train)


def test_a_read_of_a_version_to_come_keeps_no_later_one_back(job):
    """Which all ranks need to make that version."""
    first, steps = np.zeros(12_000, np.int64), 4

    def train(worker: Any) -> np.ndarray:
        kept = Kept(worker, "to come", first, spec_of("bsp"))
        last, one = np.empty_like(first), np.ones_like(first)
        handle = kept.tensor.pull(last.ctypes.data, least=steps)
        for step in range(steps):
            kept.push(one, base=step)
            assert (kept.pull()[0] == RANKS * (step + 1)).all()
        assert {outcome.version for outcome in outcomes(handle)} == {steps}
        return last

    assert all((value == RANKS * steps).all() for value in job.everybody(train))


@pytest.mark.parametrize("makers", WORLDS.values(), ids=WORLDS)
def test_who_waits_long_for_different_values_is_in_no_deadlock(monkeypatch, makers):
    """Ranks 0 and 1 wait for rank 2, not for each other."""
    monkeypatch.setattr("byteps_like.portable.handle._REPORT_AFTER", 0.1)
    monkeypatch.setattr("byteps_like.worker.engine.waiting._REPORT_AFTER", 0.1)
    made = MixedJob(makers=makers, heartbeat_interval=0.2)
    array = np.ones(10)

    def train(worker: Any) -> np.ndarray:
        kept = [Kept(worker, name, array, spec_of("bsp", root=None)) for name in "ab"]
        if worker.rank == 2:
            time.sleep(2.0)  # several heartbeats
        handles = [one.start(array) for one in kept]
        for number in (worker.rank, worker.rank + 1):
            outcomes(handles[number % 2])
        return kept[0].pull(least=1)[0] + kept[1].pull(least=1)[0]

    try:
        assert all((value == 2 * RANKS).all() for value in made.everybody(train))
    finally:
        made.close()


def fails(call: Callable[[], Any]) -> BytePSLikeError:
    try:
        call()
    except BytePSLikeError as error:
        return error
    raise AssertionError("did not fail")


@pytest.mark.parametrize("what", ["policy", "root"])
@pytest.mark.parametrize("makers", WORLDS.values(), ids=WORLDS)
def test_ranks_that_disagree_are_named_on_all_with_both_texts(what, makers):
    made = MixedJob(makers=makers)
    first = np.zeros(10, np.float32)
    usual = spec_of("ssp:s=3")
    odd = spec_of("asp") if what == "policy" else spec_of("ssp:s=3", root=0)

    def keeps(worker: Any) -> None:
        Kept(worker, "w", first, odd if worker.rank == 2 else usual)
        worker.barrier(DEADLINE)  # who came first has opened it before the odd one came

    try:
        errors = made.everybody(lambda w: fails(lambda: keeps(w)))
    finally:
        made.close()
    for error in errors:
        assert isinstance(error, MismatchError), error
        for words in ("'w'", "rank 2", "policy ssp:s=3", "policy asp" if what == "policy" else "the value of rank 0"):
            assert words in str(error), error


@pytest.mark.parametrize("makers", WORLDS.values(), ids=WORLDS)
def test_a_spec_that_servers_refuse_says_why(makers):
    made = MixedJob(makers=makers)
    spec = KeepSpec("bsp", "mean:age=none,damp=none", "add")
    try:
        errors = made.everybody(lambda w: fails(lambda: Kept(w, "i", np.zeros(10, np.int64), spec)))
    finally:
        made.close()
    for error in errors:
        assert isinstance(error, InvalidArgumentError) and "integers can only be summed" in str(error), error


@pytest.mark.parametrize("makers", WORLDS.values(), ids=WORLDS)
def test_a_root_without_a_value_is_told_and_may_bring_one_later(makers):
    made = MixedJob(makers=makers)
    first = drawn(94, 7001, "float32")
    nothing_given = threading.Event()

    def train(worker: Any) -> np.ndarray:
        declared = worker.declare([TensorSpec("w", DType.FLOAT32, first.shape, partition_bytes=PIECE)])[0]
        if worker.rank == 1:
            with pytest.raises(InvalidArgumentError, match=r"'w' \(partition \d\) has no value yet"):
                worker.keep(declared, spec_of("asp"))
            nothing_given.set()
        return Kept(worker, "w", first, spec_of("asp")).pull()[0]

    try:
        assert all((value == first).all() for value in made.everybody(train))
        assert nothing_given.is_set()
    finally:
        made.close()


KILLED = """
import sys
from byteps_like.config import Config
from byteps_like.dtypes import DType
from byteps_like.portable.join import join
from byteps_like.worker.api import TensorSpec
from byteps_like.worker.keeping import KeepSpec

worker = join(Config.from_env())
declared = worker.declare([TensorSpec("w", DType.FLOAT32, (10_000,), partition_bytes=20_000)])[0]
worker.keep(declared, KeepSpec(*sys.argv[1:4]))
print("in", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("maker", [join, native_worker])
def test_who_reads_what_a_killed_rank_should_have_pushed_to_learns_its_name(maker):
    made = MixedJob(makers=[maker] * 2, others=1)
    spec = spec_of("bsp", root=None)
    command = [sys.executable, "-c", KILLED, spec.policy, spec.combine, spec.update]
    own = subprocess.Popen(command, env=made.environment(2), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        made.start()
        array = np.ones(10_000, np.float32)
        kept = made.everybody(lambda w: Kept(w, "w", array, spec))
        assert own.stdout is not None and own.stdout.readline() == "in\n"
        handles = [one.start(array) for one in kept]
        own.kill()
        errors = [fails(one.pull) for one in kept] + [fails(lambda one=one: outcomes(one)) for one in handles]
    finally:
        own.kill()
        own.wait(DEADLINE)
        made.close()
    for error in errors:
        assert isinstance(error, PeerLostError) and "worker 2" in str(error), error


@pytest.mark.parametrize("policy", ["asp", "bsp", "k_of_n:k=2,late=next"])
@pytest.mark.parametrize("seed", range(2))
def test_cut_connections_cost_nothing(policy, seed):
    """Connections are cut at any byte, in the first value, too; sums of integers stay exact, reads whole."""
    proxies: list[CuttingProxy] = []

    def through(url: str) -> str:
        proxies.append(CuttingProxy(url, len(proxies) + 100 * seed, cuts=6, most_bytes=1_500_000))
        return proxies[-1].url

    made = MixedJob(makers=[lambda config: portable_through(config, through)] * 2)
    first, pushes = drawn(93, 100_001, "int64"), 6
    ended = threading.Barrier(2)

    def train(worker: Any) -> tuple[np.ndarray, list[Outcome]]:
        kept = Kept(worker, "w", first, spec_of(policy))
        arrays = [np.full_like(first, 10**step * (1 + worker.rank)) for step in range(pushes)]
        handles = []
        for step, array in enumerate(arrays):
            handles.append(kept.start(array))
            if step % 2:
                outcomes(handles[-1])
                value = kept.pull()[0] - first
                for one in kept.slices():
                    assert len(set(value[one])) == 1, "one version of each partition"
        found = [one for handle in handles for one in outcomes(handle)]
        ended.wait(DEADLINE)
        return kept.pull()[0], found

    try:
        for value, found in made.everybody(train):
            assert {one.applied for one in found} == {Applied.COUNTED}
            assert (value == first + 3 * 111_111).all()
        assert sum(proxy.cuts_left for proxy in proxies) < 20
    finally:
        made.close()
        for proxy in proxies:
            proxy.close()
