"""Functions on servers, over portable and native workers: as updates, against what NumPy makes of them, and called on
tensors that lie together; L-BFGS by calls against torch; exactly once over connections that are cut."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from cutting_proxy import CuttingProxy
from mixed_job import DEADLINE, WORLDS, MixedJob, native_worker, portable_through

from byteps_like.errors import InvalidArgumentError, MismatchError, StalledError
from byteps_like.portable.join import join
from byteps_like.store import Pushed, command, function
from byteps_like.store.kv import KV
from byteps_like.store.store import Store
from byteps_like.store.updates.registry import update_of

RANKS = 3
SIZE = 300_007
"""Elements: several partitions, the last one uneven."""
seen: list[Pushed] = []


@function("test.momentum", state=1)
def momentum(value: Any, state: Any, push: Pushed) -> None:
    state[0] = value.dtype.type(0.5) * state[0] + push.gradient
    value -= value.dtype.type(push.lr or 1.0) * state[0]


@function("test.record", state=lambda shape: (2,))
def record(value: Any, state: Any, push: Pushed) -> None:
    assert not push.gradient.flags.writeable and state.shape == (2,)
    state += 1
    value += push.gradient
    copied = Pushed(push.gradient.copy(), push.lr, push.version, push.contributions)
    seen.append(copied)


@function("test.explode")
def explode(value: Any, state: Any, push: Pushed) -> None:
    value[:] = np.inf
    raise KeyError("nothing of the kind")


@function("test.keep")
def keep(value: Any, state: Any, push: Pushed) -> None:
    kept.append(value)


@function("test.divide", state=1)
def divide(value: Any, state: Any, push: Pushed) -> None:
    state += 1
    with np.errstate(divide="ignore"):
        value += 1 / push.gradient


@function("test.predicted")
def predicted(value: Any, state: Any, push: Pushed) -> None:
    """In the manner of LC-ASGD: the older a gradient, the more its loss overstates the present one."""
    value -= (push.lr or 0.1) / (1 + push.age) * min(1.0, push.loss) * push.gradient


@function("test.toward")
def toward(value: Any, state: Any, push: Pushed) -> None:
    assert state.size == 0
    value += (push.gradient - value) / 2


@function("test.toward_zero")
def toward_zero(value: Any, state: Any, push: Pushed) -> None:
    value /= 2


@command("test.one_norm")
def one_norm(views: Any, scalars: Any) -> dict[str, float]:
    return {"sum": float(np.abs(views[0]).sum()), "count": len(views[0])}


@command("test.clip", writes=[1])
def clip(views: Any, scalars: Any) -> None:
    low, high = views
    np.minimum(low, high, out=high)
    high[high < scalars["least"]] = scalars["least"]


@command("test.add_one", writes=[0])
def add_one(views: Any, scalars: Any) -> dict[str, float]:
    """With an answer that is long enough to be lost."""
    views[0][:] += 1
    return {f"figure {number}": number for number in range(200)}


@command("test.zero", writes=[0])
def zero(views: Any, scalars: Any) -> None:
    assert views[0].shape == (len(views[0]), 2)
    views[0][:] = 0


@command("test.fail", writes=[0])
def fail(views: Any, scalars: Any) -> None:
    views[0][:] = 7
    raise ValueError("it does not work")


kept: list[Any] = []


@pytest.fixture(scope="module", params=WORLDS)
def job(request: pytest.FixtureRequest) -> Iterator[MixedJob]:
    made = MixedJob(makers=WORLDS[request.param])
    yield made
    made.close()


def drawn(seed: int, shape: Any, dtype: str = "float32") -> np.ndarray:
    if dtype == "int64":
        return np.random.default_rng(seed).integers(-1000, 1000, shape)
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def pulled(store: Store, name: str, like: Any) -> Any:
    out = np.empty_like(like)
    store.pull(name, out).wait(DEADLINE)
    return out


# Functions as updates


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_function_is_an_update_with_a_state(job, dtype):
    first, steps = drawn(0, SIZE, dtype), 4
    rule, value = update_of("function:test.momentum"), first
    state = rule.fresh_state(value)
    gradients = [drawn(1 + step, SIZE, dtype) for step in range(steps)]
    for step, gradient in enumerate(gradients):
        value, state = rule.apply(value, state, gradient, 0.25 if step == 2 else None, step + 1)

    def train(worker: Any) -> np.ndarray:
        arguments: dict[str, Any] = {"consistency": "asp", "update": "function:test.momentum", "worker": worker}
        store = Store(f"momentum {dtype}", {"w": first}, **arguments)
        if worker.rank == 1:
            for step, gradient in enumerate(gradients):
                assert store.push("w", gradient, lr=0.25 if step == 2 else None).counted
        worker.barrier(DEADLINE)
        assert len(store.slices("w")) > 2
        return pulled(store, "w", first)

    for found in job.everybody(train):
        assert np.array_equal(found, value)


def test_a_function_sees_who_has_pushed_what_and_when(job):
    first = np.zeros(5, np.int64)
    seen.clear()

    def train(worker: Any) -> None:
        store = Store("who", {"w": first}, consistency="asp", combine="sum", update="function:test.record",
                      worker=worker)  # fmt: skip
        for rank in range(RANKS):
            if rank == worker.rank:
                for loss in (2.5, np.nan):
                    assert store.push("w", first + rank, weight=2.0, lr=0.5, loss=loss).counted
            worker.barrier(DEADLINE)

    job.everybody(train)
    assert [(push.rank, push.clock, push.base, push.version, push.age) for push in seen] == [
        (rank, clock, 0, 2 * rank + clock + 1, 2 * rank + clock) for rank in range(RANKS) for clock in range(2)
    ]
    assert [push.loss for push in seen[::2]] == [2.5] * 3 and np.isnan([push.loss for push in seen[1::2]]).all()
    assert all((push.weight, push.lr, len(push.contributions)) == (2.0, 0.5, 1) for push in seen)
    assert [push.gradient.tolist() for push in seen] == [[2 * rank] * 5 for rank in range(RANKS) for _ in range(2)]


def test_a_round_is_one_call_with_what_was_combined(job):
    first = np.zeros(7, np.float32)
    seen.clear()

    def train(worker: Any) -> np.ndarray:
        store = Store("round", {"w": first}, update="function:test.record", worker=worker)
        out = np.empty_like(first)
        store.push_pull("w", first + 3 * worker.rank, out, loss=float(worker.rank)).wait(DEADLINE)
        return out

    for out in job.everybody(train):
        assert (out == 3).all()
    (push,) = seen
    assert sorted((one.source, one.loss) for one in push.contributions) == [(0, 0), (1, 1), (2, 2)]
    assert push.lr is None and push.version == 1 and push.rank in range(RANKS)


def test_what_is_not_finite_is_not_applied_and_the_state_neither(job):
    first = np.ones(9, np.float64)

    def train(worker: Any) -> Any:
        store = Store("finite", {"w": first}, consistency="asp", update="function:test.divide", worker=worker)
        divisors = (0.0, 2.0) if worker.rank == 0 else ()
        told = [store.push("w", np.full_like(first, divisor)).counted for divisor in divisors]
        worker.barrier(DEADLINE)
        return told, pulled(store, "w", first)

    found = job.everybody(train)
    assert found[0][0] == [False, True]
    assert all((out == 1.5).all() for _, out in found)


def test_a_toy_predictor_gets_at_least_as_far_as_asp(job):
    """The gradients of old weights are too large: with a rate that is near what diverges, asp does worse."""
    target, steps = drawn(3, 40, "float64"), 30
    losses: dict[str, float] = {}
    for update in ("sgd:lr=0.9", "function:test.predicted"):

        def train(worker: Any, update: str = update) -> float:
            store = Store(f"lc {update}", {"w": np.zeros(40)}, consistency="asp", update=update, worker=worker)
            weights = np.zeros(40)
            for _ in range(steps):
                store.pull("w", weights).wait(DEADLINE)
                worker.barrier(DEADLINE)  # all gradients are of the same weights: their ages are 0, 1 and 2
                loss = 0.5 * float(np.square(weights - target).sum())
                store.push("w", weights - target, loss=loss, lr=0.9).wait(DEADLINE)
                worker.barrier(DEADLINE)
            return 0.5 * float(np.square(pulled(store, "w", weights) - target).sum())

        losses[update] = job.everybody(train)[0]
    assert losses["function:test.predicted"] <= losses["sgd:lr=0.9"]


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ("function:test.explode", ["'test.explode' raised KeyError: 'nothing of the kind'", "'store/broken/w'"]),
        ("function:test.keep", ["'test.keep' keeps an array that it was given", "'store/broken/w'"]),
        ("function:nobodys", ["has no function nobodys", "--import", "'store/broken/w'"]),
    ],
)
def test_what_goes_wrong_in_a_function_is_told_on_all_ranks(update, words):
    made = MixedJob(makers=[join, native_worker])
    try:

        def broken(worker: Any) -> str:
            with pytest.raises(InvalidArgumentError) as caught:
                store = Store("broken", {"w": np.zeros(3)}, consistency="asp", update=update, worker=worker)
                for _ in range(1000):
                    store.push_pull("w", np.ones(3), np.zeros(3)).wait(DEADLINE)
            return str(caught.value)

        for text in made.everybody(broken):
            assert all(word in text for word in words), text
    finally:
        kept.clear()
        made.close()


# Calls


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("shape", [SIZE, (3, 5), 0])
def test_linear_algebra_on_servers(job, dtype, shape):
    x, y = drawn(1, shape, dtype), drawn(2, shape, dtype)
    kind = x.dtype.type

    def work(worker: Any) -> Any:
        store = Store(f"linear {dtype} {shape}", {"x": x, "y": y}, combine="sum", worker=worker)
        found = []
        if worker.rank == 0:
            assert store.call("axpy", ["x", "y"], a=3) == {}
            assert store.call("scale", "x", a=-2.0) == {}
            found = [store.call("dot", ["x", "y"])["dot"], store.call("dot", ["x", "x"])["dot"]]
        worker.barrier(DEADLINE)
        after = pulled(store, "x", x), pulled(store, "y", y)
        assert set(store.versions("y")) <= {1} and set(store.versions("x")) <= {1}
        worker.barrier(DEADLINE)
        if worker.rank == 2:
            store.call("copy", ["y", "x"])
            assert np.array_equal(pulled(store, "x", x), after[1])
            store.call("scale", "x", a=3)
            store.call("merge", ["x", "y"], a=2)
            assert np.array_equal(pulled(store, "x", x), (apart := kind(3) * after[1] - after[1]))
            assert np.array_equal(pulled(store, "y", x), after[1] + kind(2) * apart)
        return found, after

    results = job.everybody(work)
    moved, scaled = y + kind(3) * x, kind(-2) * x
    for _, (found_x, found_y) in results:
        assert np.array_equal(found_x, scaled) and np.array_equal(found_y, moved)
    wide = scaled.astype(np.float64), moved.astype(np.float64)
    assert results[0][0] == pytest.approx([(wide[0] * wide[1]).sum(), (wide[0] * wide[0]).sum()], rel=1e-9)


def test_a_call_sees_what_its_rank_has_pushed_and_waits_as_a_pull_does(job):
    first = np.zeros(SIZE, np.int64)
    order: list[str] = []
    called = threading.Event()

    def work(worker: Any) -> None:
        store = Store("waits", {"x": first, "y": first}, combine="sum", worker=worker)  # bsp
        if worker.rank == 2:
            called.wait(DEADLINE)
            order.append("the last push")
        future = store.push("y", first + 1)
        if worker.rank == 0:
            called.set()
            store.call("axpy", ["y", "x"], a=2)
            order.append("the call")
        future.wait(DEADLINE)
        worker.barrier(DEADLINE)
        assert (pulled(store, "x", first) == 2 * RANKS).all() and (pulled(store, "y", first) == RANKS).all()
        assert set(store.versions("x")) == set(store.versions("y")) == {1}
        worker.barrier(DEADLINE)
        assert store.call("dot", ["x", "y"], after=[store.push("x", first + 1)])["dot"] == SIZE * RANKS * 3 * RANKS

    job.everybody(work)
    assert order == ["the last push", "the call"]


def test_own_functions_are_called_on_each_partition(job):
    x, y = drawn(1, SIZE), drawn(2, SIZE)

    def work(worker: Any) -> Any:
        store = Store("own", {"x": x, "y": y}, consistency="ssp:s=2", worker=worker)
        found = store.call("test.one_norm", ["y"])
        worker.barrier(DEADLINE)
        if worker.rank == 1:
            assert store.call("test.clip", ["x", "y"], least=-1.5) == {}
        worker.barrier(DEADLINE)
        return found, pulled(store, "y", y), pulled(store, "x", x)

    for found, after, untouched in job.everybody(work):
        assert found == {"sum": pytest.approx(np.abs(y).sum(dtype=np.float64), rel=1e-5), "count": SIZE}
        assert np.array_equal(after, np.maximum(np.minimum(x, y), np.float32(-1.5))) and np.array_equal(untouched, x)


@pytest.mark.parametrize("width", [1, 3, 200_000])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_function_runs_on_the_rows_of_a_range(job, dtype, width):
    keys = np.sort(KV.spread(range(40), 40))
    rows = drawn(width, (len(keys), width), dtype)
    low, high = int(keys[7]), int(keys[31])

    def work(worker: Any) -> Any:
        table = KV(f"ranged {dtype} {width}", width, dtype, consistency="ssp:s=1", combine="sum", worker=worker)
        own = slice(worker.rank, None, RANKS)
        table.push(keys[own], rows[own]).wait(DEADLINE)
        worker.barrier(DEADLINE)
        found = table.push_range(low, high, "test.one_norm")
        none = table.push_range(high, high, "test.one_norm")
        worker.barrier(DEADLINE)
        if worker.rank == 1:
            before = table.pull(keys).version
            assert table.push_range(low, high, "scale", a=3) == {}
            assert table.pull(keys).version > before
        worker.barrier(DEADLINE)
        return found, none, table.pull(keys).value

    expected = rows.copy()
    expected[7:31] *= 3
    for found, none, after in job.everybody(work):
        assert found == {"sum": pytest.approx(np.abs(rows[7:31]).sum(dtype=np.float64), rel=1e-5), "count": 24}
        assert none == {} and np.array_equal(after, expected)


@pytest.mark.parametrize("consistency", ["asp", "bsp"])
def test_a_push_asks_for_a_function_instead_of_the_update(job, consistency):
    """Which leaves the update's state as it is, and counts as one of its steps."""
    keys = np.arange(1, 60, dtype=np.uint64) << np.uint64(56)
    update = update_of("momentum:lr=1,momentum=0.5")

    def work(worker: Any) -> Any:
        table = KV(f"asked {consistency}", 2, consistency=consistency, update="momentum:lr=1,momentum=0.5",
                   functions=["test.toward", "test.toward_zero"], worker=worker)  # fmt: skip
        for step, name in enumerate(("", "test.toward", "", "test.toward_zero", "")):
            if consistency == "bsp" or worker.rank == 0:
                table.push(keys, np.full((len(keys), 2), step + 1.0, np.float32), function=name).wait(DEADLINE)
        worker.barrier(DEADLINE)
        return table.pull(keys).value

    value, state, ranks = np.zeros((1, 2)), np.zeros((1, 1, 2)), RANKS if consistency == "bsp" else 1
    for step, made in enumerate(("update", 0.5, "update", 0, "update")):
        gradient = np.full((1, 2), ranks * (step + 1.0))
        if made == "update":
            value, state = update.apply(value, state, gradient)
        else:
            value = value + made * (gradient - value) if made else 0.5 * value
    for found in job.everybody(work):
        np.testing.assert_allclose(found, np.broadcast_to(value, found.shape), rtol=1e-6)


