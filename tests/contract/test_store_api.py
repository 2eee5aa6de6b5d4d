"""The store's interface over portable and native workers, and native servers: against the update's reference, closed
forms, and torch; versions, ages, weights, bounds, parts, rows and wholes; what it refuses."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from mixed_job import DEADLINE, WORLDS, MixedJob

from byteps_like.errors import (
    DeadlineError,
    InvalidArgumentError,
    MismatchError,
    NotInitializedError,
    StalledError,
)
from byteps_like.portable.join import join
from byteps_like.store.policies.bounded import Ssp
from byteps_like.store.store import Store
from byteps_like.store.updates.registry import update_of
from byteps_like.worker.current import current
from byteps_like.worker.local import LocalWorker

RANKS = 3


@pytest.fixture(scope="module", params=WORLDS)
def job(request: pytest.FixtureRequest) -> Iterator[MixedJob]:
    made = MixedJob(makers=WORLDS[request.param])
    yield made
    made.close()


def drawn(seed: int, shape: Any, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def dyadic(seed: int, shape: Any) -> np.ndarray:
    """Sums of these, by weights of eighths, are exact in any order."""
    return np.round(drawn(seed, shape) * 64) / np.float32(64)


def pulled(store: Store, name: str, like: Any) -> Any:
    out = np.full_like(like, 99)
    store.pull(name, out).wait(DEADLINE)
    return out


@pytest.mark.parametrize(
    ("update", "shape", "whole"),
    [("sgd:lr=0.1", (1001,), False), ("adam:lr=0.01", (300, 1001), False), ("row_adagrad:lr=0.5", (40_001, 3), False),
     ("lamb:lr=0.1", (300, 1001), True), ("momentum:lr=0.1", (), False)],
)  # fmt: skip
def test_bsp_is_the_update_of_the_weighted_mean(job, update, shape, whole):
    rule, first, steps = update_of(update), drawn(0, shape), 3
    value = first.reshape(shape or (1,))
    state = rule.fresh_state(value)
    weights = np.array([1.0, 2.0, 5.0])
    for step in range(steps):
        grads = [dyadic(10 * step + rank + 1, shape).reshape(value.shape) for rank in range(RANKS)]
        products = [np.float32(w / weights.sum()) * g for w, g in zip(weights, grads, strict=True)]
        mean = sum(products[1:], products[0])
        value, state = rule.apply(value, state, mean, 0.25 if step == 1 else None, step + 1)

    def train(worker: Any) -> np.ndarray:
        given = {"w": first if worker.rank == 0 else np.zeros_like(first)}
        store = Store(f"bsp {update}", given, update=update, whole=whole, worker=worker)
        assert np.array_equal(pulled(store, "w", first), first)
        out = np.empty_like(first)
        for step in range(steps):
            lr = 0.25 if step == 1 else None
            grad = dyadic(10 * step + worker.rank + 1, shape)
            future = store.push_pull("w", grad, out, weight=weights[worker.rank], lr=lr)
            future.wait(DEADLINE)
            assert (future.version, future.age, future.counted) == (step + 1, 0, True)
            assert future.done() and future.weight == weights[worker.rank] and future.time > 0
        assert set(store.versions("w")) == {steps}
        assert not whole or len(store.slices("w")) == 1
        if "row" in update:
            assert all(one.start % 3 == 0 for one in store.slices("w")) and len(store.slices("w")) > 1
        return out

    for found in job.everybody(train):
        assert np.array_equal(found.reshape(value.shape), value)


def test_nobody_waits_for_a_rank_that_ticks_and_it_is_in_no_mean(job):
    def train(worker: Any) -> Any:
        given = {"w": np.zeros(70_001, np.float32), "b": np.zeros((), np.float32)}
        store = Store("ticks", given, update="sgd:lr=1", worker=worker)
        said, out = [], np.empty_like(given["w"])
        for step in range(4):
            if step == worker.rank or step == 3:
                future = store.tick("w")
                if step:
                    store.tick("b")
            else:
                future = store.push("w", np.full_like(out, worker.rank + 1.0))
                if step:
                    store.push("b", np.float32(worker.rank)).wait(DEADLINE)
            future.wait(DEADLINE)
            store.pull("w", out).wait(DEADLINE)
            said.append((out.copy(), future.version, future.counted, future.age, future.contributors))
        return said, pulled(store, "b", given["b"])

    for said, b in job.everybody(train):
        present = [[other for other in range(RANKS) if other != step] for step in range(3)] + [[]]
        value = 0.0
        for step, (out, version, counted, age, contributors) in enumerate(said):
            others = present[step]
            value -= sum(one + 1.0 for one in others) / max(len(others), 1)
            assert np.array_equal(out, np.full_like(out, np.float32(value)))
            assert (version, counted, age) == (step + 1, True, 0)
            assert contributors == tuple(others)
        assert b == -(0 + 2) / 2 - (0 + 1) / 2


def test_a_call_that_waits_for_others_holds_no_push_up(job):
    pushed = threading.Event()

    def train(worker: Any) -> float | None:
        store = Store("called", {"w": np.zeros(9)}, combine="sum", worker=worker)
        if worker.rank:
            pushed.wait(DEADLINE)
        store.push("w", np.ones(9))
        found = None
        if not worker.rank:
            with ThreadPoolExecutor(2) as threads:
                called = threads.submit(store.call, "dot", ["w", "w"])
                wait([called], 0.3)  # it is under way by then, and waits for the others
                try:
                    threads.submit(store.push, "w", np.ones(9)).result(5)
                finally:
                    pushed.set()
                found = called.result(DEADLINE)["dot"]
        else:
            store.push("w", np.ones(9))
        worker.barrier()
        return found

    found = job.everybody(train)[0]
    assert found in (9 * 3.0**2, 9 * 6.0**2)  # of the first version, or the second if that was there by then


@pytest.mark.parametrize("consistency", ["ssp:s=0", "bsp", "k_of_n:k=2", "asp"])
def test_a_rank_that_only_ticks_holds_nobody_up(job, consistency):
    def train(worker: Any) -> float:
        store = Store(f"idle {consistency}", {"w": np.zeros(9)}, consistency=consistency, combine="sum", worker=worker)
        out = np.zeros(9)
        for _ in range(5):
            if worker.rank == 1:
                store.tick("w")
            else:
                store.push("w", np.ones(9))
            store.pull("w", out).wait(DEADLINE)
            worker.barrier()
        return float(pulled(store, "w", out)[0])

    counted = job.everybody(train)
    assert len(set(counted)) == 1
    assert counted[0] <= 10.0 if consistency.startswith("k_of_n") else counted[0] == 10.0


@pytest.mark.parametrize("consistency", ["asp", "ssp:s=9", "k_of_n:k=2,late=next"])
def test_whoever_has_finished_reads_what_all_have_contributed(job, consistency):
    def train(worker: Any) -> np.ndarray:
        store = Store(f"over {consistency}", {"w": np.zeros(9)}, consistency=consistency, combine="sum", worker=worker)
        if worker.rank == worker.size - 1:
            time.sleep(0.3)
        for _ in range(worker.rank):
            store.push("w", np.ones(9))
        store.finish()
        return pulled(store, "w", np.zeros(9))

    for found in job.everybody(train):
        np.testing.assert_array_equal(found, np.full(9, sum(worker.rank for worker in job.workers)))


def test_adam_is_that_of_torch(job):
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.arange(1000, dtype=torch.float64) / 100)
    first = parameter.detach().clone()
    optimizer = torch.optim.Adam([parameter], lr=0.01)
    for step in range(4):
        parameter.grad = torch.full_like(first, step + 1.0)  # the mean of ranks 0, 1 and 2
        optimizer.step()

    def train(worker: Any) -> Any:
        store = Store("torch", {"w": first}, update="adam:lr=0.01", worker=worker)
        out = torch.empty_like(first)
        for step in range(4):
            store.push_pull("w", torch.full_like(first, step + float(worker.rank)), out).wait(DEADLINE)
        return out

    for found in job.everybody(train):
        torch.testing.assert_close(found, parameter.detach(), rtol=1e-12, atol=1e-12)


def test_where_gradients_have_no_noise_one_is_enough(job):
    """k="auto": all ranks are waited for until servers have seen that, which they have after two versions."""
    first = np.ones(100_003, np.float32)
    turn = threading.Barrier(RANKS)

    def train(worker: Any) -> list[tuple[int, ...]]:
        store = Store("adaptive", {"w": first}, consistency="k_of_n:k=auto", worker=worker)
        out, found = np.empty_like(first), []
        for _ in range(2):
            future = store.push_pull("w", first, out)
            future.wait(DEADLINE)
            found.append(future.contributors)
        turn.wait(DEADLINE)
        if worker.rank == 0:
            found.append(store.push("w", first).contributors)
        turn.wait(DEADLINE)
        return found

    everybody = tuple(range(RANKS))
    assert [*job.everybody(train)] == [[everybody] * 2 + [(0,)], [everybody] * 2, [everybody] * 2]


def test_a_future_names_the_contributors_of_its_version(job):
    first = np.zeros(1_000_003, np.float32)  # in several partitions
    turn = threading.Barrier(RANKS)

    def train(worker: Any) -> list[tuple[int, ...]]:
        found = []
        for consistency in ("bsp", "asp", "k_of_n:k=2"):
            store = Store(f"contributors {consistency}", {"w": first}, consistency=consistency, worker=worker)
            if consistency == "k_of_n:k=2" and worker.rank == 1:
                turn.wait(DEADLINE)
            future = store.push("w", first if worker.rank != 2 or consistency != "bsp" else first + np.nan)
            read = store.push_pull("w", first, np.empty_like(first)) if consistency == "asp" else future
            future.wait(DEADLINE)
            if consistency == "k_of_n:k=2" and worker.rank != 1:
                turn.wait(DEADLINE)
            found += [future.contributors] + ([read.contributors] if consistency == "asp" else [])
        out = np.empty_like(first)
        assert store.pull("w", out).contributors == ()
        return found

    alone = [(0, 1), (0,), (0,), (0, 2)], [(0, 1), (1,), (1,), ()], [(0, 1), (2,), (2,), (0, 2)]
    assert [*job.everybody(train)] == [*alone]


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_short_floats_are_kept_as_float32(job, kind):
    torch = pytest.importorskip("torch")
    first = torch.ones(1000, dtype=getattr(torch, kind))

    def train(worker: Any) -> Any:
        store = Store(f"short {kind}", {"w": first}, combine="sum", worker=worker)
        out, wide = torch.empty_like(first), np.empty(1000, np.float32)
        store.push_pull("w", torch.full_like(first, 2.0**-10), out).wait(DEADLINE)
        store.pull("w", wide).wait(DEADLINE)
        return out, wide

    for out, wide in job.everybody(train):
        assert (wide == 1 + 3 * 2.0**-10).all() and out.dtype == first.dtype
        assert torch.equal(out, torch.from_numpy(wide).to(out.dtype))


def test_bases_ages_and_parts(job):
    first = np.zeros(1_000_003, np.int64)
    turn = threading.Barrier(RANKS)

    def train(worker: Any) -> None:
        store = Store("ages", {"w": first}, consistency="asp", combine="sum", worker=worker)
        parts = store.slices("w")
        assert len(parts) > 2
        for rank in range(RANKS):
            if rank == worker.rank:
                future = store.push("w", first + 1, part=1)
                assert (future.version, future.age) == (rank + 1, rank)
            turn.wait(DEADLINE)
        out = pulled(store, "w", first)
        assert store.versions("w") == tuple(3 if part == 1 else 0 for part in range(len(parts)))
        wanted = first.copy()
        wanted[parts[1]] = 3
        assert np.array_equal(out, wanted)
        turn.wait(DEADLINE)
        if worker.rank == 0:  # partitions of several versions go as computed on their own
            assert store.push("w", first + 1).age == 0
            assert store.push("w", first + 1, base=0, part=range(1, 2)).age == 4
            with pytest.raises(InvalidArgumentError, match="base=9"):
                store.push("w", first, base=9)
        with pytest.raises(InvalidArgumentError, match="part=99"):
            store.push("w", first, part=99)
        turn.wait(DEADLINE)

    job.everybody(train)


def test_ssp_bounds_the_lead_and_reads_own_pushes(job):
    first, steps, bound = np.zeros(10, np.int64), 12, 2
    begun = [0] * RANKS

    def train(worker: Any) -> None:
        store = Store("lead", {"w": first}, consistency=Ssp(bound), combine="sum", worker=worker)
        for step in range(steps):
            begun[worker.rank] += 1
            store.push("w", np.full_like(first, 10 ** (4 * worker.rank)))
            out = pulled(store, "w", first)
            done = [int(out[0]) // 10 ** (4 * rank) % 10_000 for rank in range(RANKS)]
            assert done[worker.rank] == step + 1
            assert min(begun) >= min(done) >= step + 1 - bound

    job.everybody(train)


def test_backup_tells_who_was_late(job):
    first = np.zeros(5, np.float32)
    turn = threading.Barrier(RANKS)

    def train(worker: Any) -> tuple[bool, float]:
        store = Store("late", {"w": first}, consistency="backup:b=1", worker=worker)
        if worker.rank == 2:
            turn.wait(DEADLINE)
        future = store.push("w", first + worker.rank + 1)
        counted = future.counted
        if worker.rank != 2:
            turn.wait(DEADLINE)
        return counted, float(pulled(store, "w", first)[0])

    assert job.everybody(train) == [(True, 1.5), (True, 1.5), (False, 1.5)]


REFUSED = [
    ({"consistency": "k_of_n:k=4"}, "k=4"), ({"consistency": "backup:b=3"}, "b=3"),
    ({"consistency": "ssp:s=-1"}, "s=-1"),
    ({"consistency": "dssp:lo=2,hi=1"}, "lo=2"), ({"consistency": "asp", "update": "none"}, "no rounds"),
    ({"update": "lars"}, "whole=True"), ({"init": "ones"}, "init='ones'"), ({"combine": "max"}, "combine"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "match"), REFUSED)
def test_terms_that_cannot_be_are_refused_before_anything_is_sent(job, arguments, match):
    with pytest.raises(InvalidArgumentError, match=match):
        Store("refused", {"w": np.zeros(3)}, worker=job.workers[0], **arguments)


def test_values_that_cannot_be_are_refused(job):
    worker = job.workers[0]
    for value, match in ((np.zeros(3, np.int32), "int32"), ([1.0], "list"), (np.zeros(3, np.int64), "integers")):
        with pytest.raises(InvalidArgumentError, match=match):
            Store("refused", {"w": value}, worker=worker)
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), ((1 << 28) + 1,), (0,))
    with pytest.raises(InvalidArgumentError, match="whole"):
        Store("refused", {"w": huge}, whole=True, worker=worker)


def test_pushes_that_cannot_be_are_refused(job):
    def attempt(worker: Any) -> None:
        store = Store("pushes", {"w": np.zeros(3)}, worker=worker)
        for arguments, match in (({"weight": 0.0}, "weight"), ({"lr": -1.0}, "lr")):
            with pytest.raises(InvalidArgumentError, match=match):
                store.push("w", np.zeros(3), **arguments)
        with pytest.raises(InvalidArgumentError, match="shape"):
            store.push("w", np.zeros(4))
        with pytest.raises(InvalidArgumentError, match="has no 'v'"):
            store.push("v", np.zeros(3))

    job.everybody(attempt)


def test_a_policy_that_all_ranks_change_holds_for_what_waits_and_what_comes(job):
    first = np.zeros(300_000, np.int64)
    meeting = threading.Barrier(RANKS)

    def train(worker: Any) -> Any:
        store = Store("change", {"w": first, "v": first}, consistency="bsp", combine="sum", worker=worker)
        early = store.push("w", first + 1) if worker.rank == 0 else None  # which waits for the others
        store.change("asp")
        assert store.consistency == "asp"
        if early:
            early.wait(DEADLINE)
        meeting.wait(DEADLINE)
        store.push("w", first + 1).wait(DEADLINE)
        meeting.wait(DEADLINE)
        store.change("bsp")
        out = np.empty_like(first)
        store.push_pull("w", first + 1, out).wait(DEADLINE)
        return out, store.versions("w")

    for out, versions in job.everybody(train):
        assert (out == 1 + RANKS + RANKS).all() and set(versions) == {1 + RANKS + 1}


def test_waiting_for_a_contribution_of_which_no_version_is_made_has_an_end(job, monkeypatch):
    store = job.everybody(lambda worker: Store("left", {"w": np.zeros(3)}, consistency="k_of_n:k=2", worker=worker))
    worker, future = job.workers[0], store[0].push("w", np.ones(3))
    is_portable = "stall_timeout" in vars(worker)
    monkeypatch.setattr(worker if is_portable else type(worker), "stall_timeout", 0.2)
    words = "made no progress" if is_portable else "rank 0: no version has been made of a contribution to"
    with pytest.raises(StalledError, match=words):
        future.wait()
    with pytest.raises(DeadlineError):
        future.wait(0.1)
    store[1].push("w", np.ones(3)).wait(DEADLINE)
    future.wait(DEADLINE)
    assert future.counted


def test_policies_that_can_not_be_changed_to_are_refused_at_once(job):
    store = job.everybody(lambda worker: Store("fixed", {"w": np.zeros(3)}, update="none", worker=worker))[0]
    for policy, match in (("asp", "has no rounds"), ("backup:b=3", "of 3 leave none"), ("never", "no policy")):
        with pytest.raises(InvalidArgumentError, match=match):
            store.change(policy)
    assert store.consistency == "bsp"


def test_a_job_without_servers_has_no_store():
    with pytest.raises(InvalidArgumentError, match="needs servers"):
        Store("alone", {"w": np.zeros(3)}, worker=LocalWorker(1 << 20))


def test_a_process_in_no_job_has_no_store():
    with pytest.raises(NotInitializedError):
        current()


def test_ranks_that_differ_hear_of_it():
    made = MixedJob(makers=[join] * 2)
    try:

        def differ(worker: Any) -> str:
            with pytest.raises(MismatchError) as caught:
                store = Store("differ", {"w": np.zeros(3)}, consistency=f"ssp:s={worker.rank + 1}", worker=worker)
                for _ in range(100):
                    store.push_pull("w", np.zeros(3), np.zeros(3)).wait(DEADLINE)
            return str(caught.value)

        for text in made.everybody(differ):
            assert "ssp:s=1" in text and "ssp:s=2" in text, text
    finally:
        made.close()