def test_a_push_asks_for_a_function_of_the_table_only(job):
    def attempt(worker: Any) -> None:
        table = KV("not asked", 1, functions=["test.toward"], worker=worker)
        with pytest.raises(InvalidArgumentError, match=r"'test\.other': KV 'not asked' has test\.toward; make it with"):
            table.push([1], [[1.0]], function="test.other")

    job.everybody(attempt)


@pytest.mark.parametrize(
    ("name", "words"),
    [("nobodys", "has no function nobodys"), ("test.momentum", "function test.momentum has a state")],
)
def test_functions_that_a_table_can_not_have_are_refused_on_all_ranks(name, words):
    made = MixedJob(makers=[join, native_worker])

    def attempt(worker: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=words):
            KV("refused", 1, functions=["test.toward", name], worker=worker).push([1], [[1.0]]).wait(DEADLINE)

    try:
        made.everybody(attempt)
    finally:
        made.close()


def test_ranks_ask_for_the_same_in_a_round():
    made = MixedJob(makers=[join, native_worker])

    def attempt(worker: Any) -> str:
        table = KV("two ways", 1, consistency="bsp", functions=["test.toward"], worker=worker)
        with pytest.raises(MismatchError) as caught:
            table.push([1], [[1.0]], function="test.toward" if worker.rank else "").wait(DEADLINE)
        return str(caught.value)

    try:
        for text in made.everybody(attempt):
            assert "function test.toward" in text and "its update" in text and "in a round" in text, text
    finally:
        made.close()


def test_a_range_sees_what_its_rank_has_pushed_and_keeps_the_state_of_updates(job):
    keys, ones = np.array([3, 5, 9], np.uint64), np.ones((3, 2), np.float32)

    def work(worker: Any) -> Any:
        table = KV("ranged adagrad", 2, update="adagrad:lr=1,eps=0", worker=worker)
        if worker.rank == 0:
            for _ in range(3):
                table.push(keys, ones)
                assert table.push_range(0, 9, "test.zero") == {}
            table.push(keys, ones).wait(DEADLINE)
        worker.barrier(DEADLINE)
        return table.pull(keys).value

    last, all_steps = -1 / np.sqrt(4), -sum(1 / np.sqrt(step) for step in (1, 2, 3, 4))
    for value in job.everybody(work):
        assert np.allclose(value[:2], last) and np.allclose(value[2], all_steps)


def test_ranges_that_cannot_be_are_refused_and_change_nothing(job):
    keys = np.arange(20, dtype=np.uint64)

    def attempt(worker: Any) -> None:
        table = KV("refused ranges", 2, worker=worker)
        if worker.rank == 0:
            table.push(keys, np.full((20, 2), 1e30, np.float32)).wait(DEADLINE)
            for low, high, function, scalars, words in (
                (9, 3, "scale", {"a": 1}, "low=9, high=3"),
                (0, 1 << 64, "scale", {"a": 1}, "ends by"),
                (0, 9, "dot", {}, "'kv/refused ranges'.*dot is of 2 tensors, not of 1"),
                (0, 9, "scale", {}, "scale has one scalar, a"),
                (0, 9, "nobodys", {}, "has no function nobodys"),
                (0, 9, "test.clip", {"least": 0}, "changes its tensor 1"),
                (0, 9, "test.fail", {}, "'test.fail' raised ValueError: it does not work"),
                (0, 9, "scale", {"a": 1e30}, "infinities or NaNs: nothing was changed"),
            ):
                with pytest.raises(InvalidArgumentError, match=words):
                    table.push_range(low, high, function, **scalars)
            assert (table.pull(keys).value == np.float32(1e30)).all()

    job.everybody(attempt)


def test_calls_that_cannot_be_are_refused_and_change_nothing(job):
    def attempt(worker: Any) -> None:
        first = {"x": np.ones(20), "y": np.full(20, 2.0), "z": np.ones(21), "f": np.ones(20, np.float32)}
        store = Store("refused calls", first, worker=worker)
        apart = Store("apart", {"x": np.ones(SIZE), "y": np.ones(3)}, together=False, worker=worker)
        worker.barrier(DEADLINE)
        for called, names, scalars, words in (
            ("nobodys", ["x"], {}, "has no function nobodys.*dot, axpy, scale, copy.*--import"),
            ("dot", ["x"], {}, "'store/refused calls/x'.*dot is of 2 tensors, not of 1"),
            ("axpy", ["x", "y"], {}, "axpy has one scalar, a"),
            ("scale", ["x"], {"b": 1.0}, "scale has one scalar, a"),
            ("scale", ["x"], {"a": np.inf}, "not finite"),
            ("scale", ["x"], {"a": 1e308 * 10}, "not finite"),
            ("dot", ["x", "z"], {}, "don't lie together"),
            ("dot", ["x", "f"], {}, "don't lie together"),
            ("dot", [], {}, "on one tensor at least"),
            ("dot", ["x", "nothing"], {}, "has no 'nothing'"),
            ("two words", ["x"], {}, "can't be called 'two words'"),
            ("dot", ["x"] * 300, {}, "at most 1024"),
            ("test.fail", ["y"], {}, "'test.fail' raised ValueError: it does not work"),
        ):
            with pytest.raises(InvalidArgumentError, match=words):
                store.call(called, names, **scalars)
        with pytest.raises(InvalidArgumentError, match="don't lie together"):
            apart.call("dot", ["x", "y"])
        worker.barrier(DEADLINE)
        if worker.rank == 0:
            store.call("scale", ["x"], a=1e200)
            with pytest.raises(InvalidArgumentError, match="infinities or NaNs: nothing was changed"):
                store.call("scale", ["x"], a=1e200)
        worker.barrier(DEADLINE)
        assert (pulled(store, "x", first["x"]) == 1e200).all() and (pulled(store, "y", first["y"]) == 2).all()

    job.everybody(attempt)


def test_l_bfgs_by_calls_is_that_of_torch(job):
    """Sandblaster (Dean et al., "Large Scale Distributed Deep Networks", NeurIPS 2012, section 4.2): the coordinator,
    rank 0, sends small commands; each rank computes the gradient of its part of the data."""
    torch = pytest.importorskip("torch")
    size, samples, steps, memory = 4000, 60, 12, 4
    data = np.random.default_rng(5).standard_normal((samples, size)) / np.sqrt(size)
    labels = np.sign(np.random.default_rng(6).standard_normal(samples))

    weights = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], lr=1, max_iter=steps, history_size=memory, tolerance_grad=0,
                                  tolerance_change=0)  # fmt: skip

    def closure() -> Any:
        optimizer.zero_grad()
        margins = torch.from_numpy(labels) * (torch.from_numpy(data) @ weights)
        loss = torch.nn.functional.softplus(-margins).sum() + 0.05 * (weights**2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)

    def train(worker: Any) -> Any:
        names = ["w", "g", "old", "d", *(f"{kind}{slot}" for kind in "sy" for slot in range(memory))]
        store = Store("lbfgs", {name: np.zeros(size) for name in names}, consistency="asp", combine="sum",
                      worker=worker)  # fmt: skip
        leader = _Leader(store, memory) if worker.rank == 0 else None
        part, own = slice(worker.rank, None, RANKS), np.zeros(size)
        commands = sent = 0
        for step in range(steps):
            worker.barrier(DEADLINE)
            store.pull("w", own).wait(DEADLINE)
            pull = -labels[part] / (1 + np.exp(labels[part] * (data[part] @ own)))
            store.push("g", data[part].T @ pull + 0.1 * own / RANKS).wait(DEADLINE)
            worker.barrier(DEADLINE)
            if leader:
                before = worker.stats()
                leader.step(step)
                after = worker.stats()
                sent += after["payload_sent"] - before["payload_sent"]
                commands += after["frames_sent"] - before["frames_sent"]
        worker.barrier(DEADLINE)
        assert not leader or (commands > 100 and sent < 1000 * commands)
        return pulled(store, "w", own)

    for found in job.everybody(train):
        assert np.abs(found).max() > 0.1
        np.testing.assert_allclose(found, weights.detach().numpy(), rtol=1e-7, atol=1e-9)


class _Leader:
    """torch.optim.LBFGS without a line search, on vectors that only servers have."""

    def __init__(self, store: Store, memory: int) -> None:
        self.store, self.memory = store, memory
        self.pairs: list[tuple[str, str, float]] = []
        self.scale, self.rate = 1.0, 0.0

    def dot(self, one: str, other: str) -> float:
        return self.store.call("dot", [one, other])["dot"]

    def step(self, number: int) -> None:
        call = self.store.call
        if number:
            self._remember(number - 1)
        call("copy", ["g", "d"])
        call("scale", "d", a=-1.0)
        factors = []
        for s, y, rho in reversed(self.pairs):
            factors.append(self.dot(s, "d") * rho)
            call("axpy", [y, "d"], a=-factors[-1])
        call("scale", "d", a=self.scale)
        for (s, y, rho), factor in zip(self.pairs, reversed(factors), strict=True):
            call("axpy", [s, "d"], a=factor - self.dot(y, "d") * rho)
        self.rate = 1.0 if number else min(1.0, 1.0 / call("test.one_norm", "g")["sum"])
        call("copy", ["g", "old"])
        call("axpy", ["d", "w"], a=self.rate)
        call("scale", "g", a=0.0)

    def _remember(self, number: int) -> None:
        s, y = f"s{number % self.memory}", f"y{number % self.memory}"
        for target, source in ((s, "d"), (y, "g")):
            self.store.call("copy", [source, target])
        self.store.call("scale", s, a=self.rate)
        self.store.call("axpy", ["old", y], a=-1.0)
        curvature = self.dot(y, s)
        self.pairs = [*self.pairs[1 - self.memory :], (s, y, 1 / curvature)] if self.memory > 1 else []
        self.scale = curvature / self.dot(y, y)


@pytest.mark.parametrize("maker", [join, native_worker])
def test_a_call_that_waits_too_long_for_other_ranks_says_for_whom(maker):
    made = MixedJob(makers=[maker, join], stall_warning=0.1, stall_timeout=0.5)
    try:

        def wait(worker: Any) -> None:
            store = Store("stalled", {"x": np.zeros(3)}, consistency="ssp:s=0", worker=worker)
            worker.barrier(DEADLINE)
            if worker.rank == 0:
                store.push("x", np.ones(3))
                with pytest.raises(StalledError, match=r"'store/stalled/x'.*rank 0 waits to read.*by rank: 1, 0"):
                    store.call("scale", "x", a=2.0)

        made.everybody(wait)
    finally:
        made.close()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["portable", "native"])
def test_calls_are_run_once_over_cut_connections(kind, seed):
    proxies: list[CuttingProxy] = []

    def through(url: str) -> str:
        proxies.append(CuttingProxy(url, seed, cuts=6, most_bytes=40_000))
        return proxies[-1].url

    settings = {} if kind == "portable" else {"transport": f"chaos://auto?seed={seed + 1}&drop=0.1"}
    makers = [lambda config: portable_through(config, through)] if kind == "portable" else [native_worker]
    made = MixedJob(makers=[*makers, join], **settings)
    try:
        first, calls = np.ones(5000 if kind == "portable" else 50, np.int64), 60

        def work(worker: Any) -> Any:
            arrays = {"x": first, "y": first, "z": first}
            store = Store("cut", arrays, consistency="asp", combine="sum", worker=worker)
            table = KV("cut", dtype=np.int64, combine="sum", worker=worker)
            if worker.rank == 0:
                for _ in range(calls):
                    store.push("x", first)
                    store.call("axpy", ["x", "y"], a=1)
                    assert store.call("test.add_one", "z")["figure 199"] == 199
                    table.push([7], [1])
                    assert table.push_range(7, 8, "test.add_one")["figure 199"] == 199
            worker.barrier(DEADLINE)
            return [pulled(store, name, first) for name in arrays], table.pull([7]).value

        for (x, y, z), row in made.everybody(work):
            assert (x == 1 + calls).all() and (y == 1 + sum(2 + call for call in range(calls))).all()
            assert (z == 1 + calls).all() and (row == 2 * calls).all()
    finally:
        made.close()
        for proxy in proxies:
            proxy.close()
